"""The mode `off`: no noise, for public readings."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats
from shoal.privacy.base import (
    Bounds,
    Description,
    Mechanism,
    PrivacyMode,
    Released,
    RowRange,
    check_state,
)
from shoal.privacy.keyed import Places

STATE_VERSION = 1
LEARNT_GAPS = (
    "A reading that lacks values is learnt for those that it has: counts leave it out where they "
    "need one that it lacks, and in rows the missing value is that of the nearest earlier reading "
    "of the client.",
)


class NoNoise:
    """Clips readings and moves them to unit coordinates, nothing else."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds

    def privatise(self, readings: Floats, places: Places) -> Released:
        inside, clipped = self._bounds.clip(readings)
        return Released(self._bounds.to_unit(inside), np.ones(len(inside), dtype=np.bool_), clipped)

    def state(self) -> dict[str, Any]:
        return {"version": STATE_VERSION, "mode": Off.name, "fingerprint": ""}

    def restore(self, state: dict[str, Any]) -> None:
        check_state(state, STATE_VERSION, Off.name, "")


class Off(PrivacyMode):
    """Rows are the readings themselves in unit coordinates."""

    name = "off"
    summary = "public data only"
    mechanism_name = "none"
    adds_noise = False
    counts = True
    fills_gaps = True

    def epsilon_per_feature(self) -> tuple[float, ...]:
        return ()

    def mechanism(self, key: bytes | None, client: str, source: bytes) -> Mechanism:
        return NoNoise(self.bounds)

    def count_noise(self, epsilon: float | None) -> None:
        if epsilon is not None:
            raise SettingsError('an epsilon of counts means nothing in mode = "off"; leave it out')

    def row_range(self) -> RowRange:
        return RowRange(np.zeros(self.bounds.d), np.ones(self.bounds.d))

    def describe(self) -> Description:
        return Description(
            "No privacy",
            "bad",
            (
                "Privacy is OFF: no noise is added, and clients learn from the readings "
                "themselves, clipped to their bounds. A node that won once is a reading, shown "
                "exactly. Use this mode for public readings only.",
                *(LEARNT_GAPS if self.missing == "learn" else ()),
            ),
            ("Everything: nothing is hidden in this mode.",),
        )
