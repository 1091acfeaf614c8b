"""The privacy terms of a federation as plain values: all that client and server must agree on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from shoal.errors import SettingsError
from shoal.privacy.bounds import Bounds

Mode = Literal["formal", "paper", "off"]


@dataclass(frozen=True)
class PrivacyTerms:
    """Mode, bounds and budget. Whoever holds the contract can build it; no key is in it.

    `formal` needs `epsilon_per_reading`, divided among the features by `shares` (equal if None);
    `paper` needs `epsilon_nominal_per_feature`; `off` needs neither. Raises `SettingsError` otherwise.
    """

    mode: Mode
    bounds: Bounds
    epsilon_per_reading: float | None = None
    epsilon_nominal_per_feature: float | None = None
    shares: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise SettingsError(f"privacy mode {self.mode!r} is unknown; choose one of {', '.join(get_args(Mode))}")
        for name, value, mode in (
            ("epsilon_per_reading", self.epsilon_per_reading, "formal"),
            ("epsilon_nominal_per_feature", self.epsilon_nominal_per_feature, "paper"),
        ):
            if self.mode == mode and not (value is not None and math.isfinite(value) and value > 0):
                raise SettingsError(f"privacy mode {mode!r} needs {name} above 0 and finite, not {value}")
            if self.mode != mode and value is not None:
                raise SettingsError(f"{name} belongs to privacy mode {mode!r}; remove it or change mode {self.mode!r}")
        if self.shares is not None and (
            len(self.shares) != self.bounds.d or not all(math.isfinite(s) and s > 0 for s in self.shares)
        ):
            raise SettingsError(f"shares must be {self.bounds.d} finite numbers above 0, one for each feature")

    def epsilon_per_feature(self) -> tuple[float, ...]:
        """Epsilon of each feature: parts that sum to `epsilon_per_reading` (formal), the nominal one (paper), none."""
        if self.mode == "formal":
            assert self.epsilon_per_reading is not None
            shares = self.shares or (1.0,) * self.bounds.d
            total = math.fsum(shares)
            return tuple(self.epsilon_per_reading * share / total for share in shares)
        if self.mode == "paper":
            assert self.epsilon_nominal_per_feature is not None
            return (float(self.epsilon_nominal_per_feature),) * self.bounds.d
        return ()
