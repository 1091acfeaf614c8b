"""The changes between two spans of time as text, a line for each."""

from __future__ import annotations

import math
from collections.abc import Mapping

from server_node.clusters.history.changes import CHANCE, Begun, Changes, Ended, Moved, ShareMoved
from server_node.clusters.history.comparison import BINS_MIN
from server_node.clusters.history.summary import duration


def lines_of(changes: Changes, chance: float = CHANCE) -> list[str]:
    """The changes as text, a line for each; of what has moved that whose chance is below `chance`."""
    before, after, _ = changes.spans
    moved = [_moved_line(one) for one in changes.moved if one.chance < chance]
    shares = [_share_line(one) for one in changes.shares if one.chance < chance]
    lines = [
        f"{changes.model}: {after.text()}, {changes.readings[1]:,} readings",
        f"beside {before.text()}, {changes.readings[0]:,} readings (UTC)",
    ]
    parts: Mapping[str, list[str]] = {
        "New": [_begun_line(one) for one in changes.new],
        "Gone": [_ended_line(one) for one in changes.gone],
        "Moved": moved,
        "Share moved": shares,
    }
    for title, some in parts.items():
        lines += [title, *(f"  {line}" for line in some)] if some else []
    return [*lines, _last_line(changes, chance, any(parts.values()))]


def _last_line(changes: Changes, chance: float, something: bool) -> str:
    if min(changes.bins) < BINS_MIN:
        return (
            f"The spans have {changes.bins[0]} and {changes.bins[1]} bins of {duration(changes.spans.width_s)}: with "
            f"fewer than {BINS_MIN} nothing is known of chance, so no movement is shown."
        )
    return (
        f"Nothing {'else ' * something}has moved with a chance below {_percent(chance)}: {changes.compared} means and "
        "shares of clusters were compared, and a chance is that of any of them."
    )


def _begun_line(one: Begun) -> str:
    parted = f", parted from {one.other or 'another cluster'}" if one.kind == "parted" else ""
    by = ", ".join(f"{client} {100 * share:.0f} %" for client, share in one.clients)
    return f"{one.title}{parted}: {100 * one.share:.1f} % of the readings{f'; from {by}' if by else ''}"


def _ended_line(one: Ended) -> str:
    ends = {
        "merged": f"merged into {one.other or 'another cluster'}",
        "gone": "gone",
        "quiet": "no readings fall to it",
    }
    return f"{one.title}: {ends[one.kind]}; it had {100 * one.share:.1f} %"


def _moved_line(one: Moved) -> str:
    places = max(0, 1 - math.floor(math.log10(abs(one.by)))) if one.by else 0
    before, after = (f"{value:.{places}f}" for value in (one.before, one.after))
    unit = f" {one.unit}" if one.unit else ""
    return f"{one.title}: {one.feature} {one.by:+.{places}f}{unit} ({before} to {after}), {_chance(one.chance)}"


def _share_line(one: ShareMoved) -> str:
    by = ", ".join(f"{client} {100 * share:+.1f}" for client, share in one.clients)
    shares = f"{100 * one.before:.1f} to {100 * one.after:.1f} % ({100 * one.by:+.1f} points"
    return f"{one.title}: {shares}{f'; {by}' if by else ''}), {_chance(one.chance)}"


def _chance(chance: float) -> str:
    return "chance below 0.01 %" if chance < 1e-4 else f"chance {_percent(chance)}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
