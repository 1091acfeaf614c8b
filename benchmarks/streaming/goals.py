"""What the compiled form of the kernels is to reach, as ratios of rows per second in the same
turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.results import rounded, table

WIDE = 784
"""features of a small picture; with these only CA+ is measured, beside peers that take arrays"""


class Goal(NamedTuple):
    """A ratio to a peer on one stream."""

    network: str
    d: int
    centres: int
    peer: str
    ratio: float
    nodes_min: int | None = None
    """CAEFC's `diversity_nodes_min`"""

    def is_of(self, cell: Mapping[str, Any]) -> bool:
        """Whether the goal is about a network on a stream that was measured."""
        measured = (
            cell["network"],
            cell["d"],
            cell["centres"],
            cell["options"].get("diversity_nodes_min"),
        )
        return measured == (self.network, self.d, self.centres, self.nodes_min)

    def words(self) -> str:
        """The goal for a reader."""
        option = "" if self.nodes_min is None else f", diversity_nodes_min = {self.nodes_min}"
        return f"{self.network}, d = {self.d}, {self.centres} centres{option}, beside {self.peer}"


GOALS = (
    Goal("CA+", 16, 100, "NumPy form", 20.0),
    Goal("CA+", 64, 100, "NumPy form", 20.0),
    Goal("CA+", 16, 100, "MiniBatchKMeans", 5.0),
    Goal("CA+", 64, 100, "MiniBatchKMeans", 5.0),
    Goal("CA+", WIDE, 100, "MiniBatchKMeans", 1.0),
    Goal("CA+", 16, 100, "published program", 200.0),
    *(
        Goal("CAEFC", d, 100, "NumPy form", 20.0, nodes_min)
        for d in (16, 64)
        for nodes_min in (10, 100)
    ),
)


def judged(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each goal with the median ratio that was measured, and whether it is reached; None: not
    measured."""
    found = []
    for goal in GOALS:
        ratios = [
            peer["ratio"]["median"]
            for cell in cells
            for peer in cell["peers"]
            if goal.is_of(cell) and peer["name"] == goal.peer
        ]
        outcome = {"measured": ratios[0], "reached": ratios[0] >= goal.ratio} if ratios else {}
        found.append(
            goal._asdict() | {"what": goal.words()} | {"measured": None, "reached": None} | outcome
        )
    return found


def goal_table(goals: Sequence[dict[str, Any]]) -> str:
    """The goals as a Markdown table."""
    words = {True: "reached", False: "missed", None: "not measured"}
    lines = [
        [
            goal["what"],
            f"×{rounded(goal['ratio'])}",
            "" if goal["measured"] is None else f"×{rounded(goal['measured'])}",
            words[goal["reached"]],
        ]
        for goal in goals
    ]
    return "## Goals\n\n" + table(["what", "goal", "measured", ""], lines)
