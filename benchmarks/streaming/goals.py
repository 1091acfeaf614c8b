"""What the compiled form of the kernels is to reach, as ratios of rows per second in the same turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.results import rounded, table

WIDE = 784
"""as many features as a small picture has; only CA+ is measured with so many, and beside peers that take arrays"""


class Goal(NamedTuple):
    """A ratio to a peer on one stream, with CAEFC's `diversity_nodes_min` equal to the number of centres."""

    network: str
    d: int
    centres: int
    peer: str
    ratio: float


GOALS = (
    Goal("CA+", 16, 100, "NumPy form", 20.0),
    Goal("CA+", 64, 100, "NumPy form", 20.0),
    Goal("CA+", 16, 100, "MiniBatchKMeans", 5.0),
    Goal("CA+", WIDE, 100, "MiniBatchKMeans", 1.0),
    Goal("CA+", 16, 100, "published program", 200.0),
    Goal("CAEFC", 16, 100, "NumPy form", 20.0),
)


def judged(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each goal with the median ratio that was measured, and whether it is reached; None: not measured."""
    found = []
    for goal in GOALS:
        ratios = [
            peer["ratio"]["median"]
            for cell in cells
            for peer in cell["peers"]
            if (cell["network"], cell["d"], cell["centres"], peer["name"]) == goal[:4]
            and cell["options"].get("diversity_nodes_min", goal.centres) == goal.centres
        ]
        outcome = {"measured": ratios[0], "reached": ratios[0] >= goal.ratio} if ratios else {}
        found.append(goal._asdict() | {"measured": None, "reached": None} | outcome)
    return found


def goal_table(goals: Sequence[dict[str, Any]]) -> str:
    """The goals as a Markdown table."""
    words = {True: "reached", False: "missed", None: "not measured"}
    lines = [
        [
            f"{goal['network']}, d = {goal['d']}, {goal['centres']} centres, beside {goal['peer']}",
            f"×{rounded(goal['ratio'])}",
            "" if goal["measured"] is None else f"×{rounded(goal['measured'])}",
            words[goal["reached"]],
        ]
        for goal in goals
    ]
    return "## Goals\n\n" + table(["what", "goal", "measured", ""], lines)
