"""What a snapshot says about a row as plain data: points or cuts that other programs can evaluate without shoal.

An algorithm whose `predict` is one of these forms declares `predictor`; tests hold both against each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from shoal.kernels.arrays import Floats, Ints


@dataclass(frozen=True)
class NearestPoint:
    """A row has the cluster of the nearest point, the first one of a tie; k points, -1 without points, and from its
    `reach` on.

    Without `sigma` nearest is by squared Euclidean distance, else by the correntropy-induced metric with this
    bandwidth: sqrt(1 - mean over features of exp(-(x - p)² / (2 sigma²))).
    """

    kind: ClassVar[str] = "nearest_point"

    points: Floats
    """(k, d) in unit coordinates"""
    cluster: Ints
    """(k,)"""
    sigma: float | None = None
    reach: Floats | None = None
    """(k,) distance from each point from which on a row has no cluster, without `sigma` alone; None: there is none"""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "kind": self.kind,
            "distance": "squared" if self.sigma is None else "correntropy",
            "sigma": self.sigma,
            "points": self.points.tolist(),
            "cluster": self.cluster.tolist(),
            "reach": None if self.reach is None else self.reach.tolist(),
        }


@dataclass(frozen=True)
class Cuts:
    """A row, clipped to 0..1, goes from cut to cut until it comes to a leaf, and has the cluster of that; s cuts.

    Its position at a cut is first_weight * row[first] + second_weight * row[second]; below `at` it goes to the first
    part, else to the second. Part i >= 0 is cut i, part -1 - i is leaf i; cut 0 is the first one.
    """

    kind: ClassVar[str] = "cuts"

    first: Ints
    second: Ints
    first_weight: Floats
    second_weight: Floats
    at: Floats
    """(s,) each"""
    parts: Ints
    """(s, 2)"""
    cluster: Ints
    """cluster of each leaf; all -1 while nothing is found"""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        names = ("first", "second", "first_weight", "second_weight", "at", "parts", "cluster")
        return {"kind": self.kind, **{name: getattr(self, name).tolist() for name in names}}

    @property
    def depth(self) -> int:
        """The most cuts that a row passes."""
        deepest, level = 0, [0] if len(self.at) else []
        while level:
            deepest += 1
            level = [part for cut in level for part in self.parts[cut].tolist() if part >= 0]
        return deepest


Predictor = NearestPoint | Cuts
