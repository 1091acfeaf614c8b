"""Applies the changes of a status, as the page does in JavaScript."""

from __future__ import annotations

from typing import Any

from shoal.server_node.outputs.web.changes import REMOVED


def applied(before: Any, change: Any) -> Any:
    """`before` with a change; neither is changed."""
    if isinstance(change, dict) and isinstance(before, dict):
        kept = {
            name: value for name, value in before.items() if name not in change.get(REMOVED, ())
        }
        parts = {name: part for name, part in change.items() if name != REMOVED}
        return kept | {
            name: applied(kept[name], part) if name in kept else part
            for name, part in parts.items()
        }
    if isinstance(change, dict) and isinstance(before, list):
        return [
            applied(value, change[str(i)]) if str(i) in change else value
            for i, value in enumerate(before)
        ]
    return change
