"""Options of an algorithm in rounds: their defaults, the values they take, and what they mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shoal.errors import SettingsError

Options = Mapping[str, Any]
"""options of a model in the contract by name: true or false, a number or a text"""

INT_MAX: Final = 2**53
"""the largest whole number that every reader of the contract represents exactly"""
CLUSTERS_MAX: Final = 10_000


@dataclass(frozen=True)
class Option:
    """One option of an algorithm."""

    default: bool | int | float | str
    is_valid: Callable[[Any], bool]
    expected: str
    """the valid values in words, for error messages: `must be ...`"""
    meaning: str
    """for the documentation"""


def resolve_options(algorithm: str, table: Mapping[str, Option], options: Options) -> dict[str, Any]:
    """The options with defaults filled in. Raises `SettingsError`, which names the option and its valid values."""
    for name, value in options.items():
        if name not in table:
            raise SettingsError(f"{algorithm} has no option {name!r}; it has {', '.join(table)}")
        if not table[name].is_valid(value):
            raise SettingsError(f"{algorithm} option {name} = {value!r}, must be {table[name].expected}")
    return {name: options.get(name, option.default) for name, option in table.items()}


def is_int(value: object, least: int = 1, most: int = INT_MAX) -> bool:
    """Whether a setting is a whole number from `least` to `most`; true and false are not numbers."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object, above: float, most: float = math.inf) -> bool:
    """Whether a setting is a finite number above `above` and at most `most`; true and false are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return above < float(value) <= most and float(value) < math.inf


def choice(names: Sequence[str], meaning: str) -> Option:
    """An option that takes one of `names`, by default the first. It travels as its position in `names`."""
    return Option(names[0], lambda value: value in names, " or ".join(f'"{name}"' for name in names), meaning)


CLUSTERS: Final = Option(
    "auto",
    lambda value: value == "auto" or is_int(value, 1, CLUSTERS_MAX),
    f'a whole number, 1 to {CLUSTERS_MAX}, or "auto"',
    'number of clusters; "auto": as many as the model it is initialised from has found',
)
"""the option that most algorithms in rounds share"""
CRITERIA: Final = ("gap", "silhouette", "bic")
"""by which a number of clusters can be chosen (`shoal.algorithms.rounds.choice`)"""
CLUSTERS_SOUGHT: Final = Option(
    20, lambda value: is_int(value, 1, 100), "a whole number, 1 to 100", "most clusters that a criterion may choose"
)


def chosen_clusters(*criteria: str) -> Option:
    """The option `clusters` of an algorithm whose number of clusters can also be chosen by one of these criteria."""
    names = ("auto", *criteria)
    quoted = [f'"{name}"' for name in names]
    return Option(
        "auto",
        lambda value: value in names or is_int(value, 1, CLUSTERS_MAX),
        f"a whole number, 1 to {CLUSTERS_MAX}, or {', '.join(quoted[:-1])} or {quoted[-1]}",
        'number of clusters; "auto": as many as the model it is initialised from has found; '
        f"{' or '.join(quoted[1:])}: chosen by this criterion on the nodes of that model",
    )


def needs_another_model(clusters: object) -> bool:
    """Whether this value of the option `clusters` needs another model: its clusters, or its nodes to choose from."""
    return clusters in ("auto", *CRITERIA)
