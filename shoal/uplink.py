"""Remember, then speak: words go into the checkpoint with the state they belong to, and only then into the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.checkpoint import Checkpoint, Word
from shoal.transports.contract import Log


class Uplink:
    """Publishes what the checkpoint remembers, in order, at least once; readers drop what they have seen."""

    def __init__(self, checkpoint: Checkpoint, log: Log) -> None:
        self._checkpoint = checkpoint
        self._log = log
        self._published_up_to = 0

    def remember(self, state: dict[str, Any], words: Sequence[Word]) -> None:
        """Save the state and its words in one transaction, and forget the words known to be stored."""
        self._checkpoint.save(state, words, self._published_up_to)

    def speak(self) -> int:
        """Publish every remembered word that is not known to be stored; how many. Raises as the log does.

        A word repeated after a kill is the same bytes again. `LogUnavailable` leaves everything remembered.
        """
        words = self._checkpoint.unpublished(self._published_up_to)
        for _, word in words:
            self._log.publish(word.topic, word.value, word.key, word.headers)
        if words:
            self._log.flush()
            self._published_up_to = words[-1][0]
        return len(words)
