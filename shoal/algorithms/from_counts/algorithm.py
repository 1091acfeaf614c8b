"""Makes an algorithm that learns rows into one that learns from counts on a grid."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.from_counts.grid import EPSILON_ADVISED, FEATURES_MAX, STREAM, UPDATE, GridCounter, check_claims
from shoal.algorithms.from_counts.server import GridServer
from shoal.algorithms.streaming import StreamingAlgorithm
from shoal.errors import SettingsError


def from_counts(
    learner: StreamingAlgorithm, points: str, options_of_clients: Collection[str] = ()
) -> CountingAlgorithm:
    """The algorithm `NAME_from_counts`, whose server half learns rows made from counts as `learner` learns points.

    `points` names the array of the learner's updates that holds points; its updates must have one more array, `count`.
    `options_of_clients` are the learner's options that mean nothing without its client half. They are refused.
    """
    name = f"{learner.name}_from_counts"

    def counter(options: Mapping[str, Any], dimensions: int) -> GridCounter:
        return GridCounter(dimensions)

    def server(options: Mapping[str, Any], dimensions: int | None) -> GridServer:
        for option in options_of_clients:
            if option in options:
                raise SettingsError(f"{option} means nothing to {name}, whose clients count; leave it out")
        return GridServer(learner, points, dimensions, options)

    return CountingAlgorithm(
        name=name,
        counter=counter,
        server=server,
        update=UPDATE,
        snapshot=learner.snapshot,
        predict=learner.predict,
        view=learner.view,
        check_claims=check_claims,
        features_max=FEATURES_MAX,
        stream=STREAM,
        epsilon_advised=EPSILON_ADVISED,
    )
