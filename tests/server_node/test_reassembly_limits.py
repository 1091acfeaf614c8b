"""Invalid chunks are rejected, and what waits for its other chunks is bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.config.limits import UPDATE_BYTES_MAX
from shoal.errors import MessageRejected
from shoal.protocol.codec import pack, unpack
from shoal.protocol.messages import CHUNKS_MAX, Update
from shoal.server_node.ingest.reassembly import STALE_AFTER_CHUNKS, WAITING_UPDATES_MAX, Reassembly
from shoal.server_node.models.sequences import AHEAD_MAX
from tests.server_node.chunked_updates import in_chunks, large
from tests.server_node.server_fixture import ServerFixture
from tests.small_plant import an_update, forged, plant


@pytest.fixture
def site(tmp_path: Path) -> ServerFixture:
    return ServerFixture(tmp_path)


def reasons(site: ServerFixture) -> list[str]:
    return [dict(record.headers)["reason"].decode() for record in site.rejected().values()]


@pytest.mark.parametrize(
    ("chunk", "chunks"),
    [
        (1, 10**9),
        (1, CHUNKS_MAX + 1),
        (3, 2),
        (0, 2),
        (1, 0),
        (1, -1),
        (1.0, 2),
        (True, 2),
        (1, None),
        (2**64 - 1, 2),
    ],
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
    monkeypatch.setattr("shoal.server_node.ingest.reassembly.WAITING_BYTES_MAX", 10 * size)
    assert take_all(reassembly, [tiny(f"c{n}") for n in range(15)]) == 5
    assert take_all(reassembly, [tiny("c0"), tiny("c9")]) == 0, "what is here already needs no site"
    assert take_all(reassembly, [tiny("c0", sequence=2)]) == 0, (
        "it takes the place of the update before it"
    )
    assert len(reassembly) == 10


def test_the_chunks_of_one_update_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third, *_ = in_chunks(large("attic"))
    monkeypatch.setattr(
        "shoal.server_node.ingest.reassembly.UPDATE_BYTES_MAX",
        len(first.encode()) + len(second.encode()) + 9,
    )
    reassembly = Reassembly()
    reassembly.take(first, first.encode())
    reassembly.take(second, second.encode())
    with pytest.raises(MessageRejected, match=r"oversized"):
        reassembly.take(third, third.encode())
    assert UPDATE_BYTES_MAX < 900 * 1024 * 1024 // 10, "a checkpoint has site for many"


def test_models_keep_their_chunks_apart(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path, plant(models=("clusters", "others")))
    update = an_update(site.contract, rows=300)
    mine = in_chunks(update)
    yours = in_chunks(replace(update, model="others"))
    site.send(*(chunk for pair in zip(mine, yours, strict=True) for chunk in pair))
    plain = ServerFixture(tmp_path / "whole", site.contract)
    plain.send(update, replace(update, model="others"))
    assert site.run() == plain.run()
    assert site.rejected() == {}
