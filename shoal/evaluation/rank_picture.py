"""The critical-difference diagram: mean ranks on a line, and bars that join what does not differ significantly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.evaluation.pictures import require_matplotlib
from shoal.evaluation.ranking import Ranking

LINE = 0.2
"""inches between two names"""
BAR = 0.13
"""inches between two bars"""


def draw_ranks(rankings: Mapping[str, Ranking], path: Path) -> None:
    """One diagram for each ranking, by its title; the suffix of `path` gives the format. Raises `MissingExtra`."""
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra that is needed for drawing only

    heights = [_height(each) for each in rankings.values()]
    figure = Figure(figsize=(7.5, sum(heights)), layout="constrained")
    axes = figure.subplots(len(rankings), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, height, (title, ranking) in zip(axes, heights, rankings.items(), strict=True):
        _draw(axis, height, title, ranking)
    figure.savefig(path, dpi=90)


def _height(ranking: Ranking) -> float:
    return 0.85 + BAR * len(ranking.groups()) + LINE * ((len(ranking.names) + 1) // 2)


def _draw(axis: Any, height: float, title: str, ranking: Ranking) -> None:
    """Best on the left. Lengths down the page are in inches, so that diagrams of all sizes have the same lines."""
    k, order = len(ranking.names), sorted(ranking.names, key=ranking.of)
    margin = 0.35 * (k - 1)
    axis.set(xlim=(1 - margin, k + margin), ylim=(-height + 0.5, 0.35))
    axis.axis("off")
    axis.set_title(f"{title}: {ranking.comparisons} comparisons", fontsize=9, loc="left")
    axis.plot([1, k], [0, 0], color="black", linewidth=1)
    for tick in range(1, k + 1):
        axis.plot([tick, tick], [0, 0.06], color="black", linewidth=1)
        axis.text(tick, 0.08, str(tick), ha="center", va="bottom", fontsize=8)
    reach = min(k - 1.0, ranking.critical_difference)
    axis.plot([k - reach, k], [0.3, 0.3], color="black", linewidth=2)
    axis.text(k + 0.05, 0.3, f"critical difference {ranking.critical_difference:.2f}", va="center", fontsize=7)
    for number, group in enumerate(ranking.groups(), start=1):
        ends = [ranking.of(group[0]) - 0.03, ranking.of(group[-1]) + 0.03]
        axis.plot(ends, [-BAR * number] * 2, color="#b03030", linewidth=3, solid_capstyle="butt")
    top = BAR * len(ranking.groups()) + 0.12
    for place, name in enumerate(order):
        left = place < (k + 1) // 2
        depth = -top - LINE * (place if left else k - 1 - place)
        end = 1 - 0.1 if left else k + 0.1
        axis.plot([ranking.of(name)] * 2 + [end], [0, depth, depth], color="#404040", linewidth=0.8)
        text = f"{name} {ranking.of(name):.2f}"
        axis.text(
            end, depth, f"{text} " if left else f" {text}", ha="right" if left else "left", va="center", fontsize=8
        )
