"""Federated k-means by averaging: each client runs steps of Lloyd's algorithm alone, and the server
averages centres.

Source: M. Uranga, "Federated clustering" (2024), section 4.2. It is here to be compared with
`shoal.algorithms.rounds.kmeans`, which is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

import numpy as np

from shoal.algorithms.options import Options, option
from shoal.algorithms.rounds import kmeans
from shoal.algorithms.rounds.arrays import (
    INT,
    Params,
    Stats,
    choice_array,
    int_array,
    read_choice,
    read_int,
    require_centres,
)
from shoal.algorithms.rounds.base import InitHint, RoundsAlgorithm
from shoal.algorithms.streaming import Rows
from shoal.kernels.lloyd import means

Average = Literal["weighted", "unweighted"]
AVERAGES: Final = get_args(Average)
STEPS_MAX: Final = 1000


class KMeansLocalOptions(kmeans.KMeansOptions):
    """Options of kmeans_local: those of kmeans, and two more."""

    ALGORITHM = "kmeans_local"

    average: Average = option(
        "weighted",
        "mean of the clients' centres by their number of rows; or plain mean, where a client "
        "without rows of a cluster repeats the centre it was sent",
    )
    steps: int = option(
        5, "steps of Lloyd's algorithm that each client runs alone", least=1, most=STEPS_MAX
    )


# Client half.


def answer(params: Params, rows: Rows) -> Stats:
    """`steps` steps of Lloyd's algorithm from the centres received -> as of k-means, after the last
    step.

    So sum / count is where the client's own centre ends.
    """
    require_centres(params)
    centres = params["centre"]
    for _ in range(read_int(params, "steps", 1, STEPS_MAX) - 1):
        own = kmeans.cluster_sums(centres, rows)
        centres = means(own["count"], own["sum"], centres)
    return kmeans.cluster_sums(centres, rows)


# What travels.

PARAMS: Final = {**kmeans.PARAMS, "average": INT, "steps": INT}

# Server half.


def start(options: Options, d: int, hint: InitHint) -> Params:
    """The first centres, and the options that clients and server need. Raises `SettingsError`."""
    chosen = KMeansLocalOptions.parse(options)
    return {
        **kmeans.start({"clusters": chosen.clusters}, d, hint),
        "average": choice_array(chosen.average, AVERAGES),
        "steps": int_array(chosen.steps),
    }


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """The mean of the clients' centres, weighted by their rows or not."""
    weighted = kmeans.combine(params, answers)
    if read_choice(params, "average", AVERAGES) == "weighted":
        return weighted
    # The thesis counts every client that has rows at all, and one without rows of a cluster repeats
    # its centre: that is what drags the centres when clients hold different clusters.
    with_rows = [stats for stats in answers if stats["count"].any()]
    if not with_rows:
        return dict(params)
    centres = [means(stats["count"], stats["sum"], params["centre"]) for stats in with_rows]
    return {**weighted, "centre": np.mean(centres, axis=0)}


KMEANS_LOCAL: Final = RoundsAlgorithm(
    name="kmeans_local",
    snapshot=PARAMS,
    update=kmeans.STATS,
    options=KMeansLocalOptions,
    start=start,
    answer=answer,
    combine=combine,
    check_claims=kmeans.check_claims,
    robust=kmeans.KMEANS.robust,
    paper_only=True,
)
