"""Row A6: a client that leaves chunks without the others fills no checkpoint, and takes no room
from honest ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.protocol.codec import pack, unpack
from shoal.protocol.messages import Update
from shoal.server_node.ingest import reassembly
from shoal.server_node.ingest.reassembly import Reassembly
from tests.hostile.keyed_site import KeyedSite
from tests.small_plant import an_update, nodes_at, plant

MODELS = ("clusters", "others", "more")
NODES = 15_000
CONTRACT = plant(models=MODELS)


def chunk(client: str, model: str, number: int = 1, chunks: int = 9) -> Update:
    """One chunk of a large update."""
    arrays = nodes_at(np.random.default_rng(number).random((NODES, 2)))
    return replace(
        an_update(CONTRACT, client), model=model, arrays=arrays, chunk=number, chunks=chunks
    )


SIZE = len(chunk("honest", "clusters").encode()) + 100


def taken(waiting: Reassembly, client: str, model: str, chunks: int) -> None:
    for number in range(1, chunks + 1):
        one = chunk(client, model, number)
        waiting.take(one, one.encode())


def held(waiting: Reassembly) -> dict[tuple[str, str], int]:
    """(client, model) -> chunks that wait."""
    return {
        (update["client"], update["model"]): len(update["values"])
        for update in waiting.state()["waiting"]
    }


@pytest.mark.parametrize("keyed", [False, True])
def test_an_honest_update_writes_nothing_of_the_chunks_that_wait(
    tmp_path: Path, keyed: bool
) -> None:
    site = KeyedSite(tmp_path, keyed, CONTRACT)
    site.send(*(chunk("hoarder", model, number) for model in MODELS for number in (1, 2)))
    with site.server() as node:
        while node.step():
            pass
        site.send(an_update(CONTRACT))
        node.step()
        again = node._checkpoint._split(node._saved.state())
        assert again.added == []
        assert len(again.value) < SIZE
        assert again.parts_size > len(MODELS) * SIZE
        before = node._reassembly.state()
    with site.server() as node:
        assert pack(node._reassembly.state()) == pack(before)
        site.send(chunk("hoarder", "others", 3))
        node.step()
        assert held(node._reassembly)["hoarder", "others"] == 3


def test_the_chunks_of_one_client_are_bounded_over_all_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reassembly, "CLIENT_BYTES_MAX", 4 * SIZE)
    waiting = Reassembly()
    for model in MODELS:
        taken(waiting, "hoarder", model, 2)
    assert held(waiting) == {("hoarder", "others"): 2, ("hoarder", "more"): 2}
    assert [incomplete.model for incomplete in waiting.collect_incomplete()] == ["clusters"]


def test_the_client_with_the_most_bytes_loses_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassembly, "WAITING_BYTES_MAX", 6 * SIZE)
    waiting = Reassembly()
    for model in MODELS[:2]:
        taken(waiting, "hoarder", model, 2)
    taken(waiting, "honest", "clusters", 2)
    again = Reassembly()
    again.restore(unpack(pack(waiting.state())))
    for collected in (waiting, again):
        taken(collected, "honest", "clusters", 3)
        assert held(collected) == {("honest", "clusters"): 3, ("hoarder", "others"): 2}
    assert pack(waiting.state()) == pack(again.state())
