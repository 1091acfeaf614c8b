"""A privacy mode: readings are rounded to a few levels per feature. It guarantees nothing."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from shoal.privacy.base import Description, PrivacyMode, Released, RowRange, Term, check_state


class Rounding:
    """The mechanism of one client."""

    def __init__(self, mode):
        self.mode = mode

    def privatise(self, readings, places):
        inside, clipped = self.mode.bounds.clip(readings)
        steps = self.mode.values["levels"] - 1
        rows = np.round(self.mode.bounds.to_unit(inside) * steps) / steps
        return Released(rows, np.ones(len(rows), dtype=np.bool_), clipped)

    def state(self):
        return {"version": 1, "mode": "coarse", "fingerprint": self.mode.context().hex()}

    def restore(self, state):
        check_state(state, 1, "coarse", self.mode.context().hex())


class Coarse(PrivacyMode):
    """Each feature of a row is one of `levels` values."""

    name = "coarse"
    summary = "a few levels per feature"
    mechanism_name = "rounding"
    terms: ClassVar = {
        "levels": Term("how many values a feature of a row can have", above=1, at_most=1000)
    }

    def epsilon_per_feature(self):
        return ()

    def mechanism(self, key, client, source):
        return Rounding(self)

    def row_range(self):
        return RowRange(np.zeros(self.bounds.d), np.ones(self.bounds.d))

    def describe(self):
        levels = f"Each feature is rounded to one of {self.values['levels']:g} levels."
        return Description(
            "Coarse values, no guarantee", "warn", (levels,), ("Everything that rounding leaves.",)
        )
