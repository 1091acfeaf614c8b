"""Keeps a model's state in a store of Quix Streams, in parts that are small enough for a record of its changelog.

The parts of one state are written in one transaction, so that they are of the same state always.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from shoal.config.limits import KIB, UPDATE_RECORD_BYTES_MAX

PART_BYTES: Final = 768 * KIB
"""of a state, in one record of the changelog"""
CHANGELOG_RECORD_BYTES_MAX: Final = UPDATE_RECORD_BYTES_MAX
"""largest record of a changelog: a part, with its key and headers"""
_NUMBER: Final = "parts"


class Store(Protocol):
    """What Quix Streams gives a function for the key of its record."""

    def get(self, key: Any, default: Any = None) -> Any: ...

    def get_bytes(self, key: Any, default: Any = None) -> bytes | None: ...

    def set(self, key: Any, value: Any) -> None: ...

    def set_bytes(self, key: Any, value: bytes) -> None: ...

    def delete(self, key: Any) -> None: ...


def load_state(store: Store) -> bytes | None:
    """The state; None if there is none yet."""
    number = store.get(_NUMBER, 0)
    return b"".join(store.get_bytes(part) or b"" for part in range(number)) if number else None


def save_state(store: Store, state: bytes) -> None:
    """Replace the state."""
    before = store.get(_NUMBER, 0)
    parts = [state[start : start + PART_BYTES] for start in range(0, len(state), PART_BYTES)]
    for number, part in enumerate(parts):
        store.set_bytes(number, part)
    for number in range(len(parts), before):
        store.delete(number)
    if len(parts) != before:
        store.set(_NUMBER, len(parts))
