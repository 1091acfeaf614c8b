"""Row 7: a client from an older copy stops at its start; of two with one name the later stops at
its next start."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS
from shoal.runtime.logs import open_client_log
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports import open_log
from shoal.transports.base import latest
from tests.hostile.test_row_01_compressed_zeros import FILE
from tests.server_node.server_fixture import ServerFixture
from tests.small_plant import Clock, an_update, unit_rows

MODELS = '\n[client]\nfolder = "clients"\npublish_readings = 50\n'


def federation(folder: Path) -> Config:
    file = folder / "plant.toml"
    file.write_text(
        FILE.format(name="plant", address="sqlite:federation.db")
        + "snapshot_updates = 1\n"
        + MODELS
    )
    return load_config(file)


def feed(config: Config, seed: int, readings: int = 100) -> None:
    """Put readings into the log of the client `attic`."""
    (config.client.folder / "attic").mkdir(parents=True, exist_ok=True)
    with closing(open_client_log(config, "attic")) as log:
        log.ensure(READINGS)
        for number, row in enumerate(unit_rows(readings, seed)):
            reading = Reading(1e9 + number, [float(row[0]) * 60 - 10, float(row[1]) * 100])
            log.publish(READINGS, reading.encode(), None, Reading.headers())
        log.flush()


def run_client(config: Config, clock: Clock) -> None:
    clock.now += 100
    with resumed(open_client(config, "attic", clock=clock)) as node:
        while node.step() or not node.up_to_date:
            clock.now += 20


def run_server(config: Config) -> int:
    """Updates behind the newest snapshot after the server has read everything."""
    with resumed(open_server(config)) as node:
        while node.step() or not node.up_to_date:
            pass
        snapshot = node.status().models["clusters"].snapshot
        assert snapshot is not None
        return snapshot.updates


def reasons(config: Config) -> list[bytes]:
    with closing(open_log(config.log)) as log:
        found = latest(log, config.contract.rejected_topic).values()
        return [dict(record.headers)["reason"] for record in found]


def test_a_client_from_an_older_copy_stops_at_its_start_and_the_newest_copy_goes_on(
    tmp_path: Path,
) -> None:
    config = federation(tmp_path)
    clock = Clock()
    feed(config, 1)
    run_client(config, clock)
    attic = config.client.folder / "attic"
    shutil.copytree(attic, tmp_path / "older")
    feed(config, 2)
    run_client(config, clock)
    assert run_server(config) == 4
    shutil.move(attic, tmp_path / "newest")
    shutil.copytree(tmp_path / "older", attic)
    feed(config, 3)
    with (
        pytest.raises(InvalidState, match="Restore the newest copy"),
        resumed(open_client(config, "attic")),
    ):
        pass
    assert run_server(config) == 4
    assert reasons(config) == [], "nothing was published"
    shutil.rmtree(attic)
    shutil.move(tmp_path / "newest", attic)
    feed(config, 4)
    run_client(config, clock)
    assert run_server(config) == 6


def test_of_two_machines_with_one_name_the_later_one_stops(tmp_path: Path) -> None:
    config = federation(tmp_path)
    clock = Clock()
    feed(config, 1)
    run_client(config, clock)
    assert run_server(config) == 2
    first = tmp_path / "first"
    shutil.move(config.client.folder / "attic", first)
    feed(config, 2)
    run_client(config, clock)
    assert run_server(config) == 2
    with (
        pytest.raises(InvalidState, match="another machine runs under this name"),
        resumed(open_client(config, "attic")),
    ):
        pass
    shutil.rmtree(config.client.folder / "attic")
    shutil.move(first, config.client.folder / "attic")
    feed(config, 3)
    run_client(config, clock)
    assert run_server(config) == 4


def test_an_update_that_comes_again_is_a_repeated_one_and_another_with_its_number_is_none(
    tmp_path: Path,
) -> None:
    site = ServerFixture(tmp_path)
    first = an_update(site.contract, sequence=1)
    site.send(first, first, an_update(site.contract, sequence=2))
    site.run()
    assert not site.rejected()
    more = replace(first, readings=first.readings + 1)
    site.send(first, replace(first, made_at=first.made_at + 1), more)
    site.run()
    assert [dict(record.headers)["reason"] for record in site.rejected().values()] == [
        b"conflict"
    ] * 2
    before = site.snapshots()[-1].updates
    site.delete_checkpoint()
    site.run(rebuild=True)
    assert site.snapshots()[-1].updates == before == 2
    assert len(site.rejected()) == 2, "a rebuild decides the same"


def test_an_older_number_is_told_apart_by_its_time(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path, snapshot_updates=1000)
    sent = [an_update(site.contract, sequence=n, made_at=1e9 + n) for n in range(1, 200)]
    site.send(*sent)
    site.run()
    site.send(sent[0], replace(sent[1], made_at=1e9 + 500))
    site.run()
    assert [dict(record.headers)["reason"] for record in site.rejected().values()] == [b"conflict"]
