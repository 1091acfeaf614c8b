"""Remember, then speak: words go into the checkpoint with the state they belong to, and only then into the log."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from shoal.runtime.checkpoint import Checkpoint, OutboxRecord
from shoal.transports.base import Headers, Log

REMEMBER_S = 1.0
"""how long what has been learnt and not yet spoken of may be learnt again after a kill: a save makes the disk wait"""


class Outbox:
    """Publishes what the checkpoint remembers, in order, at least once; readers drop what they have seen.

    What is to be said is remembered first, always. What is only learnt may be remembered later: until then it can be
    learnt again from the log, which gives the same.
    """

    def __init__(
        self, checkpoint: Checkpoint, log: Log, sign: Callable[[OutboxRecord], Headers] = lambda _: ()
    ) -> None:
        """`sign` gives headers that a word gets when it is said: a key may change between two lives."""
        self._checkpoint = checkpoint
        self._log = log
        self._sign = sign
        self._published_up_to = 0
        self._unsaved = 0
        self._saved_at = -math.inf

    def is_time(self, taken: int, taken_max: int, now: float) -> bool:
        """Whether to remember now, `taken` more records having been learnt from and perhaps nothing to say.

        It is when there was nothing to take, so there is time for it; when `taken_max` records are not remembered; or
        when the last time was a while ago. Never when everything is remembered.
        """
        self._unsaved += taken
        # A clock that was set back must not make the wait longer than it ever was.
        self._saved_at = min(self._saved_at, now)
        waited = taken == 0 or self._unsaved >= taken_max or now >= self._saved_at + REMEMBER_S
        return self._unsaved > 0 and waited

    def remember(self, state: dict[str, Any], words: Sequence[OutboxRecord], now: float) -> None:
        """Save the state and its words in one transaction, and forget the words known to be stored."""
        self._checkpoint.save(state, words, self._published_up_to)
        self._unsaved, self._saved_at = 0, now

    def speak(self) -> int:
        """Publish every remembered word that is not known to be stored; how many. Raises as the log does.

        A word repeated after a kill is the same bytes again. `LogUnavailable` leaves everything remembered.
        """
        words = self._checkpoint.pending(self._published_up_to)
        for _, word in words:
            self._log.publish(word.topic, word.value, word.key, word.headers + self._sign(word))
        if words:
            self._log.flush()
            self._published_up_to = words[-1][0]
        return len(words)
