"""Changes between two plain values of JSON, which a page is sent in place of the whole.

The change of an object is an object with the changes of its members; `REMOVED` lists the members
that it has no more. The change of an array of the same length may be an object too, with the
changes of its elements by their positions. Any other value replaces what was there. The page's
`status.js` applies changes.
"""

from __future__ import annotations

from typing import Any

from shoal.server_node.outputs.encoding import as_json

REMOVED = ""
"""no member of a status has this name"""
UNCHANGED = object()


def change(before: Any, after: Any) -> Any:
    """The change that makes `after` of `before`; `UNCHANGED` if there is none."""
    if isinstance(before, dict) and isinstance(after, dict):
        return _object_change(before, after)
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return _array_change(before, after)
    if isinstance(after, dict) and isinstance(before, list):
        raise TypeError(
            "an object cannot replace an array: it would be taken for the change of the array"
        )
    # True equals 1, and they are two values in JSON.
    if before == after and type(before) is type(after):
        return UNCHANGED
    return after


def _object_change(before: dict[str, Any], after: dict[str, Any]) -> Any:
    changes = {
        name: change(before[name], value) if name in before else value
        for name, value in after.items()
    }
    changed = {name: value for name, value in changes.items() if value is not UNCHANGED}
    if removed := [name for name in before if name not in after]:
        changed[REMOVED] = removed
    return changed or UNCHANGED


def _array_change(before: list[Any], after: list[Any]) -> Any:
    """The changes of the elements by position, or the whole array where that is shorter."""
    changes = ((str(i), change(*pair)) for i, pair in enumerate(zip(before, after, strict=True)))
    changed = {position: value for position, value in changes if value is not UNCHANGED}
    if not changed:
        return UNCHANGED
    if len(as_json(changed)) < len(as_json(after)):
        return changed
    return after
