"""Sketches of both halves: how their number of points is bounded, and their saved form."""

from __future__ import annotations

from typing import Annotated, Final, Self

import numpy as np

from shoal.kernels.arrays import Floats
from shoal.kernels.constants import COUNT_MAX
from shoal.kernels.sketching import Sketch, merge_targets, merged
from shoal.saved_state import FloatArray, SavedState, require, state_type

POINT_SHARE_MAX: Final = 2.0
"""largest mass of a point, as a multiple of the mean mass: a heavier point would be denser than all
around it"""

READINGS_PER_POINT: Final = 8
"""readings of a sketch for each of its points at most, where a client or a region may publish
sooner. The tree measures density over neighbourhoods of 32 readings. A point passes for that many
readings at one place; of heavier ones a neighbourhood has so few that the gaps between points are
taken for gaps between clusters: at 12 readings a point one normal distribution was one cluster in
16 of 16 streams, at 16 in 6 of 8 in two dimensions, at 31 in none."""


@state_type
class SketchState(SavedState):
    """A saved sketch of n points with d features."""

    point: Annotated[Floats, FloatArray("n", "d")]
    mass: Annotated[Floats, FloatArray("n")]

    @classmethod
    def of(cls, sketch: Sketch) -> Self:
        return cls(point=sketch.points, mass=sketch.mass)

    def check(self) -> None:
        require(bool((self.mass > 0).all()), "a sketch has points without mass")
        require(
            bool((self.mass <= COUNT_MAX).all()),
            "a sketch has points of more readings than can be counted",
        )

    def restored(self) -> Sketch:
        return Sketch(self.point, self.mass)


def sketched(sketch: Sketch, points_max: int) -> Sketch:
    """Merge near points until there are at most `points_max`, in the same order."""
    # Two single readings may always be merged, however few readings there are.
    mass_max = max(2.0, POINT_SHARE_MAX * float(sketch.mass.sum()) / points_max)
    while len(sketch.mass) > points_max:
        into = merge_targets(sketch, points_max, mass_max)
        if (into == np.arange(len(into))).all():
            # No pair is left below the limit of mass. The number of points is the limit that must
            # hold.
            mass_max *= 2.0
        else:
            sketch = merged(sketch, into)
    return sketch
