"""The privacy unit: what an epsilon of counts is of. Two inputs are neighbours if they differ in one unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from shoal.errors import SettingsError

UnitName = Literal["reading", "user"]
"""`reading`: one reading, replaced by any other. `user`: all readings that one user (a person, a device) has in one
window, replaced by any others of that user"""
UNIT_NAMES: Final[tuple[UnitName, ...]] = get_args(UnitName)


@dataclass(frozen=True)
class PrivacyUnit:
    """A privacy unit, and how many readings of one unit are counted in a window at most.

    Replacing these readings moves at most twice as many counts by one, so the scale of the noise grows with them.
    """

    name: UnitName = "reading"
    readings_max: int = 1

    def __post_init__(self) -> None:
        """Raises `SettingsError`."""
        if self.readings_max < 1:
            raise SettingsError("readings_per_window_max must be at least 1")
        if self.name == "reading" and self.readings_max != 1:
            raise SettingsError('readings_per_window_max is for unit = "user": a reading is one reading')

    @property
    def is_user(self) -> bool:
        """Whether readings belong to users, whose readings are protected together."""
        return self.name == "user"

    @property
    def phrase(self) -> str:
        """What an epsilon is per, in words."""
        return "user and window" if self.is_user else "reading"

    def statement(self) -> dict[str, Any]:
        """What the messages of a model that learns from counts state of it, in plain values."""
        return {"unit": self.name, **({"readings_per_window_max": self.readings_max} if self.is_user else {})}


READING: Final = PrivacyUnit()
