"""The readings of each user in an open window of counts, where the privacy unit is a user.

In each window at most `readings_per_window_max` readings of one user are counted, the first ones.
Further ones keep their places and are counted nowhere, as rejected readings are, so that nothing
published depends on them. Repeats are recognised by user and time, and within one window alone: no
user, and no other window, decides whether a reading of this user in this window is counted. So one
user changes a window by `readings_per_window_max` readings at most, which is what the noise covers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np

from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.privacy.base import PrivacyUnit
from shoal.saved_state import FloatArray, IntArray, SavedState, require, state_type

DIGEST_BYTES = 16


@state_type
class UserReadingsState(SavedState):
    """The readings that were counted in the open window, by user."""

    users: list[bytes]
    """digests of user ids"""
    number: Annotated[Ints, IntArray("readings")]
    """position in `users` of the user of each reading"""
    time: Annotated[Floats, FloatArray("readings", gaps=True)]
    """event time of each, NaN for none"""

    def check(self) -> None:
        require(len(set(self.users)) == len(self.users), "two users are the same")
        require(bool((self.number < len(self.users)).all()), "a reading is of no user")


class UserReadings:
    """The readings of each user in the open window. User ids are kept as digests, and only until
    the window closes."""

    def __init__(self, unit: PrivacyUnit, drop_repeats: bool = False) -> None:
        """`drop_repeats`: a reading with the time of an earlier one of its user is not counted."""
        self._unit = unit
        self._drop_repeats = drop_repeats
        self._counted: dict[bytes, list[float | None]] = {}
        """user -> event times of the readings counted"""

    def admit(self, valid: Bools, users: Sequence[bytes], times: Sequence[float | None]) -> Bools:
        """valid (n,) readings in the order of their places -> those of them (n,) that are counted.

        `users` and `times` (n,) hold user id and event time of each. Without users as a privacy
        unit all valid readings are counted.
        """
        if not self._unit.is_user:
            return valid
        counted = np.zeros(len(valid), dtype=np.bool_)
        for place in np.flatnonzero(valid).tolist():
            # Two users with one digest would share a place; 128 bits make that rarer than a broken
            # disk.
            user = hashlib.blake2b(users[place], digest_size=DIGEST_BYTES).digest()
            time = times[place]
            before = self._counted.setdefault(user, [])
            is_repeat = self._drop_repeats and time is not None and time in before
            if len(before) < self._unit.readings_max and not is_repeat:
                before.append(time)
                counted[place] = True
        return counted

    def clear(self) -> None:
        """A new window is open."""
        self._counted.clear()

    def state(self) -> UserReadingsState:
        """What is counted of each user."""
        numbers: list[int] = []
        times: list[float | None] = []
        for number, counted in enumerate(self._counted.values()):
            numbers += [number] * len(counted)
            times += counted
        return UserReadingsState(
            users=list(self._counted),
            number=np.array(numbers, dtype=np.int64),
            # NumPy makes NaN of None.
            time=np.array(times, dtype=np.float64),
        )

    def restore(self, saved: UserReadingsState) -> None:
        """Become the saved one."""
        self._counted = {user: [] for user in saved.users}
        for number, time in zip(saved.number.tolist(), saved.time.tolist(), strict=True):
            counted = self._counted[saved.users[number]]
            counted.append(None if math.isnan(time) else time)
