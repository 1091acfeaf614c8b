"""Changes of saved states, whose parts are nested: an entry is named by its way, "nodes.weight"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

NODES: Final = ("nodes.weight", "nodes.sigma", "nodes.count", "nodes.stamp", "nodes.node_id")
"""the arrays of the nodes of CA+ or CAEFC"""


def ways(state: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The way to every entry of a state; what is below the names of clients or arrays is no
    part."""
    for name, value in state.items():
        way = f"{above}{name}"
        yield way
        if isinstance(value, Mapping) and name != "options":
            yield from ways(value, f"{way}.")


def entry(state: Mapping[str, Any], way: str) -> Any:
    """The entry at a way."""
    value: Any = state
    for name in way.split("."):
        value = value[name]
    return value


def without(state: Mapping[str, Any], way: str) -> dict[str, Any]:
    """The state without the entry at a way; the given one stays as it is."""
    name, _, rest = way.partition(".")
    if rest:
        return {**state, name: without(state[name], rest)}
    return {key: value for key, value in state.items() if key != name}


def changed(state: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The state with other values at the ways of `changes`; the given one stays as it is."""
    result = dict(state)
    for way, value in changes.items():
        name, _, rest = way.partition(".")
        result[name] = changed(result[name], {rest: value}) if rest else value
    return result
