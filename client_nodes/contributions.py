"""How many readings of each user the open window counts, where the privacy unit is a user.

In each window at most `readings_per_window_max` readings of one user are counted, the first ones. Further ones keep
their places and are counted nowhere, as rejected readings are, so that nothing published tells of them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import InvalidState
from shoal.privacy.base import PrivacyUnit

DIGEST_BYTES = 16


class Contributions:
    """The readings of each user in the open window. User ids are kept as digests, and only until the window closes."""

    def __init__(self, unit: PrivacyUnit) -> None:
        self._unit = unit
        self._counted: Counter[bytes] = Counter()

    def admit(self, valid: NDArray[np.bool_], users: Sequence[bytes]) -> NDArray[np.bool_]:
        """valid (n,) readings in the order of their places -> those of them (n,) that are counted.

        `users` (n,) holds the user id of each. Without users as a privacy unit all valid readings are counted.
        """
        if not self._unit.is_user:
            return valid
        counted = np.zeros(len(valid), dtype=np.bool_)
        for place in np.flatnonzero(valid).tolist():
            user = hashlib.blake2b(users[place], digest_size=DIGEST_BYTES).digest()
            counted[place] = self._counted[user] < self._unit.readings_max
            self._counted[user] += int(counted[place])
        return counted

    def clear(self) -> None:
        """A new window is open."""
        self._counted.clear()

    def state(self) -> list[Any]:
        """Plain values for `restore`."""
        return [[user, readings] for user, readings in self._counted.items()]

    def restore(self, state: list[Any]) -> None:
        """Raises `InvalidState`."""
        counted = dict(state)
        if not all(isinstance(user, bytes) and type(readings) is int for user, readings in counted.items()):
            raise InvalidState("the checkpoint's readings of each user are damaged")
        self._counted = Counter(counted)
