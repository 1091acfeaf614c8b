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
from server_node.reassembly import STALE_AFTER_CHUNKS, WAITING_UPDATES_MAX, Reassembly
from shoal.algorithms.registry import load_algorithm, rounds_algorithm
from shoal.config.limits import UPDATE_BYTES_MAX, UPDATE_HEADERS_BYTES_MAX
from shoal.config.privacy import privacy_mode
from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.chunking import split_update
from shoal.protocol.codec import pack, unpack
from shoal.protocol.messages import CHUNKS_MAX, Snapshot, Update
from tests.server_node.rounds_harness import contract_with, rows_of
from tests.server_node.server_fixture import ServerFixture, models_of, states_of
from tests.small_plant import an_update, forged, plant

CONTRACT = plant()


@pytest.fixture
def site(tmp_path: Path) -> ServerFixture:
    return ServerFixture(tmp_path)


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


def reasons(site: ServerFixture) -> list[str]:
    return [dict(record.headers)["reason"].decode() for record in site.rejected().values()]


def test_an_update_in_chunks_is_absorbed_as_one_when_its_last_chunk_is_here(site: ServerFixture) -> None:
    update = large("attic")
    *first, last = in_chunks(update)
    site.send(*first)
    site.run()
    assert site.snapshots() == []
    site.send(last)
    in_pieces = site.run()
    (snapshot,) = site.snapshots()
    assert (snapshot.updates, snapshot.readings) == (1, update.readings)
    other = ServerFixture(site.folder / "whole")
    other.send(update)
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
    records: list[Update] = []
    whole: list[Update] = []
    rest = [(client, False, 0) for client, chunks in enumerate(left) for _ in chunks]
    for client, again, place in [*steps, *rest]:
        if again and sent[client]:
            records.append(sent[client][place % len(sent[client])])
        elif left[client]:
            chunk = left[client].pop(place % len(left[client]))
            records.append(chunk)
            sent[client].append(chunk)
            if not left[client]:
                whole.append(updates[client])
    # Where a sync costs nothing, if there is such a place.
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        site, plain = (
            ServerFixture(Path(folder) / "chunks", batch_updates_max=batch),
            ServerFixture(Path(folder) / "whole"),
        )
        site.send(*records)
        plain.send(*whole)
        done = False
        while not done:
            with site.server() as server:
                done = not all(server.step() for _ in range(stops))
        wanted = plain.run()
        with site.server() as server, plain.server() as other:
            assert models_of(server) == wanted
            assert server.models()["clusters"].clients.totals() == other.models()["clusters"].clients.totals()
        assert site.rejected() == {}
        site.delete_checkpoint()
        assert site.run(rebuild=True) == wanted


def test_waiting_chunks_are_restored_to_the_bit(site: ServerFixture) -> None:
    site.send(*in_chunks(large("attic"))[:-1], in_chunks(large("cellar"))[1])
    with site.server() as server:
        server.step()
        before = server._reassembly.state()
    with site.server() as server:
        assert pack(server._reassembly.state()) == pack(before)
        assert len(server._reassembly) == 2
        assert server.metrics.registry.get_sample_value("shoal_partial_updates") == 0.0, "nothing came yet"
    site.send(in_chunks(large("cellar"))[0])
    with site.server() as server:
        server.step()
        assert server.metrics.registry.get_sample_value("shoal_partial_updates") == 2.0
        assert server.metrics.registry.get_sample_value("shoal_updates_total", {"result": "chunk"}) == 1.0


@pytest.mark.parametrize("broken", [{}, {"received": 1}, {"received": 1, "waiting": [["clusters", "attic", 1, []]]}])
def test_damaged_waiting_chunks_are_rejected(broken: dict[str, Any]) -> None:
    with pytest.raises(InvalidState, match="updates in chunks are damaged"):
        Reassembly().restore(broken)


def test_an_incomplete_update_is_dropped_and_logged_when_the_next_one_comes(
    site: ServerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, *_ = in_chunks(large("attic"))
    site.send(first, second, large("cellar"), large("attic", 2))
    with caplog.at_level(logging.WARNING, "shoal"), site.server() as server:
        while server.step():
            pass
        assert len(server._reassembly) == 0
        count = server.metrics.registry.get_sample_value("shoal_updates_total", {"result": "incomplete"})
    logged = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "update_incomplete"]
    wanted = len(in_chunks(large("attic")))
    assert logged == [{"model": "clusters", "client": "attic", "sequence": 1, "chunks": 2, "wanted": wanted}]
    assert count == 1.0
    assert site.snapshots()[-1].updates == 2
    assert site.rejected() == {}


