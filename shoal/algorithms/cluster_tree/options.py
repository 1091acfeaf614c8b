"""The options of cluster_tree. None depends on the stream: they are limits, significance levels and spans."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from shoal.errors import SettingsError


@dataclass(frozen=True)
class ClusterTreeOptions:
    """Options of both halves. Raises `SettingsError`, naming the option and its range."""

    points_max: int = 128
    """weighted points that a client publishes at once"""
    cells_max: int = 1000
    """weighted points that the server keeps"""
    rebuild_readings: int = 500
    """readings absorbed between two rebuilds of the tree; the first ones come whenever the readings have doubled"""
    cluster_mass_max: float = 1000.0
    """independent readings of a cluster that count: newer ones displace older ones of the same cluster, never those of
    another"""
    mass_max: float = 4000.0
    """independent readings of all clusters that count, each cluster having an equal part at most: with more readings
    ever finer structure becomes significant, and the number of clusters would grow with the age of the stream"""
    split_significance: float = 4.5
    """standard deviations by which both sides of a join must be denser than the join to be clusters of their own"""
    keep_significance: float = 2.0
    """... and to remain two clusters once they are"""
    confirm_readings: float = 1000.0
    """readings for which a split that is barely significant, or the loss of one, must last before it is shown; a split
    of twice the significance is shown at once"""

    def __post_init__(self) -> None:
        for name, least in (("points_max", 8), ("cells_max", 16), ("rebuild_readings", 1)):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            self._check(name, whole and value >= least, f"a whole number, at least {least}")
        for name, low in (("cluster_mass_max", 100.0), ("mass_max", 100.0), ("confirm_readings", 0.0)):
            self._check(name, _is_number(getattr(self, name)) and getattr(self, name) >= low, f"at least {low:g}")
        for name in ("split_significance", "keep_significance"):
            self._check(name, _is_number(getattr(self, name)) and getattr(self, name) > 0, "above 0")
        self._check("keep_significance", self.keep_significance <= self.split_significance, "<= split_significance")

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """From a mapping, such as the options of a model in the contract."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                raise SettingsError(f"cluster_tree has no option {name!r}; it has {', '.join(known)}")
        return cls(**options)

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for a saved state."""
        return dataclasses.asdict(self)

    def _check(self, name: str, holds: bool, wanted: str) -> None:
        if not holds:
            raise SettingsError(f"cluster_tree option {name} = {getattr(self, name)!r}, must be {wanted}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
