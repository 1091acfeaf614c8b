"""The installed algorithms, found by name through the entry-point group `shoal.algorithms`.

An algorithm is a `StreamingAlgorithm` or a `RoundsAlgorithm`; its entry point names that object. Any installed
package may offer some. An algorithm is imported when it is first asked for, so a client that runs one of them does
not load the others.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final, TypeAlias

from shoal.algorithms.rounds.base import RoundsAlgorithm
from shoal.algorithms.streaming import StreamingAlgorithm
from shoal.errors import SettingsError

GROUP: Final = "shoal.algorithms"
Algorithm: TypeAlias = StreamingAlgorithm | RoundsAlgorithm


@cache
def algorithm_names() -> tuple[str, ...]:
    """The names of all installed algorithms in alphabetical order; imports none of them."""
    return tuple(sorted(_installed()))


@cache
def streaming_names() -> tuple[str, ...]:
    """The names of the streaming algorithms; imports every installed algorithm."""
    return tuple(name for name in algorithm_names() if not is_in_rounds(name))


@cache
def rounds_names() -> tuple[str, ...]:
    """The names of the algorithms in rounds; imports every installed algorithm."""
    return tuple(name for name in algorithm_names() if is_in_rounds(name))


@cache
def load_algorithm(name: str) -> Algorithm:
    """The algorithm of this name, imported on first use.

    Raises `SettingsError` for an unknown name, and for an entry point that does not lead to an algorithm.
    """
    point = _installed().get(name)
    if point is None:
        raise SettingsError(f"unknown algorithm {name!r}; there are: {', '.join(algorithm_names())}")
    origin = f"algorithm {name!r} of package {_package(point)} ({point.value})"
    try:
        algorithm = point.load()
    # The code of another package runs here: whatever it raises is reported as that package's fault.
    except Exception as error:
        raise SettingsError(f"{origin} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(algorithm, StreamingAlgorithm | RoundsAlgorithm):
        raise SettingsError(
            f"{origin} is a {type(algorithm).__name__}; it must be a StreamingAlgorithm or a RoundsAlgorithm"
        )
    if algorithm.name != name:
        raise SettingsError(f"{origin} calls itself {algorithm.name!r}; the entry point must have the same name")
    return algorithm


def streaming_algorithm(name: str) -> StreamingAlgorithm:
    """The streaming algorithm of this name. Raises `SettingsError`."""
    algorithm = load_algorithm(name)
    if not isinstance(algorithm, StreamingAlgorithm):
        raise SettingsError(f"{name} is an algorithm in rounds; streaming are: {', '.join(streaming_names())}")
    return algorithm


def rounds_algorithm(name: str) -> RoundsAlgorithm:
    """The algorithm in rounds of this name. Raises `SettingsError`."""
    algorithm = load_algorithm(name)
    if not isinstance(algorithm, RoundsAlgorithm):
        raise SettingsError(f"{name} is a streaming algorithm; in rounds are: {', '.join(rounds_names())}")
    return algorithm


def is_in_rounds(name: str) -> bool:
    """Whether the algorithm of this name works in rounds. Raises `SettingsError` for an unknown name."""
    return load_algorithm(name).in_rounds


@cache
def _installed() -> dict[str, EntryPoint]:
    """Entry point by name. Raises `SettingsError` if there is none, or two packages offer the same name."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            packages = f"{_package(other)} ({other.value}) and {_package(point)} ({point.value})"
            raise SettingsError(f"two installed packages offer an algorithm {point.name!r}: {packages}; remove one")
    if not found:
        raise SettingsError(
            f"no algorithm is installed: the entry-point group {GROUP} is empty; install shoal again "
            "(in a checkout: pip install -e .)"
        )
    return found


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "unknown"
