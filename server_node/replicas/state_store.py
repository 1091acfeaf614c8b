"""The state of a model in the store of Quix Streams: in parts that the changelog accepts.

Each part is a record of the changelog, and all of them are written in one transaction.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from shoal.config.limits import KIB, UPDATE_RECORD_BYTES_MAX

# Below the 960 KiB of a record, with room for the key, the headers, and what the store adds; and
# below the 1 MiB that brokers accept by default.
PART_BYTES: Final = 768 * KIB
"""bytes of a state in one record of the changelog"""
CHANGELOG_RECORD_BYTES_MAX: Final = UPDATE_RECORD_BYTES_MAX
"""largest record of a changelog: a part, with its key and headers"""
_NUMBER: Final = "parts"
"""key of the number of parts; the parts have their numbers as keys"""


class Store(Protocol):
    """Store that Quix Streams gives a function for the key of its record."""

    def get(self, key: Any, default: Any = None) -> Any: ...

    def get_bytes(self, key: Any, default: Any = None) -> bytes | None: ...

    def set(self, key: Any, value: Any) -> None: ...

    def set_bytes(self, key: Any, value: bytes) -> None: ...

    def delete(self, key: Any) -> None: ...


def load_state(store: Store) -> bytes | None:
    """The state; None if there is none yet."""
    number = store.get(_NUMBER, 0)
    if not number:
        return None
    return b"".join(store.get_bytes(part) or b"" for part in range(number))


def save_state(store: Store, state: bytes) -> None:
    """Replace the state."""
    before = store.get(_NUMBER, 0)
    parts = [state[start : start + PART_BYTES] for start in range(0, len(state), PART_BYTES)]
    for number, part in enumerate(parts):
        store.set_bytes(number, part)
    # Parts of a state that was longer would stay in the changelog for ever.
    for number in range(len(parts), before):
        store.delete(number)
    # Each write is a record of the changelog, and the number rarely changes.
    if len(parts) != before:
        store.set(_NUMBER, len(parts))