def test_chunks_repeated_in_order_complete_every_update(
    site: ServerFixture,
) -> None:
    updates = [large("attic", sequence) for sequence in (1, 2, 3)]
    chunked = [in_chunks(update) for update in updates]
    site.send(chunked[0][0], chunked[1][0], chunked[1][1], chunked[2][-1])
    site.send(*chunked[0], *chunked[1], *chunked[2])
    plain = ServerFixture(site.folder / "whole")
    plain.send(*updates)
    assert site.run() == plain.run()
    assert site.snapshots()[-1].updates == 3
    assert site.rejected() == {}


def test_chunks_of_an_absorbed_update_change_nothing(site: ServerFixture) -> None:
    site.send(*in_chunks(large("attic")), *in_chunks(large("cellar"))[:-1])
    with site.server() as server:
        server.step()
        before = states_of(server) | {"reassembly": pack(server._reassembly.state())}
    site.send(*in_chunks(large("attic")))
    with site.server() as server:
        server.step()
        assert states_of(server) | {"reassembly": pack(server._reassembly.state())} == before
        repeated = server.metrics.registry.get_sample_value("shoal_updates_total", {"result": "repeated"})
    assert repeated == len(in_chunks(large("attic")))


def test_answers_in_chunks_close_a_round_as_whole_ones_do(tmp_path: Path) -> None:
    contract = contract_with(options={"clusters": 30}, wake_s=86400, deadline_s=86400)
    outcomes = []
    for name in ("chunks", "whole"):
        (tmp_path / name).mkdir()
        site = ServerFixture(tmp_path / name, contract)
        step(site)
        requested = site.snapshots()[-1]
        answer = answer_to(site, requested)
        site.send(*(in_chunks(answer) if name == "chunks" else [answer]))
        if name == "chunks":
            site.send(in_chunks(answer)[1])
        step(site)
        assert site.rejected() == {}
        outcomes.append(site.snapshots()[-1])
        assert outcomes[-1].round == (requested.round or 0) + 1
    chunks, whole = outcomes
    assert (chunks.round, chunks.arrays.keys()) == (whole.round, whole.arrays.keys())
    assert all(np.array_equal(chunks.arrays[array], whole.arrays[array]) for array in whole.arrays)


def step(site: ServerFixture) -> None:
    with site.server() as server:
        server.step()


def answer_to(site: ServerFixture, requested: Snapshot) -> Update:
    return Update(
        federation=site.contract.federation,
        contract=site.contract.digest,
        model="heaps",
        algorithm="kmeans",
        client="attic",
        sequence=1,
        readings=60,
        privacy=privacy_mode(site.contract).statement(),
        arrays=rounds_algorithm("kmeans").answer(requested.arrays, rows_of(1)),
        made_at=site.clock(),
        round=requested.round,
    )


# Invalid chunks.


@pytest.mark.parametrize(
    ("chunk", "chunks"),
    [(1, 10**9), (1, CHUNKS_MAX + 1), (3, 2), (0, 2), (1, 0), (1, -1), (1.0, 2), (True, 2), (1, None), (2**64 - 1, 2)],
)
def test_invalid_chunk_numbers_are_rejected(site: ServerFixture, chunk: Any, chunks: Any) -> None:
    site.publish(("clusters", forged(large("attic"), chunk=chunk, chunks=chunks), Update.headers()))
    with site.server() as server:
        server.step()
        assert len(server._reassembly) == 0
    assert reasons(site) == ["chunks"]


CONTRADICTIONS: list[dict[str, Any]] = [
    {"chunks": 99},
    {"readings": 1},
    {"made_at": 1e9 + 1},
    {"newest_reading_at": None},
    {"round": 7},
]


@pytest.mark.parametrize("change", CONTRADICTIONS, ids=lambda change: next(iter(change)))
def test_a_chunk_that_contradicts_the_others_is_rejected_and_the_update_completes_without_it(
    site: ServerFixture, change: dict[str, Any]
) -> None:
    first, *others = in_chunks(large("attic"))
    contradiction = replace(others[0], **change)
    site.send(first, contradiction, *others)
    plain = ServerFixture(site.folder / "whole")
    plain.send(large("attic"))
    assert site.run() == plain.run()
    assert reasons(site) == ["chunks"]
    assert [record.value for record in site.rejected().values()] == [contradiction.encode()]


def test_another_chunk_with_the_same_number_is_rejected(site: ServerFixture) -> None:
    first, *others = in_chunks(large("attic"))
    site.send(first, replace(first, arrays=others[0].arrays), *others)
    site.run()
    assert reasons(site) == ["chunks"]
    assert site.snapshots()[-1].updates == 1


