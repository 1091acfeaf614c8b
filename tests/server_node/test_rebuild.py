"""Rebuilding models from the log when the checkpoint is lost, and restoring them when it is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.config.settings import LogSettings
from shoal.errors import InvalidState, LogError
from shoal.protocol.codec import pack, unpack
from shoal.protocol.messages import Snapshot
from tests.server_node.server_fixture import ServerFixture, models_of, pool_site, states_of
from tests.small_plant import a_snapshot, an_update, nodes_at, plant


def run_with_timeout(site: ServerFixture) -> dict[str, bytes]:
    """A server whose pool closed by time, in the middle of the log, and which then went on; its
    models."""
    with site.server() as server:
        site.send(an_update(site.contract, "attic", 1), an_update(site.contract, "cellar", 1))
        server.step()
        site.clock.now += 60
        server.step()
        site.send(an_update(site.contract, "attic", 1), an_update(site.contract, "garden", 1))
        site.send(
            *(an_update(site.contract, client, 2) for client in ("cellar", "garden", "attic"))
        )
        while server.step():
            pass
        return models_of(server)


def test_a_server_without_its_checkpoint_does_not_rebuild_by_itself(tmp_path: Path) -> None:
    site = pool_site(tmp_path)
    run_with_timeout(site)
    site.delete_checkpoint()
    with (
        pytest.raises(InvalidState, match="checkpoint is gone; restore it, or let --rebuild"),
        site.server(),
    ):
        pass


@pytest.mark.parametrize("batch", [1, 200])
def test_a_model_rebuilt_from_the_log_is_identical_although_its_pool_had_timed_out(
    tmp_path: Path, batch: int
) -> None:
    site = pool_site(tmp_path, batch_updates_max=batch)
    before = run_with_timeout(site)
    version = site.snapshots()[-1].version
    site.delete_checkpoint()
    site.clock.now = 5.0
    assert site.run(rebuild=True) == before
    assert site.snapshots()[-1].version > version, "readers must not take it for old"
    assert site.snapshots()[-1].pooled == 2
    assert site.run() == before


def test_without_the_snapshots_pool_size_the_rebuilt_model_differs(tmp_path: Path) -> None:
    """The test above can fail: closing the pool by number makes another model."""
    site = pool_site(tmp_path / "a")
    other = pool_site(tmp_path / "b")
    before = run_with_timeout(site)
    with site.log() as log:
        records, _ = log.read(site.contract.updates_topic, {0: 0})
    other.publish(*(("clusters", record.value, record.headers) for record in records))
    assert other.run() != before


def test_an_interrupted_rebuild_continues(tmp_path: Path) -> None:
    site = pool_site(tmp_path, batch_updates_max=1)
    before = run_with_timeout(site)
    site.delete_checkpoint()
    site.clock.now = 5.0
    with site.server(rebuild=True) as server:
        server.step()
    assert site.run() == before


def test_a_rebuild_with_a_checkpoint_changes_nothing(tmp_path: Path) -> None:
    site = pool_site(tmp_path)
    before = run_with_timeout(site)
    with site.server() as server:
        whole = states_of(server)
    with site.server(rebuild=True) as server:
        assert states_of(server) == whole
    assert site.run(rebuild=True) == before


def test_a_log_without_its_beginning_cannot_rebuild(tmp_path: Path) -> None:
    site = pool_site(tmp_path, pool_clients=1)
    site.log_settings = LogSettings(updates_retention_bytes=2000)
    for n in range(1, 10):
        site.send(an_update(site.contract, "attic", n))
        site.run()
    site.delete_checkpoint()
    with (
        pytest.raises(LogError, match="no longer begins at its first update"),
        site.server(rebuild=True),
    ):
        pass


@pytest.mark.parametrize("kind", ["junk", "another contract", "another model"])
def test_an_invalid_newest_snapshot_stops_the_rebuild(tmp_path: Path, kind: str) -> None:
    site = ServerFixture(
        tmp_path, plant(models=("clusters", "others")), pool_clients=3, pool_s=60.0
    )
    run_with_timeout(site)
    site.delete_checkpoint()
    value = {
        "junk": b"junk",
        "another contract": a_snapshot(
            plant({"mode": "formal", "epsilon_per_reading": 9})
        ).encode(),
        "another model": a_snapshot(site.contract, model="others").encode(),
    }[kind]
    with site.log() as log:
        log.publish(site.contract.snapshots_topic, value, b"clusters", Snapshot.headers())
        log.flush()
    with (
        pytest.raises(InvalidState, match="the newest snapshot of model clusters cannot be used"),
        site.server(rebuild=True),
    ):
        pass


def test_foreign_records_among_the_snapshots_do_not_stop_the_rebuild(tmp_path: Path) -> None:
    site = pool_site(tmp_path)
    before = run_with_timeout(site)
    site.delete_checkpoint()
    with site.log() as log:
        log.publish(site.contract.snapshots_topic, b"junk", b"\xff", ())
        log.flush()
    assert site.run(rebuild=True) == before


def test_each_of_two_models_is_rebuilt_with_its_own_pool_size(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path, plant(models=("left", "right")), pool_clients=2, pool_s=60.0)
    with site.server() as server:
        site.send(an_update(site.contract, "attic", 1, model="left"))
        server.step()
        site.clock.now += 60
        server.step()
        for client in ("attic", "cellar"):
            site.send(
                *(
                    an_update(site.contract, client, n, model=name)
                    for name in ("left", "right")
                    for n in (1, 2)
                )
            )
        while server.step():
            pass
        before = models_of(server)
    assert {snapshot.model: snapshot.pooled for snapshot in site.snapshots()} == {
        "left": 1,
        "right": 3,
    }
    site.delete_checkpoint()
    assert site.run(rebuild=True) == before


def test_a_damaged_state_of_a_model_is_rejected(tmp_path: Path) -> None:
    site = pool_site(tmp_path)
    run_with_timeout(site)
    with site.server() as server:
        (model,) = server.models().values()
        whole = model.state()
        for name in whole:
            broken = {key: value for key, value in whole.items() if key != name}
            with pytest.raises(InvalidState):
                model.restore(broken)
        for name, value in (("pool", 7), ("publisher", None), ("half", {})):
            with pytest.raises(InvalidState):
                model.restore(whole | {name: value})
        for name, value in (
            ("snapshot", b"junk"),
            ("history", [[1]]),
            ("clients", []),
            ("recorder", {}),
        ):
            with pytest.raises(InvalidState):
                model.restore(whole | {"publisher": whole["publisher"] | {name: value}})


def test_restoring_twice_gives_the_saved_model(tmp_path: Path) -> None:
    site = pool_site(tmp_path)
    run_with_timeout(site)
    with site.server() as server:
        (model,) = server.models().values()
        before = states_of(server)
        model.restore(unpack(pack(model.state())))
        assert states_of(server) == before


def test_history_is_bounded_and_reaches_from_the_first_snapshot_to_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.server_node.models.publisher.HISTORY_MAX", 5)
    nothing = nodes_at(np.empty((0, 2)))
    site = pool_site(tmp_path, pool_clients=1, batch_updates_max=1)
    site.send(*(an_update(site.contract, "attic", n, arrays=nothing) for n in range(1, 20)))
    with site.server() as server:
        while server.step():
            assert len(server.status().models["clusters"].history) <= 5
        learnt = [moment.readings for moment in server.status().models["clusters"].history]
    assert (learnt[0], learnt[-1]) == (40, 760)
    assert learnt == sorted(set(learnt))
    assert len(learnt) >= 3, "between the ends there is something to see"
    assert learnt[1] - learnt[0] >= learnt[-1] - learnt[-2], "the past is kept coarsely"
    with site.server() as server:
        again = [moment.readings for moment in server.status().models["clusters"].history]
    assert again == learnt, "and it outlives the server"
