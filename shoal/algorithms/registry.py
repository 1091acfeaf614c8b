"""The installed algorithms, found by name through the entry-point group `shoal.algorithms`.

An algorithm is a `StreamingAlgorithm` or a `RoundsAlgorithm`; its entry point names that object.
Any installed package may offer some. An algorithm is imported when it is first asked for, so a
client that runs one of them does not load the others.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

from shoal.algorithms.streaming import Arrays, Rows, StreamingAlgorithm
from shoal.errors import SettingsError
from shoal.kernels.arrays import Ints
from shoal.kernels.distance import filled_from
from shoal.plugins import Plugins

if TYPE_CHECKING:
    from shoal.algorithms.rounds.base import RoundsAlgorithm

Algorithm: TypeAlias = "StreamingAlgorithm | RoundsAlgorithm"


def _is_algorithm(found: Any) -> TypeGuard[Algorithm]:
    if isinstance(found, StreamingAlgorithm):
        return True
    # What is an algorithm in rounds has loaded this already. A process of streaming models, such as
    # a small client, goes without: six modules.
    from shoal.algorithms.rounds.base import RoundsAlgorithm  # noqa: PLC0415 - for rounds only

    return isinstance(found, RoundsAlgorithm)


_ALGORITHMS = Plugins(
    "shoal.algorithms", "algorithm", _is_algorithm, "a StreamingAlgorithm or a RoundsAlgorithm"
)


def algorithm_names() -> tuple[str, ...]:
    """The names of all installed algorithms in alphabetical order; imports none of them."""
    return _ALGORITHMS.names()


@cache
def streaming_names() -> tuple[str, ...]:
    """The names of the streaming algorithms; imports every installed algorithm."""
    return tuple(name for name in algorithm_names() if not load_algorithm(name).family.in_rounds)


@cache
def counting_names() -> tuple[str, ...]:
    """The names of the algorithms that learn from counts; imports every installed algorithm."""
    return tuple(name for name in algorithm_names() if load_algorithm(name).family.client_counts)


@cache
def rounds_names() -> tuple[str, ...]:
    """The names of the algorithms in rounds; imports every installed algorithm."""
    return tuple(name for name in algorithm_names() if load_algorithm(name).family.in_rounds)


def predict_rows(algorithm: Algorithm, arrays: Arrays, rows: Rows) -> Ints:
    """Snapshot arrays, rows (n, d) with NaN for missing values -> (n,) clusters, -1 for none.

    A row that lacks values falls to the cluster of the nearest node over what it has, unless the
    algorithm knows better.
    """
    # Algorithms in rounds do not declare it: none of them knows better.
    if not np.isnan(rows).any() or getattr(algorithm, "predicts_gaps", False):
        return algorithm.predict(arrays, rows)
    return algorithm.predict(arrays, filled_from(rows, algorithm.view(arrays).nodes))


def load_algorithm(name: str) -> Algorithm:
    """The algorithm of this name, imported on first use.

    Raises `SettingsError` for an unknown name, and for an entry point that does not lead to an
    algorithm.
    """
    return _ALGORITHMS.load(name)


def streaming_algorithm(name: str) -> StreamingAlgorithm:
    """The streaming algorithm of this name. Raises `SettingsError`."""
    algorithm = load_algorithm(name)
    if not isinstance(algorithm, StreamingAlgorithm):
        raise SettingsError(
            f"{name} is {algorithm.family.title}; streaming are: {', '.join(streaming_names())}"
        )
    return algorithm


def rounds_algorithm(name: str) -> RoundsAlgorithm:
    """The algorithm in rounds of this name. Raises `SettingsError`."""
    algorithm = load_algorithm(name)
    if isinstance(algorithm, StreamingAlgorithm):
        raise SettingsError(
            f"{name} is {algorithm.family.title}; in rounds are: {', '.join(rounds_names())}"
        )
    return algorithm
