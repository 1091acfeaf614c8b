"""FCAC on a stream: it is not given the number of clusters, and it learns each row once.

On the first rows there are many small clusters. They join as rows fill the gaps between their
nodes.
"""

from __future__ import annotations

import numpy as np

from shoal import FCAC

CENTRES = np.array([(0.2, 0.2), (0.5, 0.5), (0.8, 0.8)])


def main() -> None:
    """Learn a stream of rows around three centres, in portions."""
    rng = np.random.default_rng(0)
    model = FCAC()
    for portion in range(1, 7):
        centres = CENTRES[rng.integers(3, size=500)]
        model.partial_fit(centres + rng.normal(0, 0.03, size=centres.shape))
        print(f"after {500 * portion} rows: {model.n_clusters_} clusters")
    print("clusters of the three centres:", model.predict(CENTRES))


if __name__ == "__main__":
    main()