def test_an_invalid_sequence_number_is_rejected_with_its_first_chunk(site: ServerFixture) -> None:
    site.send(large("attic"), in_chunks(large("attic", AHEAD_MAX + 10))[0])
    with site.server() as server:
        server.step()
        assert len(server._reassembly) == 0
    assert reasons(site) == ["sequence"]


def test_chunks_that_join_to_an_oversized_update_are_rejected(
    site: ServerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.protocol.validation.ROWS_MAX", 20)
    chunks = in_chunks(large("attic"))
    site.send(*chunks)
    with site.server() as server:
        server.step()
        assert len(server._reassembly) == 0
    assert reasons(site) == ["oversized"]


# Bounds.


def tiny(client: str, sequence: int = 1, chunks: int = 2) -> Update:
    few = {name: array[:1] for name, array in FIRST.arrays.items()}
    return replace(FIRST, client=client, sequence=sequence, arrays=few, chunks=chunks)


FIRST = large("attic")


def take_all(reassembly: Reassembly, chunks: Sequence[Update]) -> int:
    """Take them; how many were refused."""
    rejected = 0
    for chunk in chunks:
        try:
            reassembly.take(chunk, chunk.encode())
        except MessageRejected as wrong:
            rejected += wrong.reason == "chunks"
    return rejected


def test_chunks_of_too_many_clients_are_rejected_and_memory_stays_bounded() -> None:
    reassembly = Reassembly()
    n = WAITING_UPDATES_MAX + 2000
    rejected = take_all(reassembly, [tiny(f"c{n}") for n in range(n)])
    dropped = reassembly.collect_incomplete()
    assert (len(reassembly), rejected, len(dropped)) == (
        WAITING_UPDATES_MAX,
        n - WAITING_UPDATES_MAX - len(dropped),
        n - WAITING_UPDATES_MAX - rejected,
    )
    assert rejected > 0
    state = pack(reassembly.state())
    assert len(state) < WAITING_UPDATES_MAX * 1000
    again = Reassembly()
    again.restore(unpack(state, 10**9))
    assert pack(again.state()) == state
    assert take_all(again, [tiny("honest")]) == take_all(reassembly, [tiny("honest")])
    assert pack(again.state()) == pack(reassembly.state())


def test_an_update_that_progresses_is_never_dropped_for_others() -> None:
    reassembly = Reassembly()
    chunks = in_chunks(large("attic"))
    assert reassembly.take(chunks[0], chunks[0].encode()) is None
    for number, chunk in enumerate(chunks[1:], start=1):
        take_all(reassembly, [tiny(f"c{number}-{n}") for n in range(STALE_AFTER_CHUNKS - 1)])
        whole = reassembly.take(chunk, chunk.encode())
    assert whole is not None
    assert whole.encode() == large("attic").encode()
    dropped = {update.client for update in reassembly.collect_incomplete()}
    assert "attic" not in dropped
    assert len(dropped) > STALE_AFTER_CHUNKS // 2


def test_the_bytes_of_all_waiting_chunks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    reassembly = Reassembly()
    size = len(tiny("c0").encode())
    monkeypatch.setattr("server_node.reassembly.WAITING_BYTES_MAX", 10 * size)
    assert take_all(reassembly, [tiny(f"c{n}") for n in range(15)]) == 5
    assert take_all(reassembly, [tiny("c0"), tiny("c9")]) == 0, "what is here already needs no site"
    assert take_all(reassembly, [tiny("c0", sequence=2)]) == 0, "it takes the place of the update before it"
    assert len(reassembly) == 10


def test_the_chunks_of_one_update_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third, *_ = in_chunks(large("attic"))
    monkeypatch.setattr("server_node.reassembly.UPDATE_BYTES_MAX", len(first.encode()) + len(second.encode()) + 9)
    reassembly = Reassembly()
    reassembly.take(first, first.encode())
    reassembly.take(second, second.encode())
    with pytest.raises(MessageRejected, match=r"oversized"):
        reassembly.take(third, third.encode())
    assert UPDATE_BYTES_MAX < 900 * 1024 * 1024 // 10, "a checkpoint has site for many"


def test_models_keep_their_chunks_apart(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path, plant(models=("clusters", "others")))
    update = an_update(site.contract, rows=300)
    mine, yours = in_chunks(update), in_chunks(replace(update, model="others"))
    site.send(*(chunk for pair in zip(mine, yours, strict=True) for chunk in pair))
    plain = ServerFixture(tmp_path / "whole", site.contract)
    plain.send(update, replace(update, model="others"))
    assert site.run() == plain.run()
    assert site.rejected() == {}
