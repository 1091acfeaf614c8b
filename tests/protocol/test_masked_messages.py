"""Messages of masked counts: the open round names the newest window of each client within one
record."""

from __future__ import annotations

import pytest

from shoal.config.limits import UPDATE_RECORD_BYTES_MAX
from shoal.errors import MessageRejected
from shoal.protocol import masked
from shoal.protocol.masked import PLAN_BYTES, WINDOW_MAX, OpenRound, packed_answered


def opened(answered: dict[str, int]) -> OpenRound:
    return OpenRound("plant", "0" * 64, "clusters", 1, bytes(PLAN_BYTES), packed_answered(answered))


def test_every_client_finds_its_window_and_a_stranger_none() -> None:
    windows = {f"client-{number}": number * 7 for number in range(1000)} | {"last": WINDOW_MAX}
    found = OpenRound.decode(opened(windows).encode(), OpenRound.headers())
    assert all(found.answered_window(client) == window for client, window in windows.items())
    assert found.answered_window("nobody") == -1
    assert opened({}).answered_window("client-0") == -1


def test_as_many_clients_as_a_batch_may_have_fit_into_one_record_and_the_newest_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(bytes(9)) * masked.ANSWERED_MAX + 1000 < UPDATE_RECORD_BYTES_MAX
    monkeypatch.setattr(masked, "ANSWERED_MAX", 3)
    found = opened({"old": 1, "a": 2, "b": 3, "c": 4})
    assert len(found.answered) == 3 * 9
    assert [found.answered_window(client) for client in ("old", "a", "b", "c")] == [-1, 2, 3, 4]


def test_a_table_cut_off_within_a_client_is_no_open_round() -> None:
    whole = opened({"a": 1, "b": 2})
    with pytest.raises(MessageRejected):
        OpenRound("plant", "0" * 64, "clusters", 1, bytes(PLAN_BYTES), whole.answered[:-1])
