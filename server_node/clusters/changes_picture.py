"""Picture of the changes between two spans of time: shares then and now, and features that have moved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from server_node.clusters.figures import QUIET, heading, saved, without_frame, wrapped
from server_node.clusters.history.changes import Changes, Moved
from server_node.clusters.history.changes_text import lines_of
from shoal.config.contract import Contract

ROWS_MAX: Final = 12
"""clusters, and moved features, in one picture: the others are in the text of `shoal changes`"""
LINE_CHARS: Final = 62
BEFORE, AFTER, STILL = "#93a1b3", "#2f6fde", "#c5ccd6"
"""colours of the earlier span, of the later one, and of what has not moved"""


def draw_changes(changes: Changes, contract: Contract, chance: float, path: Path) -> None:
    """Draw to `path`, whose suffix is the format. Raises as `saved` does."""
    saved(path, lambda figure_type: changes_figure(figure_type, changes, contract, chance), changes.spans.after.text())


def changes_figure(figure_type: Any, changes: Changes, contract: Contract, chance: float) -> Any:
    """A figure of matplotlib: shares of clusters, features that have moved, and all changes in words."""
    shares = _shares(changes, chance)
    moved = [one for one in changes.moved if one.chance < chance][:ROWS_MAX]
    rows = max(3, len(shares), len(moved))
    words = [line for each in lines_of(changes, chance) for line in _broken(each)]
    figure = figure_type(figsize=(13, max(1.6 + 0.42 * rows, 1.4 + 0.2 * len(words))), layout="constrained")
    heading(figure, f"{contract.federation}, {changes.model}: what has changed")
    left, middle, right = figure.subplots(1, 3, width_ratios=(3, 3, 4))
    _draw_shares(left, shares)
    _draw_moved(middle, moved, contract)
    right.axis("off")
    right.text(0, 1, "\n".join(words), va="top", fontsize=8.5, transform=right.transAxes)
    return figure


def _broken(line: str) -> Sequence[str]:
    indent = "  " if line.startswith("  ") else ""
    first, *others = wrapped(line.strip(), LINE_CHARS).splitlines()
    return [indent + first, *(f"{indent}   {other}" for other in others)]


Share = tuple[str, float, float, bool]
"""title, share before and after, and whether it has changed"""


def _shares(changes: Changes, chance: float) -> list[Share]:
    """The largest clusters of the later span, and those that are new or gone."""
    begun: list[Share] = [(one.title, 0.0, one.share, True) for one in changes.new]
    ended: list[Share] = [(one.title, one.share, 0.0, True) for one in changes.gone]
    apart = {one.cluster for one in changes.new} | {one.cluster for one in changes.gone}
    stayed: list[Share] = [
        (one.title, one.before, one.after, one.chance < chance) for one in changes.shares if one.cluster not in apart
    ]
    return sorted([*begun, *ended, *stayed], key=lambda share: -max(share[1:3]))[:ROWS_MAX]


def _draw_shares(chart: Any, shares: Sequence[Share]) -> None:
    chart.set_title("share of the readings, %: then (grey) and now", fontsize=10, loc="left")
    for place, (_, before, after, changed) in enumerate(shares):
        _dumbbell(chart, place, 100 * before, 100 * after, AFTER if changed else STILL)
    _rows(chart, [title for title, *_ in shares], "no readings of known clusters")
    chart.set_xlim(left=0)


def _draw_moved(chart: Any, moved: Sequence[Moved], contract: Contract) -> None:
    chart.set_title("means that have moved, between the bounds", fontsize=10, loc="left")
    bounds = {feature.name: (feature.low, feature.high) for feature in contract.features}
    for place, one in enumerate(moved):
        low, high = bounds[one.feature]
        before, after = ((value - low) / (high - low) for value in (one.before, one.after))
        _dumbbell(chart, place, before, after, AFTER)
        chart.text(max(before, after) + 0.03, place, f"{one.by:+.3g} {one.unit}".rstrip(), va="center", fontsize=8)
    _rows(chart, [f"{one.feature}\n{one.title}" for one in moved], "none")
    chart.set(xlim=(0, 1.25), xticks=[])


def _dumbbell(chart: Any, place: int, before: float, after: float, colour: str) -> None:
    chart.plot([before, after], [place, place], color=colour, linewidth=3, solid_capstyle="round", zorder=1)
    chart.scatter([before], [place], color=BEFORE, s=36, zorder=2)
    chart.scatter([after], [place], color=colour, s=46, zorder=3)


def _rows(chart: Any, titles: Sequence[str], empty: str) -> None:
    without_frame(chart)
    labels = ["\n".join(wrapped(line, 30) for line in title.splitlines()) for title in titles]
    chart.set(yticks=range(len(titles)), yticklabels=labels)
    chart.tick_params(labelsize=8)
    chart.set_ylim(max(3, len(titles)) - 0.5, -0.5)
    if not titles:
        chart.text(0.02, 0.9, empty, transform=chart.transAxes, color=QUIET, fontsize=9)
