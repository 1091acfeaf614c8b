"""The compiled form of the kernels (extra `fast`, Numba), with the bits of the NumPy form.

Only `shoal.kernels.forms` imports this folder, when a process has learnt enough rows to gain by it.
"""
