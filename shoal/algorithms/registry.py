"""The installed algorithms, found by name through the entry-point group `shoal.algorithms`.

An algorithm is a `StreamingAlgorithm` or a `RoundsAlgorithm`; its entry point names that object. Any installed
package may offer some. An algorithm is imported when it is first asked for, so a client that runs one of them does
not load the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias, TypeGuard

from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.options import AlgorithmOptions
from shoal.algorithms.rounds.base import RoundsAlgorithm
from shoal.algorithms.streaming import StreamingAlgorithm
from shoal.errors import SettingsError
from shoal.plugins import Plugins

Algorithm: TypeAlias = StreamingAlgorithm | RoundsAlgorithm


def _is_algorithm(found: Any) -> TypeGuard[Algorithm]:
    return isinstance(found, StreamingAlgorithm | RoundsAlgorithm)


_ALGORITHMS = Plugins("shoal.algorithms", "algorithm", _is_algorithm, "a StreamingAlgorithm or a RoundsAlgorithm")


def algorithm_names() -> tuple[str, ...]:
    """The names of all installed algorithms in alphabetical order; imports none of them."""
    return _ALGORITHMS.names()


@cache
def streaming_names() -> tuple[str, ...]:
    """The names of the streaming algorithms; imports every installed algorithm."""
    return tuple(name for name in algorithm_names() if not is_in_rounds(name))


@cache
def counting_names() -> tuple[str, ...]:
    """The names of the streaming algorithms that learn from counts; imports every installed algorithm."""
    return tuple(name for name in algorithm_names() if load_algorithm(name).family.client_counts)


@cache
def rounds_names() -> tuple[str, ...]:
    """The names of the algorithms in rounds; imports every installed algorithm."""
    return tuple(name for name in algorithm_names() if is_in_rounds(name))


def load_algorithm(name: str) -> Algorithm:
    """The algorithm of this name, imported on first use.

    Raises `SettingsError` for an unknown name, and for an entry point that does not lead to an algorithm.
    """
    return _ALGORITHMS.load(name)


def streaming_algorithm(name: str) -> StreamingAlgorithm:
    """The streaming algorithm of this name. Raises `SettingsError`."""
    algorithm = load_algorithm(name)
    if not isinstance(algorithm, StreamingAlgorithm):
        raise SettingsError(f"{name} is {algorithm.family.title}; streaming are: {', '.join(streaming_names())}")
    return algorithm


def counting_algorithm(name: str) -> CountingAlgorithm:
    """The streaming algorithm of this name, which learns from counts. Raises `SettingsError`."""
    algorithm = load_algorithm(name)
    if not isinstance(algorithm, CountingAlgorithm):
        raise SettingsError(
            f"{name} learns from {algorithm.family.learns_from}; from counts learn: {', '.join(counting_names())}"
        )
    return algorithm


def rounds_algorithm(name: str) -> RoundsAlgorithm:
    """The algorithm in rounds of this name. Raises `SettingsError`."""
    algorithm = load_algorithm(name)
    if not isinstance(algorithm, RoundsAlgorithm):
        raise SettingsError(f"{name} is {algorithm.family.title}; in rounds are: {', '.join(rounds_names())}")
    return algorithm


def can_aggregate(name: str) -> bool:
    """Whether a region can contribute to a model of this algorithm. Raises `SettingsError` for an unknown name."""
    return load_algorithm(name).aggregates


def is_in_rounds(name: str) -> bool:
    """Whether the algorithm of this name works in rounds. Raises `SettingsError` for an unknown name."""
    return load_algorithm(name).family.in_rounds


def options_table(names: Sequence[str]) -> str:
    """Markdown: the options of the algorithms `names`, with a column for who has them if there are several.

    An option that several algorithms declare alike has one line. Raises `SettingsError` for an unknown name.
    """
    owners: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        declared = rounds_algorithm(name).options
        for option in declared.model_fields:
            owners.setdefault(_cells(declared, option), []).append(f"`{name}`")
    lines = ["| option | default | values | meaning |", "|---|---|---|---|"]
    if len(names) > 1:
        lines = ["| option | of | default | values | meaning |", "|---|---|---|---|---|"]
    for (option, *cells), having in sorted(owners.items(), key=lambda entry: _place(names, entry[0][0])):
        whose = [", ".join(having)] if len(names) > 1 else []
        lines.append(f"| {' | '.join([option, *whose, *cells])} |")
    return "\n".join(lines)


def _cells(declared: type[AlgorithmOptions], name: str) -> tuple[str, ...]:
    option = declared.model_fields[name]
    default = f'"{option.default}"' if isinstance(option.default, str) else f"{option.default}"
    return f"`{name}`", f"`{default}`", declared.expected(name), option.description or ""


def _place(names: Sequence[str], option: str) -> int:
    """Where the first of the algorithms that have this option declares it: lines of one option stand together."""
    every = [f"`{one}`" for name in names for one in rounds_algorithm(name).options.model_fields]
    return every.index(option)
