"""The server: the updates in the log decide its models and its snapshots."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from shoal.server_node.models import streaming
from shoal.server_node.node import GATHER_S
from shoal.transports.base import Positions, Record
from shoal.transports.sqlite.log import SqliteLog
from tests.server_node.server_fixture import ServerFixture, models_of, states_of, updates_of
from tests.small_plant import an_update, nodes_at, plant


@pytest.fixture
def site(tmp_path: Path) -> ServerFixture:
    return ServerFixture(tmp_path)


def test_a_server_without_updates_publishes_nothing(site: ServerFixture) -> None:
    with site.server() as server:
        assert not server.step()
        assert not server.step()
        assert server.up_to_date
        status = server.status()
    assert site.snapshots() == []
    assert status.ready
    assert status.models["clusters"].snapshot is None
    assert "No client has sent" in status.models["clusters"].waiting_for
    assert status.clients == []


def test_an_update_without_nodes_is_absorbed(site: ServerFixture) -> None:
    nothing = nodes_at(np.empty((0, 2)))
    site.send(an_update(site.contract, readings=0, arrays=nothing))
    site.run()
    (snapshot,) = site.snapshots()
    assert (snapshot.updates, snapshot.nodes, snapshot.clusters) == (1, 0, 0)


def test_absorbed_updates_are_published_as_a_snapshot(site: ServerFixture) -> None:
    site.send(*updates_of(site, ("attic", 1), ("cellar", 1), ("attic", 2)))
    site.run()
    newest = site.snapshots()[-1]
    assert (newest.updates, newest.readings, newest.clients) == (3, 120, 2)
    assert newest.read_up_to == {0: 3}
    assert newest.nodes > 0


def test_a_repeated_update_changes_nothing(tmp_path: Path) -> None:
    once = ServerFixture(tmp_path / "once")
    twice = ServerFixture(tmp_path / "twice")
    updates = updates_of(once, ("attic", 1), ("cellar", 1), ("attic", 2))
    once.send(*updates)
    twice.send(*updates, updates[0], *updates)
    assert once.run() == twice.run()
    assert twice.rejected() == {}
    with twice.server() as server:
        seen = server.status().clients
    assert [(client.client, client.updates, client.readings) for client in seen] == [
        ("attic", 2, 80),
        ("cellar", 1, 40),
    ]


def test_updates_in_any_order_are_each_absorbed_once(site: ServerFixture) -> None:
    site.send(*updates_of(site, ("attic", 3), ("attic", 1), ("attic", 2), ("attic", 3)))
    site.run()
    assert site.snapshots()[-1].updates == 3


def test_the_batch_size_changes_nothing(tmp_path: Path) -> None:
    updates = updates_of(
        ServerFixture(tmp_path),
        *((client, n) for n in range(1, 6) for client in ("attic", "cellar")),
    )
    models = []
    for batch in (1, 3, 200):
        site = ServerFixture(tmp_path / str(batch), batch_updates_max=batch, pool_clients=2)
        site.send(*updates)
        models.append(site.run())
    assert models[0] == models[1] == models[2]


def test_a_step_takes_one_update_of_each_client_together_and_waits_for_no_more(
    site: ServerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    read = SqliteLog.read

    def noted(
        log: SqliteLog, topic: str, at: Positions, limit: int = 500, timeout_s: float = 0.0
    ) -> tuple[Sequence[Record], Positions]:
        if topic == site.contract.updates_topic:
            waits.append(timeout_s)
        return read(log, topic, at, limit, timeout_s)

    site.send(*updates_of(site, ("attic", 1), ("cellar", 1)))
    with site.server() as server:
        server.step()
        monkeypatch.setattr(SqliteLog, "read", noted)
        site.send(*updates_of(site, ("attic", 2), ("cellar", 2)))
        assert server.step(30.0)
        assert len(waits) == 1
        waits.clear()
        site.send(*updates_of(site, ("attic", 3)))
        assert server.step(30.0)
    assert len(waits) > 1
    assert max(waits[1:]) <= GATHER_S


def test_each_of_two_models_absorbs_its_own_updates(tmp_path: Path) -> None:
    both = ServerFixture(tmp_path, plant(models=("left", "right")))
    site = ServerFixture(tmp_path / "one", plant(models=("left", "right")))
    left = [an_update(both.contract, "attic", n, model="left") for n in (1, 2)]
    right = [an_update(both.contract, "cellar", n, model="right") for n in (1, 2, 3)]
    both.send(left[0], right[0], right[1], left[1], right[2])
    site.send(*left)
    models = both.run()
    assert models["left"] == site.run()["left"]
    assert models["left"] != models["right"]
    newest = {snapshot.model: snapshot.updates for snapshot in both.snapshots()}
    assert newest == {"left": 2, "right": 3}
    with both.server() as server:
        assert [client.client for client in server.status().clients] == ["attic", "cellar"]


def test_a_restart_at_any_step_changes_nothing(tmp_path: Path) -> None:
    names = [(client, n) for n in range(1, 5) for client in ("attic", "cellar", "garden")]
    whole, broken = (
        ServerFixture(tmp_path / name, pool_clients=3, batch_updates_max=2)
        for name in ("whole", "broken")
    )
    for site in (whole, broken):
        site.send(*updates_of(site, *names))
    expected = whole.run()
    with whole.server() as server:
        everything = states_of(server)
    while True:
        with broken.server() as server:
            if not server.step():
                break
            at_exit = states_of(server)
        with broken.server() as server:
            assert states_of(server) == at_exit
    with broken.server() as server:
        assert models_of(server) == expected
        assert states_of(server) == everything
    assert [s.encode() for s in broken.snapshots()[-1:]] == [
        s.encode() for s in whole.snapshots()[-1:]
    ]


def test_updates_absorbed_but_not_stored_are_absorbed_again_to_the_same_model(
    tmp_path: Path,
) -> None:
    killed, undisturbed = (
        ServerFixture(tmp_path / name, snapshot_updates=4) for name in ("killed", "undisturbed")
    )
    updates = updates_of(killed, *(("attic", number) for number in range(1, 9)))
    with killed.server() as server:
        for update in updates[:4]:
            killed.send(update)
            assert server.step()
    with killed.server() as server:
        assert killed.snapshots()[-1].updates == 1
        assert server.models()["clusters"].state()["publisher"]["counts"]["updates"] == 1, (
            "the later ones were not worth a save of their own"
        )
    killed.send(*updates[4:])
    undisturbed.send(*updates)
    assert killed.run() == undisturbed.run()


def test_snapshots_come_by_number_and_by_time(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path, snapshot_updates=3, snapshot_s=10.0)
    with site.server() as server:
        site.send(*updates_of(site, ("attic", 1)))
        server.step()
        assert len(site.snapshots()) == 1, "the first one at once"
        site.send(*updates_of(site, ("attic", 2), ("attic", 3)))
        server.step()
        assert len(site.snapshots()) == 1
        assert not server.up_to_date
        site.clock.now += 10
        assert server.step()
        assert [s.version for s in site.snapshots()] == [2]
        site.send(*updates_of(site, ("attic", 4), ("attic", 5), ("attic", 6)))
        server.step()
        assert site.snapshots()[-1].updates == 6
        assert server.up_to_date
        site.clock.now += 100
        assert not server.step(), "there is nothing new to publish"


def test_snapshots_that_take_long_come_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count(step=0.5)
    monkeypatch.setattr(streaming.time, "thread_time", lambda: next(ticks))
    site = ServerFixture(tmp_path, snapshot_updates=1000, snapshot_s=0.25)
    # A snapshot takes 0.5 s here, and a tenth of what the newest one takes counts.
    first_s = 0.05 / streaming.SNAPSHOTS_SHARE
    second_s = 0.095 / streaming.SNAPSHOTS_SHARE
    waits = (0.0, 0.9 * first_s, 0.2 * first_s, 0.95 * second_s, 0.1 * second_s)
    with site.server() as server:
        for sequence, (waits_s, version) in enumerate(
            zip(waits, (1, 1, 2, 2, 3), strict=True), start=1
        ):
            site.send(*updates_of(site, ("attic", sequence)))
            site.clock.now += waits_s
            server.step()
            assert site.snapshots()[-1].version == version


def test_a_clock_set_back_does_not_delay_snapshots_for_long(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path, snapshot_updates=1000, snapshot_s=10.0)
    site.clock.now = 4e9
    with site.server() as server:
        site.send(*updates_of(site, ("attic", 1)))
        server.step()
        site.clock.now = 1e9
        site.send(*updates_of(site, ("attic", 2)))
        server.step()
        site.clock.now += 10
        server.step()
        assert site.snapshots()[-1].updates == 2
