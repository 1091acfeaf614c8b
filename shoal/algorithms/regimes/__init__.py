"""Regimes: sets of states in which a stream stays, found in time where the density of its values
has no valley.

A client cuts its stream into blocks of 1, 2, 4 ... 256 readings and describes each block by
features. What leaves it are sums over its blocks. From these the server finds, at each of these
scales, the coordinates in which blocks change slowly, cells of a codebook in them, and sets of
cells between which changes are rare; the scale that tells most about the next block decides. The
number of regimes is not told, and is one where nothing stays. `REGIMES` declares both halves as an
algorithm of a federation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shoal.algorithms.claims import Claims
from shoal.algorithms.regimes.client_half import RegimesClient, RegimesOptions
from shoal.algorithms.regimes.messages import REGION_UPDATE, SNAPSHOT, UPDATE, check_update
from shoal.algorithms.regimes.region import RegimesAggregator
from shoal.algorithms.regimes.server_half import (
    SPARE_READINGS,
    RegimesServer,
    check_answer,
    counted_points,
    predict,
    view,
)
from shoal.algorithms.streaming import Aggregation, Arrays, StreamingAlgorithm

__all__ = ["RegimesClient", "RegimesOptions", "RegimesServer"]


def check_claims(options: Mapping[str, Any], arrays: Arrays, claims: Claims) -> None:
    """Raises `InvalidData` for counts and sums that no client has from its readings and what it
    remembers."""
    header = check_update(arrays, claims.readings, SPARE_READINGS)
    if header is not None:
        check_answer(header, arrays, claims)


REGIMES: Final = StreamingAlgorithm(
    name="regimes",
    client=lambda options, dimensions: RegimesClient(dimensions, **options),
    server=lambda options, dimensions: RegimesServer(dimensions, **options),
    update=UPDATE,
    snapshot=SNAPSHOT,
    predict=predict,
    view=view,
    check_claims=check_claims,
    aggregation=Aggregation(RegimesAggregator, update=REGION_UPDATE, plan_from_upstream=True),
    counted_points=counted_points,
    follows_snapshots=True,
    labels_sequences=True,
    experimental=(
        "regimes of fewer than 20 readings at three deviations, 100 at two or 500 at one are "
        "seldom found, nor those of a stream that is itself strongly autocorrelated within them"
    ),
)
