"""Options of `states` in a federation."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shoal.algorithms.options import AlgorithmOptions, option
from shoal.algorithms.states.tiles import HALF_TILES_MAX, TILE_MIN

WINDOW_MAX = 256
"""readings of a window, at most: labels wait for the window around a reading"""


class StatesOptions(AlgorithmOptions):
    """Options of both halves."""

    ALGORITHM = "states"

    strict: bool = option(
        False, "whether fewer streams without states are taken for several, and fewer states found"
    )
    window: Annotated[int, Field(ge=TILE_MIN, le=WINDOW_MAX)] | None = option(
        None,
        "readings of a client that show what it does, of a cycle about one period; none: found by "
        "each client from its first 1000 readings",
        expected=f"a whole number, {TILE_MIN} to {WINDOW_MAX}, or none",
    )
    evaluate_every: int = option(
        1000,
        "readings of a client between two looks for states, at least; they also grow to a "
        "sixteenth of its stream",
        least=100,
    )
    memory: int = option(
        HALF_TILES_MAX,
        "rows of sums that a client keeps; the fewer, the longer the stretch that each is of",
        least=64,
        most=HALF_TILES_MAX,
    )
