"""Updates in chunks: in whatever order the chunks come, the model is that of the whole updates."""

from __future__ import annotations

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.algorithms.registry import rounds_algorithm
from shoal.config.resolved import resolve
from shoal.errors import InvalidState
from shoal.protocol.codec import pack
from shoal.protocol.messages import Snapshot, Update
from shoal.server_node.ingest.reassembly import Reassembly
from tests.examples import examples
from tests.server_node.chunked_updates import in_chunks, large
from tests.server_node.rounds_harness import contract_with, rows_of
from tests.server_node.server_fixture import ServerFixture, models_of, states_of


@pytest.fixture
def site(tmp_path: Path) -> ServerFixture:
    return ServerFixture(tmp_path)


def test_an_update_in_chunks_is_absorbed_as_one_when_its_last_chunk_is_here(
    site: ServerFixture,
) -> None:
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


@settings(max_examples=examples(20))
@given(steps=STEPS, batch=st.integers(1, 5), stops=st.integers(1, 9))
def test_chunks_in_any_order_repeated_and_with_restarts_give_the_model_of_the_whole(
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
        site = ServerFixture(Path(folder) / "chunks", batch_updates_max=batch)
        plain = ServerFixture(Path(folder) / "whole")
        site.send(*records)
        plain.send(*whole)
        done = False
        while not done:
            with site.server() as server:
                done = not all(server.step() for _ in range(stops))
        wanted = plain.run()
        with site.server() as server, plain.server() as other:
            assert models_of(server) == wanted
            assert (
                server.models()["clusters"].clients.totals()
                == other.models()["clusters"].clients.totals()
            )
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
        assert server.metrics.registry.get_sample_value("shoal_partial_updates") == 0.0, (
            "nothing came yet"
        )
    site.send(in_chunks(large("cellar"))[0])
    with site.server() as server:
        server.step()
        assert server.metrics.registry.get_sample_value("shoal_partial_updates") == 2.0
        assert (
            server.metrics.registry.get_sample_value("shoal_updates_total", {"result": "chunk"})
            == 1.0
        )


WAITING = {"model": "clusters", "client": "attic", "newest": 1, "of_region": False, "values": []}


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ({}, "lacks received"),
        ({"received": 1}, "lacks waiting"),
        ({"received": 1, "waiting": [["clusters", "attic", 1, []]]}, "must be a saved state"),
        ({"received": 1, "waiting": [WAITING]}, "and has none"),
        ({"received": 1, "waiting": [WAITING | {"values": [b"?"]}]}, "in chunks are damaged"),
    ],
)
def test_damaged_waiting_chunks_are_rejected(broken: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidState, match=problem):
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
        count = server.metrics.registry.get_sample_value(
            "shoal_updates_total", {"result": "incomplete"}
        )
    logged = [
        vars(record)["fields"]
        for record in caplog.records
        if record.getMessage() == "update_incomplete"
    ]
    wanted = len(in_chunks(large("attic")))
    assert logged == [
        {"model": "clusters", "client": "attic", "sequence": 1, "chunks": 2, "wanted": wanted}
    ]
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
        repeated = server.metrics.registry.get_sample_value(
            "shoal_updates_total", {"result": "repeated"}
        )
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
        privacy=resolve(site.contract).statement,
        arrays=rounds_algorithm("kmeans").answer(requested.arrays, rows_of(1)),
        made_at=site.clock(),
        round=requested.round,
    )
