"""`states` as an algorithm of a federation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shoal.algorithms.claims import Claims
from shoal.algorithms.states.client_half import StatesClient
from shoal.algorithms.states.messages import SNAPSHOT, UPDATE, check_possible
from shoal.algorithms.states.region import StatesAggregator
from shoal.algorithms.states.server_half import StatesServer, counted_points, predict, view
from shoal.algorithms.streaming import Aggregation, Arrays, StreamingAlgorithm


def check_claims(options: Mapping[str, Any], arrays: Arrays, claims: Claims) -> None:
    """Raises `InvalidData` for sums that no client has from its readings."""
    check_possible(arrays, claims)


STATES: Final = StreamingAlgorithm(
    name="states",
    client=lambda options, dimensions: StatesClient(dimensions, **options),
    server=lambda options, dimensions: StatesServer(dimensions, **options),
    update=UPDATE,
    snapshot=SNAPSHOT,
    predict=predict,
    view=view,
    check_claims=check_claims,
    aggregation=Aggregation(StatesAggregator),
    counted_points=counted_points,
    labels_sequences=True,
    experimental=(
        "states of several clients have one number only where they differ in level, spread or "
        "roughness; noise on rows hides most of them"
    ),
)
