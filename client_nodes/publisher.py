"""What a client says: checked as the server will check it, and cut into chunks where one record would be too large."""

from __future__ import annotations

from collections.abc import Callable

from shoal.algorithms.registry import load_algorithm
from shoal.config.contract import Contract
from shoal.protocol.chunking import split_update
from shoal.protocol.messages import Update
from shoal.protocol.signatures import HEADER, signature
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import OutboxRecord
from shoal.transports.base import Headers

Said = list[OutboxRecord]
"""the words of one update: one, or one for each of its chunks"""


class Publisher:
    """Turns updates into words to be remembered and then said."""

    def __init__(self, contract: Contract, border: Validator, record_bytes_max: int) -> None:
        """`record_bytes_max` is what the topic of updates takes."""
        self._topic = contract.updates_topic
        self._border = border
        self._record_bytes_max = record_bytes_max

    def say(self, update: Update) -> Said:
        """Raises `MessageRejected`."""
        # What the server would refuse is not said in the first place: a fault shows where it is made.
        self._border.check_update(update)
        chunks = split_update(update, load_algorithm(update.algorithm).update, self._record_bytes_max)
        return [OutboxRecord(self._topic, chunk.encode(), update.model.encode(), Update.headers()) for chunk in chunks]


def signer(key: bytes | None) -> Callable[[OutboxRecord], Headers]:
    """What a word is signed with when it is said; nothing without a key."""
    if key is None:
        return lambda _: ()
    return lambda word: ((HEADER, signature(key, word.topic, word.value or b"")),)
