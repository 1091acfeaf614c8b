"""The options of density_tree. None depends on the stream: they are limits and spans."""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic import field_validator

from shoal.algorithms.options import AlgorithmOptions, option

FINEST_DEFAULT: Final = 1 / 128
WINDOW_READINGS_DEFAULT: Final = 400


class DensityTreeOptions(AlgorithmOptions):
    """Options of both halves.

    A federation takes `noise_variance`, `window_readings` and `axes_per_window` from [privacy] of
    its contract, and `circular` from its features.
    """

    ALGORITHM = "density_tree"

    noise_variance: float = option(0.0, "variance of the noise of one published count", least=0.0)
    window_readings: int = option(WINDOW_READINGS_DEFAULT, "readings of a full window", least=1)
    axes_per_window: int = option(
        0, "axes of each leaf that a window samples; 0: as many as the noise allows", least=0
    )
    leaves_max: int = option(64, "leaves that the tree has at most", least=1)
    grow_readings: int = option(2000, "readings absorbed between two changes of the tree", least=1)
    cut_significance: float = option(
        4.0,
        "standard deviations by which a valley must lie below the peaks beside it, to be cut",
        least=1.0,
        most=100.0,
    )
    depth: float = option(
        0.4,
        "height of a valley at most, as a share of the lower of the peaks beside it",
        least=0.01,
        most=0.99,
    )
    filled: float = option(
        0.7,
        "share of the lower peak from which on, on both sides of a cut, the valley is filled",
        least=0.01,
        most=1.0,
    )
    finest: float = option(
        FINEST_DEFAULT,
        "smallest fine bin, as a share of the range of a feature",
        least=1e-6,
        most=1.0,
    )
    decay: float = option(
        1.0,
        "factor by which counts fade with every 400 readings; below 1 for clusters that move",
        least=0.5,
        most=1.0,
    )
    oblique_axes: int = option(
        0,
        "axes of each leaf that combine two features, to find what no single feature shows",
        least=0,
    )

    circular: str = option(
        "",
        "positions of the features whose ends meet, such as 0,3",
        expected="whole numbers and commas",
    )

    @field_validator("circular")
    @classmethod
    def _are_positions(cls, written: str) -> str:
        if not re.fullmatch(r"(\d+(,\d+)*)?", written):
            raise ValueError("no positions")
        return written

    @property
    def circular_features(self) -> tuple[int, ...]:
        """Positions of the features whose ends meet."""
        return tuple(int(position) for position in self.circular.split(",") if position)

    def model_post_init(self, context: Any) -> None:
        """Raises `SettingsError` for a valley that would count as filled when it is cut."""
        self.require("depth", self.depth < self.filled, "below filled")
