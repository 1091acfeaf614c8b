"""An algorithm of one's own: federated medians of one ring around the middle, in rounds, without
installing anything.

Clients answer with sums that add up, so the result is that of all rows in one place. With a line
under the entry-point group `shoal.algorithms` a federation runs it as well, with page, metrics and
privacy (docs/how-to/extending.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.algorithms.options import AlgorithmOptions, Options
from shoal.algorithms.rounds.arrays import CENTRES, Params, Stats, sum_answers
from shoal.algorithms.rounds.base import InitHint, RoundsAlgorithm
from shoal.algorithms.streaming import ArraySpec, Rows
from shoal.simulation.rounds import bounding_box, run_rounds

STATS = {"count": ArraySpec("<f8", ("k",)), "sum": ArraySpec("<f8", ("k", "d"))}
SHARPNESS = 60.0


class SoftMeansOptions(AlgorithmOptions):
    """Its options, as a federation file would have them."""

    ALGORITHM = "soft_means"

    clusters: int = 3


def start(options: Options, d: int, hint: InitHint) -> Params:
    """First centres (k, d): spread over the box of the rows."""
    clusters = SoftMeansOptions.parse(options).clusters
    places = np.random.default_rng(hint.seed).uniform(size=(clusters, d))
    return {"centre": hint.low + places * (hint.high - hint.low), "weight": np.zeros(clusters)}


def answer(params: Params, rows: Rows) -> Stats:
    """How much of the client's rows (n, d) each centre draws, and the sums of what it draws."""
    squared = np.square(rows[:, None] - params["centre"]).sum(axis=2)
    drawn = np.exp(-SHARPNESS * (squared - squared.min(axis=1, keepdims=True)))
    drawn /= drawn.sum(axis=1, keepdims=True)
    return {"count": drawn.sum(axis=0), "sum": drawn.T @ rows}


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """Centres at the means of what they have drawn; one that has drawn nothing stays."""
    sums = sum_answers(params, STATS, answers)
    if sums is None:
        return dict(params)
    weight = sums["count"]
    means = sums["sum"] / np.maximum(weight, 1e-9)[:, None]
    return {"centre": np.where(weight[:, None] > 0, means, params["centre"]), "weight": weight}


SOFT_MEANS = RoundsAlgorithm(
    name="soft_means",
    snapshot=CENTRES,
    update=STATS,
    options=SoftMeansOptions,
    start=start,
    answer=answer,
    combine=combine,
    additive=True,
)


def main() -> None:
    """Three clients that each see one cluster, and all rows in one place: the same centres."""
    rng = np.random.default_rng(0)
    middles = np.array([(0.2, 0.2), (0.8, 0.3), (0.5, 0.8)])
    sites = [middle + rng.normal(0, 0.04, (300, 2)) for middle in middles]
    first = SOFT_MEANS.start({"clusters": 3}, 2, bounding_box(sites))
    federated = run_rounds(SOFT_MEANS, first, sites, rounds_max=50).params
    pooled = run_rounds(SOFT_MEANS, first, [np.concatenate(sites)], rounds_max=50).params
    print("centres found by three clients:", federated["centre"].round(3).tolist())
    print(
        "largest difference to all rows in one place:",
        np.abs(federated["centre"] - pooled["centre"]).max(),
    )
    print("clusters of the three middles:", SOFT_MEANS.predict(federated, middles).tolist())
    assert np.allclose(federated["centre"], pooled["centre"])


if __name__ == "__main__":
    main()
