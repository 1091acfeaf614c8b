"""Unlearning a client: the models are those of a federation that never had it, to the bit."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.algorithms.registry import rounds_algorithm
from shoal.config.resolved import resolve
from shoal.config.settings import LogSettings
from shoal.protocol.codec import pack
from shoal.protocol.messages import Snapshot
from shoal.server_node.models.base import ServedModel
from shoal.server_node.models.publisher import ModelPublisher
from shoal.server_node.report.lineage.events import ClusterChange, EventKind
from tests.server_node.rounds_harness import (
    SITES,
    RoundsHarness,
    contract_with,
    rows_of,
    run_rounds,
)
from tests.server_node.server_fixture import ServerFixture, models_of, pool_site, updates_of
from tests.server_node.test_quarantine import FEDERATION, ask, run_shoal
from tests.small_plant import plant

CLIENTS = ("attic", "cellar", "garden")
OTHERS = ("attic", "garden")


def send(site: ServerFixture, clients: Sequence[str], numbers: Sequence[int]) -> None:
    site.send(*updates_of(site, *((client, number) for number in numbers for client in clients)))


def never_had_it(folder: Path, numbers: Sequence[int], **settings: Any) -> dict[str, bytes]:
    """The models of a federation whose log has the same updates of the others only."""
    site = pool_site(folder, pool_clients=2, **settings)
    send(site, OTHERS, numbers)
    return site.run()


@pytest.mark.parametrize("batch", [1, 3, 200])
def test_an_unlearned_client_has_never_been_there(tmp_path: Path, batch: int) -> None:
    site = pool_site(tmp_path / "a", pool_clients=2, batch_updates_max=batch)
    send(site, CLIENTS, [1, 2, 3])
    before = site.run()
    ask(site, "cellar", "unlearn")
    send(site, CLIENTS, [4])
    after = site.run()
    assert after != before
    assert after == never_had_it(tmp_path / "b", [1, 2, 3, 4])
    newest = site.snapshots()[-1]
    assert (newest.updates, newest.clients) == (8, 2)
    assert site.rejected() == {}


def test_a_rebuild_unlearns_again(tmp_path: Path) -> None:
    site = pool_site(tmp_path / "a", pool_clients=2)
    send(site, CLIENTS, [1, 2])
    ask(site, "cellar", "unlearn")
    send(site, CLIENTS, [3])
    after = site.run()
    site.delete_checkpoint()
    assert site.run(rebuild=True) == after == never_had_it(tmp_path / "b", [1, 2, 3])


def test_a_server_killed_while_it_unlearns_goes_on(tmp_path: Path) -> None:
    site = pool_site(tmp_path / "a", pool_clients=2, batch_updates_max=1)
    send(site, CLIENTS, [1, 2, 3])
    site.run()
    ask(site, "cellar", "unlearn")
    for _ in range(30):
        with site.server() as server:  # closed after one step, as a kill would
            server.step()
    with site.server() as server:
        assert not server.step()
        assert models_of(server) == never_had_it(tmp_path / "b", [1, 2, 3])


def test_no_reader_sees_a_model_that_is_only_half_rebuilt(tmp_path: Path) -> None:
    site = pool_site(tmp_path, pool_clients=2, batch_updates_max=1)
    send(site, CLIENTS, [1, 2, 3])
    site.run()
    version = site.snapshots()[-1].version
    ask(site, "cellar", "unlearn")
    site.run()
    new = [
        (snapshot.version, snapshot.updates)
        for snapshot in site.snapshots()
        if snapshot.version > version
    ]
    assert new == [(version + 1, 6)], "and readers must not take it for old"


def test_when_the_only_client_is_unlearned_an_empty_model_is_published_and_can_begin_again(
    tmp_path: Path,
) -> None:
    site = ServerFixture(tmp_path / "a")
    send(site, ["cellar"], [1, 2])
    site.run()
    ask(site, "cellar", "unlearn")
    site.run()
    newest = site.snapshots()[-1]
    assert (newest.updates, newest.nodes) == (0, 0)
    send(site, ["attic"], [1, 2])
    after = site.run()
    other = ServerFixture(tmp_path / "b")
    send(other, ["attic"], [1, 2])
    assert after == other.run()
    site.delete_checkpoint()
    assert site.run(rebuild=True) == after


def test_of_a_released_client_only_what_it_sends_from_then_on_is_learnt(tmp_path: Path) -> None:
    site = pool_site(tmp_path, pool_clients=2)
    send(site, CLIENTS, [1, 2])
    ask(site, "cellar", "unlearn")
    send(site, ["cellar"], [3])
    ask(site, "cellar", "release")
    send(site, ["cellar"], [4])
    after = site.run()
    with site.server() as server:
        totals = {
            name: updates for name, updates, *_ in server.models()["clusters"].clients.totals()
        }
    assert totals == {"attic": 2, "cellar": 1, "garden": 2}
    site.delete_checkpoint()
    assert site.run(rebuild=True) == after


def test_two_clients_can_be_unlearned_one_after_the_other_in_every_model(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path / "a", plant(models=("left", "right")))
    other = ServerFixture(tmp_path / "b", plant(models=("left", "right")))
    for number in (1, 2):
        for place, clients in ((site, CLIENTS), (other, ["garden"])):
            for model in ("left", "right"):
                place.send(
                    *(
                        update
                        for client in clients
                        for update in of_model(place, client, number, model)
                    )
                )
    site.run()
    ask(site, "cellar", "unlearn")
    site.run()
    ask(site, "attic", "unlearn")
    assert site.run() == other.run()


def of_model(site: ServerFixture, client: str, number: int, model: str) -> list[Any]:
    return [replace(update, model=model) for update in updates_of(site, (client, number))]


def test_names_stay_with_the_clusters_that_stay(tmp_path: Path) -> None:
    site = pool_site(tmp_path, pool_clients=2)
    send(site, CLIENTS, range(1, 31))
    site.run()
    with site.server() as server:
        model = server.models()["clusters"]
        known = [cluster.identity for cluster in model.lineage.known]
        assert known
        model.change_cluster(
            ClusterChange(known[0], EventKind.NAMED, {"name": "north hall"}), (0, 10**6)
        )
        place = centre_of(model, known[0])
        ask(site, "cellar", "unlearn")
        while server.step():
            pass
        (named,) = [cluster for cluster in model.lineage.known if cluster.name]
        assert named.identity == known[0]
        assert np.linalg.norm(centre_of(model, named.identity) - place) < 0.1


def centre_of(model: ServedModel, identity: int) -> Any:
    assert model.view is not None
    number = next(number for number, of in model.lineage.of_number.items() if of == identity)
    return model.view.centres[number]


def test_a_log_without_its_beginning_refuses_and_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "plant.toml").write_text(
        FEDERATION + "updates_retention_bytes = 2000\n", encoding="utf-8"
    )
    site = ServerFixture(tmp_path)
    site.log_settings = LogSettings(updates_retention_bytes=2000)
    for number in range(1, 10):
        send(site, ["attic", "cellar"], [number])
        site.run()
    refused = run_shoal(tmp_path, "unlearn", "cellar")
    assert refused.returncode == 4
    assert "begins at its first update" in refused.stderr
    assert "shoal quarantine" in refused.stderr
    before = site.run()
    ask(site, "cellar", "unlearn")
    assert site.run() == before, "a server that reads such a request keeps the model"
    with site.server() as server:
        assert [client.client for client in server.status().quarantined] == ["cellar"]


def test_the_command_unlearns(tmp_path: Path) -> None:
    (tmp_path / "plant.toml").write_text(FEDERATION, encoding="utf-8")
    site = pool_site(tmp_path, pool_clients=2)
    send(site, CLIENTS, [1, 2])
    site.run()
    asked: subprocess.CompletedProcess[str] = run_shoal(tmp_path, "unlearn", "cellar")
    assert (asked.returncode, asked.stdout) == (0, "unlearn requested for cellar\n")
    assert site.run() == never_had_it(tmp_path / "b", [1, 2])
    assert "unlearned since" in run_shoal(tmp_path, "quarantine", "list").stdout


# Models in rounds.

POISON = rows_of(9, heaps=np.array([[0.95, 0.05], [0.05, 0.95], [0.97, 0.97]]))
HONEST = {client: SITES[client] for client in OTHERS}


@pytest.mark.parametrize("between", ["fresh", "decay", "cache"])
@pytest.mark.parametrize("algorithm", ["kmeans", "fcm", "gmm"])
def test_a_model_in_rounds_ends_where_it_would_have_without_the_client(
    algorithm: str, between: str
) -> None:
    contract = contract_with(algorithm, between=between, tolerance=0.0, rounds_max=12)
    tainted = RoundsHarness(contract, pool_clients=2)
    clean = RoundsHarness(contract, pool_clients=2)
    clean.tick()
    run_rounds(clean, HONEST)
    tainted.tick()
    run_rounds(tainted, {**HONEST, "cellar": POISON})
    assert not same(tainted.newest, clean.newest)
    tainted.model.quarantine("cellar")
    tainted.model.unlearn("cellar", {})
    tainted.restart()
    tainted.tick()
    run_rounds(tainted, HONEST)
    assert same(tainted.newest, clean.newest)


@pytest.mark.parametrize("algorithm", ["mufc", "kfed"])
def test_a_model_of_one_round_is_combined_anew_at_once_from_the_answers_of_the_others(
    algorithm: str,
) -> None:
    contract = contract_with(algorithm, between="cache")
    tainted = RoundsHarness(contract)
    clean = RoundsHarness(contract)
    for harness, sites in ((clean, HONEST), (tainted, {**HONEST, "cellar": POISON})):
        harness.tick()
        for client, rows in sites.items():
            harness.answer(client, rows)
        harness.tick()
        assert harness.model.sleeping
    assert not same(tainted.newest, clean.newest)
    tainted.model.quarantine("cellar")
    tainted.model.unlearn("cellar", {})
    assert tainted.model.snapshot_due(tainted.now), "no client has to be asked"
    published = tainted.model.take_snapshot({0: 0}, tainted.statement, tainted.now).snapshot
    assert same(published, clean.newest)


def test_the_answers_of_an_algorithm_of_one_round_do_not_depend_on_what_it_forgets() -> None:
    """What makes the rule of the test above right."""
    for name in ("mufc", "kfed"):
        algorithm = rounds_algorithm(name)
        assert algorithm.forget is not None
        harness = RoundsHarness(contract_with(name, between="cache"))
        harness.tick()
        for client, rows in SITES.items():
            harness.answer(client, rows)
        harness.tick()
        after = harness.newest.arrays
        assert len(after["centre"])
        for rows in SITES.values():
            assert pack(algorithm.answer(after, rows)) == pack(
                algorithm.answer(algorithm.forget(after), rows)
            )


def test_a_quarantined_client_is_not_waited_for_and_its_answer_does_not_count() -> None:
    harness = RoundsHarness(contract_with())
    harness.tick()
    run_rounds(harness, SITES)
    harness.model.wake()
    harness.tick()
    harness.answer("cellar", POISON)
    harness.model.quarantine("cellar")
    harness.answer("attic", SITES["attic"])
    assert harness.tick() is None, "garden is waited for"
    harness.answer("garden", SITES["garden"])
    assert harness.tick() is not None
    assert harness.model.status().rounds is not None
    assert harness.model.status().rounds.counted == 2


def test_a_quarantine_takes_the_client_out_of_cached_answers_and_decayed_sums() -> None:
    for between in ("cache", "decay"):
        contract = contract_with(between=between, tolerance=0.0, rounds_max=60)
        tainted = RoundsHarness(contract)
        clean = RoundsHarness(contract)
        for harness, sites in ((clean, HONEST), (tainted, {**HONEST, "cellar": SITES["cellar"]})):
            harness.tick()
            run_rounds(harness, sites)
        tainted.model.quarantine("cellar")
        tainted.tick()
        run_rounds(tainted, HONEST)
        np.testing.assert_allclose(
            tainted.newest.arrays["centre"], clean.newest.arrays["centre"], atol=1e-9
        )


def same(one: Snapshot, other: Snapshot) -> bool:
    return pack(dict(one.arrays)) == pack(dict(other.arrays))


def test_a_publisher_without_a_snapshot_begins_again_too() -> None:
    contract = resolve(plant())
    (model,) = contract.models.values()
    publisher = ModelPublisher(contract, model)
    publisher.begin_again({0: 3})
    assert (publisher.counts.updates, publisher.counts.version) == (0, 0)
