"""The options of density_tree. None depends on the stream: they are limits, significance levels and spans."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from shoal.errors import SettingsError

FINEST_DEFAULT = 1 / 128


@dataclass(frozen=True)
class DensityTreeOptions:
    """Options of both halves. Raises `SettingsError`, naming the option and its range."""

    noise_variance: float = 0.0
    """of one published count; a federation takes it, and `window_readings`, from [privacy] of its contract"""
    window_readings: int = 400
    """readings of a full window"""
    leaves_max: int = 64
    """leaves that the tree has at most"""
    grow_readings: int = 2000
    """readings absorbed between two changes of the tree"""
    cut_significance: float = 4.0
    """standard deviations by which a valley must lie below the peaks beside it, to be cut"""
    depth: float = 0.4
    """height of a valley at most, as a share of the lower of the peaks beside it"""
    filled: float = 0.7
    """share of the lower peak from which on, on both sides of a cut, the valley counts as filled"""
    finest: float = FINEST_DEFAULT
    """smallest fine bin, as a share of the range of a feature"""
    decay: float = 1.0
    """factor by which counts fade with every 400 readings; below 1 for clusters that move"""
    oblique_axes: int = 0
    """axes of each leaf that combine two features, to find what no single feature shows"""

    def __post_init__(self) -> None:
        for name, least in (("window_readings", 1), ("leaves_max", 1), ("grow_readings", 1), ("oblique_axes", 0)):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            self._check(name, whole and value >= least, f"a whole number, at least {least}")
        for name, low, high in (
            ("cut_significance", 1.0, 100.0), ("depth", 0.01, 0.99), ("filled", 0.01, 1.0), ("finest", 1e-6, 1.0),
            ("decay", 0.5, 1.0),
        ):  # fmt: skip
            self._check(
                name, _is_number(getattr(self, name)) and low <= getattr(self, name) <= high, f"{low:g}..{high:g}"
            )
        given = self.noise_variance
        self._check("noise_variance", _is_number(given) and given >= 0.0, "a finite number, at least 0")
        self._check("depth", self.depth < self.filled, "below filled")

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """From a mapping, such as the options of a model in the contract."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                raise SettingsError(f"density_tree has no option {name!r}; it has {', '.join(known)}")
        return cls(**options)

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for a saved state."""
        return dataclasses.asdict(self)

    def _check(self, name: str, holds: bool, wanted: str) -> None:
        if not holds:
            raise SettingsError(f"density_tree option {name} = {getattr(self, name)!r}, must be {wanted}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
