"""What private clustering ought to reach, and whether it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Goal(NamedTuple):
    """The least mean ARI of density_tree, or of what is said, on every stream of a family at an
    epsilon."""

    family: str
    epsilon: float
    least: float
    learner: str = "density_tree"
    features_max: int = 1000


ON_A_GRID = "cluster_tree on a grid of private counts"
GOALS = (
    *(Goal("blobs", epsilon, least) for epsilon, least in ((1.0, 0.95), (2.0, 0.98), (4.0, 0.98))),
    *(
        Goal(family, epsilon, least)
        for family in ("hard", "unequal")
        for epsilon, least in ((1.0, 0.93), (2.0, 0.95))
    ),
    *(
        Goal(family, epsilon, least)
        for family in ("skewed blobs", "skewed hard")
        for epsilon, least in ((1.0, 0.9), (4.0, 0.95))
    ),
    Goal("class by class", 4.0, 0.95),
    Goal("office", 1.0, 0.75),
    Goal("moons", 2.0, 0.95, ON_A_GRID, 2),
    Goal("bars", 2.0, 0.95, ON_A_GRID, 2),
)


def judged(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each goal on each stream that was measured: the figure, and whether it reaches the goal."""
    found = []
    for goal in GOALS:
        for cell in cells:
            named = goal.family in (cell["family"], cell["stream"])
            if (
                named
                and cell["d"] <= goal.features_max
                and cell["learner"] == goal.learner
                and cell["epsilon"] == goal.epsilon
            ):
                found.append(
                    {
                        "stream": cell["stream"],
                        "learner": goal.learner,
                        "epsilon": goal.epsilon,
                        "least": goal.least,
                        "ari": cell["ari"]["mean"],
                        "reached": cell["ari"]["mean"] >= goal.least,
                    }
                )
    return found
