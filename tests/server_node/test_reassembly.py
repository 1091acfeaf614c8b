"""Updates in chunks: whatever way the chunks come, the model is that of the whole updates; what is kept is bounded."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server_node.models.clients import AHEAD_MAX
from server_node.reassembly import PATIENCE_CHUNKS, WAITING_MAX, Reassembly
from shoal.algorithms.registry import load_algorithm, rounds_algorithm
from shoal.config.limits import UPDATE_BYTES_MAX, UPDATE_HEADERS_BYTES_MAX
from shoal.config.privacy_terms import privacy_terms_of
from shoal.errors import InvalidState, MessageRejected
from shoal.privacy import expected_statement
from shoal.protocol.chunking import split_update
from shoal.protocol.codec import pack, unpack
from shoal.protocol.messages import CHUNKS_MAX, Snapshot, Update
from tests.server_node.rounds_driving import contract_with, rows_of
from tests.server_node.server_fixture import Room, models_of, remembered
from tests.small_plant import an_update, forged, plant

CONTRACT = plant()


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def in_chunks(update: Update, nodes_each: int = 9) -> list[Update]:
    """The update in chunks of at most so many nodes, as a topic with a small limit makes them."""
    empty = {name: array[:0] for name, array in update.arrays.items()}
    node = sum(array[:1].nbytes for array in update.arrays.values())
    record = UPDATE_HEADERS_BYTES_MAX + len(replace(update, arrays=empty).encode()) + 32 + nodes_each * node
    chunks = split_update(update, load_algorithm(update.algorithm).update, record)
    assert len(chunks) > 2
    return chunks


@cache
def large(client: str, sequence: int = 1) -> Update:
    return an_update(CONTRACT, client, sequence, rows=300)


def reasons(room: Room) -> list[str]:
    return [dict(record.headers)["reason"].decode() for record in room.rejected().values()]


def test_an_update_in_chunks_is_absorbed_as_one_when_its_last_chunk_is_here(room: Room) -> None:
    update = large("attic")
    *first, last = in_chunks(update)
    room.say(*first)
    room.run()
    assert room.snapshots() == []
    room.say(last)
    in_pieces = room.run()
    (snapshot,) = room.snapshots()
    assert (snapshot.updates, snapshot.readings) == (1, update.readings)
    other = Room(room.folder / "whole")
    other.folder.mkdir()
    other.say(update)
    assert other.run() == in_pieces


STEPS = st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 9)), max_size=60)


@settings(max_examples=20)
@given(steps=STEPS, batch=st.integers(1, 5), stops=st.integers(1, 9))
def test_chunks_of_several_clients_in_any_order_repeated_and_with_restarts_give_the_model_of_the_whole(
    steps: list[tuple[int, bool, int]], batch: int, stops: int
) -> None:
    updates = [large(client) for client in ("attic", "cellar", "garden")]
    left = [in_chunks(update) for update in updates]
    sent: list[list[Update]] = [[], [], []]
    said: list[Update] = []
    whole: list[Update] = []
    rest = [(client, False, 0) for client, chunks in enumerate(left) for _ in chunks]
    for client, again, place in [*steps, *rest]:
        if again and sent[client]:
            said.append(sent[client][place % len(sent[client])])
        elif left[client]:
            chunk = left[client].pop(place % len(left[client]))
            said.append(chunk)
            sent[client].append(chunk)
            if not left[client]:
                whole.append(updates[client])
    # Where a sync costs nothing, if there is such a place.
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        room, plain = Room(Path(folder) / "chunks", batch_updates_max=batch), Room(Path(folder) / "whole")
        room.folder.mkdir()
        plain.folder.mkdir()
        room.say(*said)
        plain.say(*whole)
        done = False
        while not done:
            with room.server() as server:
                done = not all(server.step() for _ in range(stops))
        wanted = plain.run()
        with room.server() as server, plain.server() as other:
            assert models_of(server) == wanted
            assert server.models()["clusters"].clients.totals() == other.models()["clusters"].clients.totals()
        assert room.rejected() == {}
        room.forget()
        assert room.run(rebuild=True) == wanted


def test_what_waits_is_remembered_to_the_bit(room: Room) -> None:
    room.say(*in_chunks(large("attic"))[:-1], in_chunks(large("cellar"))[1])
    with room.server() as server:
        server.step()
        before = server._joining.state()
    with room.server() as server:
        assert pack(server._joining.state()) == pack(before)
        assert len(server._joining) == 2
        assert server.metrics.registry.get_sample_value("shoal_partial_updates") == 0.0, "nothing came yet"
    room.say(in_chunks(large("cellar"))[0])
    with room.server() as server:
        server.step()
        assert server.metrics.registry.get_sample_value("shoal_partial_updates") == 2.0
        assert server.metrics.registry.get_sample_value("shoal_updates_total", {"result": "chunk"}) == 1.0


def test_a_checkpoint_from_before_there_were_chunks_goes_on(room: Room) -> None:
    room.say(large("attic"))
    with room.server() as server:
        server.step()
        state = server._checkpoint.load()
        assert state is not None
        del state["joining"]
        server._checkpoint.save(state)
    room.say(large("attic", 2))
    room.run()
    assert room.snapshots()[-1].updates == 2


@pytest.mark.parametrize("broken", [{}, {"came": 1}, {"came": 1, "waiting": [["clusters", "attic", 1, []]]}])
def test_damage_to_what_waits_is_told(broken: dict[str, Any]) -> None:
    with pytest.raises(InvalidState, match="updates in chunks is damaged"):
        Reassembly(lambda *_: None).restore(broken)


def test_an_update_that_never_becomes_whole_goes_when_the_next_one_comes_and_is_told(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, *_ = in_chunks(large("attic"))
    room.say(first, second, large("cellar"), large("attic", 2))
    with caplog.at_level(logging.WARNING, "shoal"), room.server() as server:
        while server.step():
            pass
        assert len(server._joining) == 0
        count = server.metrics.registry.get_sample_value("shoal_updates_total", {"result": "incomplete"})
    told = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "update_incomplete"]
    wanted = len(in_chunks(large("attic")))
    assert told == [{"model": "clusters", "client": "attic", "sequence": 1, "chunks": 2, "wanted": wanted}]
    assert count == 1.0
    assert room.snapshots()[-1].updates == 2
    assert room.rejected() == {}


def test_a_client_that_repeats_its_words_in_order_is_heard_whole_whatever_came_the_first_time(room: Room) -> None:
    updates = [large("attic", sequence) for sequence in (1, 2, 3)]
    words = [in_chunks(update) for update in updates]
    room.say(words[0][0], words[1][0], words[1][1], words[2][-1])
    room.say(*words[0], *words[1], *words[2])
    plain = Room(room.folder / "whole")
    plain.folder.mkdir()
    plain.say(*updates)
    assert room.run() == plain.run()
    assert room.snapshots()[-1].updates == 3
    assert room.rejected() == {}


def test_chunks_of_an_update_that_was_heard_change_nothing(room: Room) -> None:
    room.say(*in_chunks(large("attic")), *in_chunks(large("cellar"))[:-1])
    with room.server() as server:
        server.step()
        before = remembered(server) | {"joining": pack(server._joining.state())}
    room.say(*in_chunks(large("attic")))
    with room.server() as server:
        server.step()
        assert remembered(server) | {"joining": pack(server._joining.state())} == before
        repeated = server.metrics.registry.get_sample_value("shoal_updates_total", {"result": "repeated"})
    assert repeated == len(in_chunks(large("attic")))


def test_answers_in_chunks_close_a_round_as_whole_ones_do(tmp_path: Path) -> None:
    contract = contract_with(options={"clusters": 30}, wake_s=86400, deadline_s=86400)
    outcomes = []
    for name in ("chunks", "whole"):
        (tmp_path / name).mkdir()
        room = Room(tmp_path / name, contract)
        step(room)
        called = room.snapshots()[-1]
        answer = answer_to(room, called)
        room.say(*(in_chunks(answer) if name == "chunks" else [answer]))
        if name == "chunks":
            room.say(in_chunks(answer)[1])
        step(room)
        assert room.rejected() == {}
        outcomes.append(room.snapshots()[-1])
        assert outcomes[-1].round == (called.round or 0) + 1
    chunks, whole = outcomes
    assert (chunks.round, chunks.arrays.keys()) == (whole.round, whole.arrays.keys())
    assert all(np.array_equal(chunks.arrays[array], whole.arrays[array]) for array in whole.arrays)


def step(room: Room) -> None:
    with room.server() as server:
        server.step()


def answer_to(room: Room, called: Snapshot) -> Update:
    return Update(
        federation=room.contract.federation,
        contract=room.contract.digest,
        model="heaps",
        algorithm="kmeans",
        client="attic",
        sequence=1,
        readings=60,
        privacy=expected_statement(privacy_terms_of(room.contract)),
        arrays=rounds_algorithm("kmeans").answer(called.arrays, rows_of(1)),
        made_at=room.clock(),
        round=called.round,
    )


# What cannot be true.


@pytest.mark.parametrize(
    ("chunk", "chunks"),
    [(1, 10**9), (1, CHUNKS_MAX + 1), (3, 2), (0, 2), (1, 0), (1, -1), (1.0, 2), (True, 2), (1, None), (2**64 - 1, 2)],
)
def test_chunks_that_cannot_be_are_refused_at_the_border(room: Room, chunk: Any, chunks: Any) -> None:
    room.publish(("clusters", forged(large("attic"), chunk=chunk, chunks=chunks), Update.headers()))
    with room.server() as server:
        server.step()
        assert len(server._joining) == 0
    assert reasons(room) == ["chunks"]


CONTRADICTIONS: list[dict[str, Any]] = [
    {"chunks": 99},
    {"readings": 1},
    {"made_at": 1e9 + 1},
    {"newest_reading_at": None},
    {"round": 7},
]


@pytest.mark.parametrize("change", CONTRADICTIONS, ids=lambda change: next(iter(change)))
def test_a_chunk_that_contradicts_the_others_is_set_aside_and_the_update_completes_without_it(
    room: Room, change: dict[str, Any]
) -> None:
    first, *others = in_chunks(large("attic"))
    contradiction = replace(others[0], **change)
    room.say(first, contradiction, *others)
    plain = Room(room.folder / "whole")
    plain.folder.mkdir()
    plain.say(large("attic"))
    assert room.run() == plain.run()
    assert reasons(room) == ["chunks"]
    assert [record.value for record in room.rejected().values()] == [contradiction.encode()]


def test_another_chunk_under_the_same_number_is_set_aside(room: Room) -> None:
    first, *others = in_chunks(large("attic"))
    room.say(first, replace(first, arrays=others[0].arrays), *others)
    room.run()
    assert reasons(room) == ["chunks"]
    assert room.snapshots()[-1].updates == 1


def test_a_sequence_number_that_cannot_be_is_refused_with_its_first_part(room: Room) -> None:
    room.say(large("attic"), in_chunks(large("attic", AHEAD_MAX + 10))[0])
    with room.server() as server:
        server.step()
        assert len(server._joining) == 0
    assert reasons(room) == ["sequence"]


def test_chunks_that_are_together_more_than_an_update_may_be_are_refused(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.protocol.validation.ROWS_MAX", 20)
    chunks = in_chunks(large("attic"))
    room.say(*chunks)
    with room.server() as server:
        server.step()
        assert len(server._joining) == 0
    assert reasons(room) == ["oversized"]


# Bounds.


def tiny(client: str, sequence: int = 1, chunks: int = 2) -> Update:
    few = {name: array[:1] for name, array in FIRST.arrays.items()}
    return replace(FIRST, client=client, sequence=sequence, arrays=few, chunks=chunks)


FIRST = large("attic")


def take_all(joining: Reassembly, chunks: Sequence[Update]) -> int:
    """Take them; how many were refused."""
    rejected = 0
    for chunk in chunks:
        try:
            joining.take(chunk, chunk.encode())
        except MessageRejected as wrong:
            rejected += wrong.reason == "chunks"
    return rejected


def test_many_clients_with_one_chunk_each_are_refused_where_there_is_no_room_and_memory_stays_bounded() -> None:
    dropped: list[str] = []
    joining = Reassembly(lambda model, client, *_: dropped.append(client))
    n = WAITING_MAX + 2000
    rejected = take_all(joining, [tiny(f"c{n}") for n in range(n)])
    assert (len(joining), rejected, len(dropped)) == (
        WAITING_MAX,
        n - WAITING_MAX - len(dropped),
        n - WAITING_MAX - rejected,
    )
    assert rejected > 0
    state = pack(joining.state())
    assert len(state) < WAITING_MAX * 1000
    again = Reassembly(lambda *_: None)
    again.restore(unpack(state, 10**9))
    assert pack(again.state()) == state
    assert take_all(again, [tiny("honest")]) == take_all(joining, [tiny("honest")])
    assert pack(again.state()) == pack(joining.state())


def test_who_goes_on_is_never_dropped_for_others() -> None:
    dropped: list[str] = []
    joining = Reassembly(lambda model, client, *_: dropped.append(client))
    chunks = in_chunks(large("attic"))
    assert joining.take(chunks[0], chunks[0].encode()) is None
    for number, chunk in enumerate(chunks[1:], start=1):
        take_all(joining, [tiny(f"c{number}-{n}") for n in range(PATIENCE_CHUNKS - 1)])
        whole = joining.take(chunk, chunk.encode())
    assert whole is not None
    assert whole.encode() == large("attic").encode()
    assert "attic" not in dropped
    assert len(dropped) > PATIENCE_CHUNKS // 2


def test_the_bytes_of_all_that_waits_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    joining = Reassembly(lambda *_: None)
    size = len(tiny("c0").encode())
    monkeypatch.setattr("server_node.reassembly.WAITING_BYTES_MAX", 10 * size)
    assert take_all(joining, [tiny(f"c{n}") for n in range(15)]) == 5
    assert take_all(joining, [tiny("c0"), tiny("c9")]) == 0, "what is here already needs no room"
    assert take_all(joining, [tiny("c0", sequence=2)]) == 0, "it takes the place of the update before it"
    assert len(joining) == 10


def test_the_chunks_of_one_update_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third, *_ = in_chunks(large("attic"))
    monkeypatch.setattr("server_node.reassembly.UPDATE_BYTES_MAX", len(first.encode()) + len(second.encode()) + 9)
    joining = Reassembly(lambda *_: None)
    joining.take(first, first.encode())
    joining.take(second, second.encode())
    with pytest.raises(MessageRejected, match=r"oversized"):
        joining.take(third, third.encode())
    assert UPDATE_BYTES_MAX < 900 * 1024 * 1024 // 10, "a checkpoint has room for many"


def test_models_keep_their_chunks_apart(tmp_path: Path) -> None:
    room = Room(tmp_path, plant(models=("clusters", "others")))
    update = an_update(room.contract, rows=300)
    mine, yours = in_chunks(update), in_chunks(replace(update, model="others"))
    room.say(*(chunk for pair in zip(mine, yours, strict=True) for chunk in pair))
    plain = Room(tmp_path / "whole", room.contract)
    plain.folder.mkdir()
    plain.say(update, replace(update, model="others"))
    assert room.run() == plain.run()
    assert room.rejected() == {}
