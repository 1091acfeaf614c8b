"""Unlearning a client from a federation with a model of every algorithm, through a whole server."""

from __future__ import annotations

from pathlib import Path

from shoal.algorithms.registry import load_algorithm, rounds_algorithm
from shoal.protocol.codec import pack
from tests.hostile.fuzzing.valid_messages import STRANGER, EveryAlgorithm
from tests.server_node.test_quarantine import ask

SEED = 7


def first_round(folder: Path, stranger: bool) -> EveryAlgorithm:
    """A federation whose clients, and a stranger if there is one, have each sent one update to
    every model."""
    site = EveryAlgorithm(folder)
    with site.server() as node:
        while node.step():
            pass
        updates = site.honest_updates(SEED)
        if stranger:
            newest = site.newest_snapshots()
            for model in site.contract.models:
                asked = (
                    newest[model.name] if load_algorithm(model.algorithm).family.in_rounds else None
                )
                updates.append(site.update(model.name, STRANGER, 99, asked))
        site.send(*updates)
        while node.step():
            pass
    return site


def test_streaming_models_and_those_of_one_round_are_those_of_a_federation_without_the_client(
    tmp_path: Path,
) -> None:
    without = first_round(tmp_path / "a", stranger=False)
    site = first_round(tmp_path / "b", stranger=True)
    expected = without.newest_snapshots()
    tainted = site.newest_snapshots()
    ask(site, STRANGER, "unlearn")
    with site.server() as node:
        while node.step():
            pass
    found = site.newest_snapshots()
    compared = []
    for model in site.contract.models:
        if (
            load_algorithm(model.algorithm).family.in_rounds
            and rounds_algorithm(model.algorithm).forget is None
        ):
            assert found[model.name].round_request is not None, (
                "it starts again and asks the others"
            )
            continue
        compared.append(model.name)
        assert pack(dict(tainted[model.name].arrays)) != pack(dict(expected[model.name].arrays)), (
            model.name
        )
        assert pack(dict(found[model.name].arrays)) == pack(dict(expected[model.name].arrays)), (
            model.name
        )
        assert found[model.name].version > tainted[model.name].version, model.name
    assert {"fcac", "mufc", "kfed"} <= set(compared)
    assert site.rejected() == {}, "answers that are read again are no fault of their clients"
    with site.server() as node:
        clients = {name: model.clients.names() for name, model in node.models().items()}
    assert all(STRANGER not in names for names in clients.values())
