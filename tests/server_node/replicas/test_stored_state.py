"""A state of any size is kept in records that the changelog accepts."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.server_node.replicas.state_store import (
    CHANGELOG_RECORD_BYTES_MAX,
    PART_BYTES,
    load_state,
    save_state,
)


class Kept(dict[Any, Any]):
    """A store in memory, with the methods of the one that Quix Streams gives."""

    def get_bytes(self, key: Any, default: Any = None) -> Any:
        return self.get(key, default)

    set = set_bytes = dict.__setitem__
    delete = dict.__delitem__


def test_an_empty_store_has_no_state() -> None:
    assert load_state(Kept()) is None


@pytest.mark.parametrize(
    "size", [1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 5 * PART_BYTES + 7]
)
def test_a_state_is_read_as_it_was_written(size: int) -> None:
    store = Kept()
    state = bytes(number % 251 for number in range(size))
    save_state(store, state)
    assert load_state(store) == state
    assert max(len(value) for value in store.values() if isinstance(value, bytes)) <= PART_BYTES


def test_nothing_is_left_of_a_larger_state_before() -> None:
    store = Kept()
    save_state(store, bytes(4 * PART_BYTES))
    save_state(store, b"small")
    assert load_state(store) == b"small"
    assert len(store) == 2


def test_a_part_fits_into_a_record_of_the_changelog_with_its_key() -> None:
    assert PART_BYTES + 64 * 1024 < CHANGELOG_RECORD_BYTES_MAX
