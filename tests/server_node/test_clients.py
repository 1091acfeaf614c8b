"""Sequence numbers and totals of clients: a repeated update changes nothing, a lost one blocks no
client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidState, MessageRejected
from shoal.kernels.constants import COUNT_MAX
from shoal.protocol.codec import pack, unpack
from shoal.protocol.conflicts import (
    AUTHOR_BYTES,
    DIGEST_BYTES,
    INCARNATION_BYTES,
    VALUE_BYTES,
    Mark,
)
from shoal.server_node.models.clients import INTERVAL_UNKNOWN_S, RECENT_MAX, Clients
from shoal.server_node.models.sequences import AHEAD_MAX, Content, SequenceWindow


def saved(window: SequenceWindow) -> SequenceWindow:
    """The window that a checkpoint restores."""
    return SequenceWindow(*unpack(pack(window.state())))


def test_there_are_no_clients_at_first() -> None:
    clients = Clients()
    assert len(clients) == 0
    assert clients.totals() == []
    assert clients.readings_per_s("attic", 0.0) == 0.0
    assert clients.state() == {"known": [], "conflicts": [], "copies": []}


def test_each_number_is_new_once() -> None:
    window = SequenceWindow()
    assert [window.take(n) for n in (1, 1, 2, 1, 2, 3)] == [True, False, True, False, False, True]


@given(st.permutations(list(range(1, 20))), st.integers(0, 30))
def test_in_any_order_every_number_is_taken_once(order: list[int], restart: int) -> None:
    window = SequenceWindow()
    taken = []
    for place, number in enumerate([*order, *order]):
        if place == restart:
            window = saved(window)
        if window.take(number):
            taken.append(number)
    assert taken == order
    assert window.state()[:2] == [20, []]


def test_a_missing_number_does_not_block_a_client() -> None:
    window = SequenceWindow()
    assert window.take(1)
    for number in range(3, 20 * AHEAD_MAX):
        assert window.take(number)
        assert len(window.state()[1]) < AHEAD_MAX
    assert not window.take(2), "too late now"


def test_a_number_may_come_late_within_the_window() -> None:
    window = SequenceWindow()
    window.take(1)
    for number in range(3, AHEAD_MAX + 2):
        window.take(number)
    late = saved(window)
    assert late.take(2)
    assert late.state()[:2] == [AHEAD_MAX + 2, []]
    window.take(AHEAD_MAX + 2)
    assert not window.take(2)


def test_a_number_far_ahead_is_rejected() -> None:
    window = SequenceWindow()
    window.take(1)
    with pytest.raises(MessageRejected, match=f"is more than {AHEAD_MAX} above 1"):
        window.take(AHEAD_MAX + 2)
    assert window.take(AHEAD_MAX + 1)
    with pytest.raises(MessageRejected):
        saved(window).take(COUNT_MAX)


def test_the_first_number_may_be_any() -> None:
    # A log does not reach back for ever: a client may have sent many updates before this server
    # started.
    window = SequenceWindow()
    assert window.take(5 * AHEAD_MAX)
    assert window.take(5 * AHEAD_MAX - 1)
    assert window.take(5 * AHEAD_MAX + 1)
    assert not window.take(4 * AHEAD_MAX)
    with pytest.raises(MessageRejected):
        window.take(7 * AHEAD_MAX)


def test_after_lost_updates_every_client_may_jump_once() -> None:
    clients = Clients()
    for client in ("attic", "cellar"):
        clients.take(client, 1, 10, 0.0)
    clients.allow_jumps()
    clients.restore(unpack(pack(clients.state())))
    assert clients.take("attic", 10**6, 10, 0.0)
    with pytest.raises(MessageRejected):
        clients.take("attic", 10**7, 10, 0.0)
    assert clients.take("cellar", 2, 10, 0.0)


def test_a_rejected_sequence_number_changes_no_state() -> None:
    clients = Clients()
    clients.take("attic", 1, 10, 5.0)
    before = pack(clients.state())
    with pytest.raises(MessageRejected):
        clients.take("attic", 10**9, 10, 6.0)
    assert not clients.take("attic", 1, 10, 7.0)
    assert pack(clients.state()) == before


def test_totals_and_last_times_are_kept_by_client() -> None:
    clients = Clients()
    clients.take("b", 1, 10, 5.0)
    clients.take("a", 1, 7, 6.0)
    clients.take("b", 2, 20, 7.0)
    assert clients.totals() == [("a", 1, 7, 6.0), ("b", 2, 30, 7.0)]
    assert len(clients) == 2


def test_totals_are_capped_at_what_can_be_encoded() -> None:
    clients = Clients()
    for sequence in range(1, 4000):
        clients.take("exaggerating", sequence, COUNT_MAX, 0.0)
    assert clients.totals() == [("exaggerating", 3999, COUNT_MAX, 0.0)]
    pack(clients.state())


def test_everything_but_the_rates_is_restored() -> None:
    clients = Clients()
    for client in ("a", "b"):
        for sequence in (1, 2, 5, 9):
            clients.take(client, sequence, 3, float(sequence))
    for rejected in (7, 5, None):
        clients.note_rejected("a", rejected)
    other = Clients()
    other.restore(unpack(pack(clients.state())))
    assert other.totals() == clients.totals()
    assert (other.rejected("a"), other.rejected("b")) == (
        7,
        None,
    ), "updates may come in another order"
    assert pack(other.state()) == pack(clients.state())
    assert not other.take("a", 9, 3, 0.0)
    assert other.take("a", 3, 3, 0.0)


OPERATIONS: Mapping[str, Callable[[Clients, str, int], object]] = {
    "take": lambda clients, client, number: clients.take(client, number, 5, float(number)),
    "set_readings": lambda clients, client, number: clients.set_readings(client, number),
    "allow_jump": lambda clients, client, number: clients.allow_jump(client),
    "allow_jumps": lambda clients, client, number: clients.allow_jumps(),
    "forget": lambda clients, client, number: clients.forget(client),
}


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(OPERATIONS)), st.sampled_from("ab"), st.integers(1, 9)),
        max_size=30,
    )
)
def test_a_state_that_was_asked_for_often_is_that_of_one_asked_for_once(
    operations: list[tuple[str, str, int]],
) -> None:
    often = Clients()
    once = Clients()
    for name, client, number in operations:
        if name == "set_readings" and client not in once.names():
            continue
        for clients in (often, once):
            OPERATIONS[name](clients, client, number)
        often.state()
    assert pack(often.state()) == pack(once.state())


def test_clients_of_which_nothing_came_are_the_same_parts_of_the_state() -> None:
    clients = Clients()
    clients.take("attic", 1, 5, 1.0)
    clients.take("cellar", 1, 5, 1.0)
    before = clients.state()["known"]
    clients.take("cellar", 2, 5, 2.0)
    after = clients.state()["known"]
    assert [
        ("cellar" in new.value, new is old) for old, new in zip(before, after, strict=True)
    ] in (
        [(True, False), (False, True)],
        [(False, True), (True, False)],
    )


def test_the_order_of_first_updates_does_not_change_the_state() -> None:
    one = Clients()
    other = Clients()
    for clients, order in ((one, "abc"), (other, "cba")):
        for client in order:
            clients.take(client, 1, 1, 0.0)
    assert pack(one.state()) == pack(other.state())


@pytest.mark.parametrize(
    "known",
    [None, [1], [{"a": None}], [{"a": [1, 2, 3]}], [{"a": [[1, 5], []]}], [{"a": [[[1, 5]], []]}]],
)
def test_a_damaged_state_is_rejected(known: Any) -> None:
    with pytest.raises(InvalidState, match="list of clients"):
        Clients().restore({"known": known, "conflicts": [], "copies": []})


# Rates, for people only.


def test_one_update_is_no_rate() -> None:
    clients = Clients()
    clients.take("a", 1, 100, 0.0)
    assert clients.readings_per_s("a", 1.0) == 0.0


def test_a_steady_client_has_its_rate_and_an_inactive_one_has_none() -> None:
    clients = Clients()
    for second in range(0, 100, 10):
        clients.take("a", 1 + second, 50, float(second))
    assert clients.readings_per_s("a", 90.0) == pytest.approx(5.0, rel=0.01)
    assert clients.readings_per_s("a", 1000.0) == 0.0


def test_a_clock_that_stops_or_is_set_back_gives_a_finite_rate() -> None:
    clients = Clients()
    for sequence in (1, 2, 3):
        clients.take("a", sequence, 50, 100.0)
    assert clients.readings_per_s("a", 100.0) > 0
    assert clients.readings_per_s("a", 0.0) >= 0


def test_the_history_for_rates_is_bounded_without_any_query() -> None:
    clients = Clients()
    for sequence in range(1, 3 * RECENT_MAX):
        clients.take("a", sequence, 1, sequence * 10.0)
    assert len(clients._recent["a"]) <= 7
    for sequence in range(3 * RECENT_MAX, 6 * RECENT_MAX):
        clients.take("a", sequence, 1, 1e6)
    assert len(clients._recent["a"]) == RECENT_MAX


def test_the_usual_interval_of_a_client_is_by_its_own_clock_without_outages_and_bursts() -> None:
    clients = Clients()
    times = [0, 3600, 7200, 90_000, 90_001, 90_002, 93_602]
    for sequence, made_at in enumerate(times, 1):
        assert clients.take("hourly", sequence, 1, 1e9, Content(b"", float(made_at)))
        if sequence == 1:
            assert clients.usual_interval_s("hourly") == INTERVAL_UNKNOWN_S
    again = Clients()
    again.restore(unpack(pack(clients.state()), 10**6))
    assert clients.usual_interval_s("hourly") == again.usual_interval_s("hourly") == 3600


def marked(incarnation: int, digest: int = 1, partition: int = 0) -> Content:
    """The content of an update of one process of a client."""
    mark = Mark(bytes([incarnation]) * INCARNATION_BYTES, bytes(VALUE_BYTES), bytes(AUTHOR_BYTES))
    return Content(bytes([digest]) * DIGEST_BYTES, 1e9, mark, partition)


def test_an_older_process_that_publishes_something_new_after_a_newer_one_is_found_once() -> None:
    clients = Clients()
    for sequence, content in enumerate((marked(1), marked(2), marked(2), marked(3)), start=1):
        assert clients.take("attic", sequence, 1, 1e9, content)
        assert not clients.take_copy()
    assert not clients.take("attic", 2, 1, 1e9, marked(1)), (
        "it repeats an update, and publishes nothing new"
    )
    assert not clients.take_copy()
    assert clients.take("attic", 5, 1, 1e9, marked(2))
    assert clients.take_copy()
    (found,) = clients.copies("clusters")
    assert (found.model, found.client, found.sequence, found.older[:1], found.newer[:1]) == (
        "clusters",
        "attic",
        5,
        b"\2",
        b"\3",
    )
    restored = Clients()
    restored.restore(unpack(pack(clients.state())))
    for known in (clients, restored):
        assert known.take("attic", 6, 1, 1e9, marked(2))
        assert not known.take_copy(), "these two are known"
        assert known.take("attic", 7, 1, 1e9, marked(1))
        assert known.take_copy()
    clients.forget("attic")
    assert clients.copies("clusters") == []


def test_a_process_is_found_by_an_update_that_is_refused_too_and_not_across_partitions() -> None:
    clients = Clients()
    for sequence, content in ((1, marked(1)), (2, marked(2))):
        clients.take("attic", sequence, 1, 1e9, content)
    with pytest.raises(MessageRejected, match="another update 2"):
        clients.take("attic", 2, 1, 1e9, marked(1, digest=2))
    assert clients.take_copy()
    moved = Clients()
    for sequence, content in ((1, marked(1)), (2, marked(2, partition=1)), (3, marked(1))):
        moved.take("attic", sequence, 1, 1e9, content)
    assert not moved.take_copy()
