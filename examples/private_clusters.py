"""DensityTree: clusters from private counts, for what each reading may cost.

Five clients count the same kinds of readings in windows and publish noisy counts. The smaller
epsilon, the better each reading is protected, and the more readings it takes until all clusters are
found.
"""

from __future__ import annotations

import numpy as np

from shoal import DensityTree

CENTRES = np.array([(0.2, 0.2, 0.8), (0.5, 0.8, 0.2), (0.8, 0.2, 0.5), (0.8, 0.8, 0.8)])


def main() -> None:
    """Learn the same stream at several prices, in portions."""
    rng = np.random.default_rng(0)
    rows = CENTRES[rng.integers(4, size=20_000)] + rng.normal(0, 0.04, size=(20_000, 3))
    for epsilon in (0.05, 0.25, 1.0, 4.0, None):
        model = DensityTree(epsilon=epsilon, clients=5)
        found = []
        for portion in np.split(rows, 10):
            model.partial_fit(portion)
            found.append(model.n_clusters_)
        price = "no noise" if epsilon is None else f"epsilon {epsilon:g}"
        print(
            f"{price:>12}: clusters after every 2,000 rows {found}, of the four centres"
            f" {model.predict(CENTRES)}"
        )


if __name__ == "__main__":
    main()
