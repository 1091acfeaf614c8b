"""tsk: federated Takagi-Sugeno rules by sums, a regression of one feature, the target, on the others.

Source: A. Wilbik, P. Grefen, "Towards a federated fuzzy learning system" (2021), eq. 1 to 5. Rounds first find the
conditions of the rules: by fuzzy c-means on the inputs of all clients together (which the paper names as future work),
or from centres that another model has found. Then they fit the consequents: least squares solves the summed normal
equations at once; the paper's gradient descent takes one step in each round.
"""
