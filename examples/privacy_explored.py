"""What privacy costs: the same readings at several prices, and what an observer can guess from one
published count.

Two of the questions that a data protection officer asks: which clusters are still found, and how
much can be learnt of one reading? The second is tried by an attack, as `shoal privacy audit` does
it for a whole federation.
"""

from __future__ import annotations

import numpy as np

from shoal import DensityTree
from shoal.privacy.count_noise import count_noise

CENTRES = np.array([(0.25, 0.25), (0.75, 0.3), (0.5, 0.8)])
TRIALS = 20_000


def found_at(epsilon: float | None, rows: np.ndarray) -> tuple[int, float]:
    """Clusters that the model finds, and the share of rows whose label is that of their true
    cluster's majority."""
    model = DensityTree(epsilon=epsilon, clients=5, low=0.0, high=1.0).fit(rows)
    truth = np.square(rows[:, None] - CENTRES).sum(axis=2).argmin(axis=1)
    labels = model.predict(rows)
    right = sum(
        np.unique(labels[truth == number], return_counts=True)[1].max()
        for number in range(len(CENTRES))
    )
    return model.n_clusters_, right / len(rows)


def guessed_right(epsilon: float) -> float:
    """How often the best guess from one noisy count is right: did a reading fall into this cell, or
    into another?

    The odds of a guess are at most e^epsilon; a reading moves two counts by one, and each has half
    of it.
    """
    rng = np.random.default_rng(1)
    there = rng.integers(0, 2, TRIALS)
    noise = count_noise(epsilon)
    drawn = np.array([noise.draw(number.to_bytes(4, "little"), 1)[0] for number in range(TRIALS)])
    guess = (there + drawn) >= 0.5
    return float(np.mean(guess == (there == 1)))


def main() -> None:
    """Print one line for each price."""
    rng = np.random.default_rng(0)
    rows = np.clip(CENTRES[rng.integers(3, size=5000)] + rng.normal(0, 0.05, (5000, 2)), 0, 1)
    print("epsilon  clusters  rows in their cluster  guess of one reading right (0.5: none)")
    for epsilon in (0.1, 0.5, 1.0, 4.0):
        clusters, right = found_at(epsilon, rows)
        print(f"{epsilon:7g}  {clusters:8}  {right:21.1%}  {guessed_right(epsilon):.1%}")
    clusters, right = found_at(None, rows)
    print(f"   none  {clusters:8}  {right:21.1%}  100.0%")


if __name__ == "__main__":
    main()
