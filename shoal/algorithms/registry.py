"""The only list of algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.algorithms.fcac import CAEFC, CAPlus
from shoal.algorithms.fcac import snapshot as published
from shoal.algorithms.fcac.arrays import SNAPSHOT, UPDATE
from shoal.algorithms.rounds.base import RoundsAlgorithm
from shoal.algorithms.rounds.fcm import FCM
from shoal.algorithms.rounds.ffcm import FFCM
from shoal.algorithms.rounds.gmm import GMM
from shoal.algorithms.rounds.gmm_local import GMM_LOCAL
from shoal.algorithms.rounds.kfed import KFED
from shoal.algorithms.rounds.kmeans import KMEANS, KMEANS_LOCAL
from shoal.algorithms.rounds.mufc import MUFC
from shoal.algorithms.streaming import ArraySpec, StreamingAlgorithm

FCAC_NODES_MAX = 2000
"""what a served model may grow to unless its options say otherwise: an endless stream must not fill the memory"""


def _bounded(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"nodes_max": FCAC_NODES_MAX, **options}


STREAMING: dict[str, StreamingAlgorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        StreamingAlgorithm(
            name="fcac",
            client=lambda options, dimensions: CAPlus(dimensions, **_bounded(options)),
            server=lambda options, dimensions: CAEFC(dimensions, **_bounded(options)),
            update=UPDATE,
            snapshot=SNAPSHOT,
            predict=published.predict,
            view=published.view,
        ),
    )
}

ROUNDS: dict[str, RoundsAlgorithm] = {
    algorithm.name: algorithm for algorithm in (KMEANS, KMEANS_LOCAL, KFED, MUFC, FCM, FFCM, GMM, GMM_LOCAL)
}

ALGORITHMS: dict[str, StreamingAlgorithm | RoundsAlgorithm] = {**STREAMING, **ROUNDS}
"""all of them: each can predict from its snapshot and sum it up"""


def arrays_to_server(name: str) -> Mapping[str, ArraySpec]:
    """What travels from a client to the server for the algorithm of this name."""
    return ROUNDS[name].stats if name in ROUNDS else STREAMING[name].update
