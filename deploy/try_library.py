#!/usr/bin/env python3
"""Fits two estimators of the installed library to invented readings, and ends with 1 if they do not
find the three groups.

For systems on which the services are not run: it needs the extra `evaluate` and no other program.
"""

from __future__ import annotations

import sys

import numpy as np
from sklearn.metrics import adjusted_rand_score

from shoal import ClusterTree, DensityTree

ARI_MIN = 0.95


def main() -> None:
    """Fit, compare, and print a line for each estimator."""
    rng = np.random.default_rng(7)
    centres = np.array([[0.2, 0.2], [0.8, 0.3], [0.5, 0.8]])
    truth = rng.integers(0, len(centres), 6000)
    readings = centres[truth] + rng.normal(0.0, 0.04, (len(truth), 2))
    worst = 1.0
    for estimator in (ClusterTree(), DensityTree()):
        labels = estimator.fit_predict(readings)
        ari = adjusted_rand_score(truth, labels)
        print(f"{type(estimator).__name__}: ARI {ari:.3f}")
        worst = min(worst, ari)
    if worst < ARI_MIN:
        sys.exit(f"an ARI below {ARI_MIN}: three groups that stand apart are not found")


if __name__ == "__main__":
    main()
