"""`shoal replica` refuses what it cannot serve, before it starts, and says what to do."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path

import pytest

from shoal.config.settings import load_config
from shoal.errors import InvalidState, LogError, SettingsError
from shoal.protocol.lease import LEASE_KEY, Lease
from shoal.server_node.replicas.replica_command import (
    changelog_topic,
    check_name,
    check_regions,
    open_region,
)
from shoal.server_node.replicas.timers import Assignments, Timers
from shoal.transports import open_log
from tests.house.small_federation import write_federation

KAFKA = "kafka://127.0.0.1:9"


def refused(*files: Path) -> str:
    with pytest.raises(SettingsError) as error:
        check_regions(files, [load_config(file) for file in files])
    return str(error.value)


def region_file(folder: Path, more: str = "", address: str = KAFKA) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = write_federation(folder, address=address)
    file.write_text(file.read_text(encoding="utf-8") + more, encoding="utf-8")
    return file


def test_regions_that_a_replica_can_serve_pass(tmp_path: Path) -> None:
    group = '[replica]\nfolder = "/var/lib/replicas"\n'
    files = [region_file(tmp_path / name, group) for name in ("north", "south")]
    check_regions(files, [load_config(file) for file in files])


def test_the_embedded_log_is_refused_with_what_to_do(tmp_path: Path) -> None:
    said = refused(region_file(tmp_path, address="sqlite:federation.db"))
    assert "set kafka://host:port" in said
    assert "run shoal server" in said
    assert str(tmp_path) in said


def test_a_model_in_rounds_is_refused_by_name(tmp_path: Path) -> None:
    model = '[[models]]\nname = "heaps"\nalgorithm = "kmeans"\noptions = { clusters = 3 }\n'
    said = refused(region_file(tmp_path, model))
    assert "heaps (kmeans) is in rounds" in said
    assert "run shoal server" in said


def test_a_region_of_an_upstream_federation_is_refused(tmp_path: Path) -> None:
    world = region_file(tmp_path / "world")
    said = refused(region_file(tmp_path / "north", f'[upstream]\nfile = "{world}"\n'))
    assert "no upstream federation; run shoal server" in said


@pytest.mark.parametrize("section", ["[replica]\ncommit_s = 3\n", '[replica]\ngroup = "others"\n'])
def test_regions_with_other_settings_of_replicas_are_refused(tmp_path: Path, section: str) -> None:
    here = region_file(tmp_path / "here", '[replica]\nfolder = "/var/lib/replicas"\n')
    there = region_file(tmp_path / "there", section)
    assert f"{there}: [replica] is not that of {here}" in refused(here, there)


def test_regions_on_other_brokers_are_refused(tmp_path: Path) -> None:
    here = region_file(tmp_path / "here")
    there = region_file(tmp_path / "there", address="kafka://127.0.0.1:10")
    assert f"{there}: [log] is not that of {here}" in refused(here, there)


def test_a_region_is_named_once(tmp_path: Path) -> None:
    file = region_file(tmp_path)
    assert "names a file twice" in refused(file, file)


def test_two_files_of_one_federation_are_refused(tmp_path: Path) -> None:
    file = region_file(tmp_path)
    copy = tmp_path / "copy.toml"
    copy.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    assert "is the federation of" in refused(file, copy)


@pytest.mark.parametrize("name", ["", "North", "a b", "-", "x" * 65])
def test_a_name_that_no_replica_can_have_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="1 to 64 of a-z"):
        check_name(name)


def test_a_region_that_a_server_has_served_is_refused(tmp_path: Path, kafka_bootstrap: str) -> None:
    config = load_config(region_file(tmp_path, address=f"kafka://{kafka_bootstrap}"))
    with closing(open_log(config.log)) as log:
        open_region(config, log)  # a new one passes
        lease = Lease(config.contract.federation, "a", "b", 1, 5.0, "a server")
        log.publish(config.contract.snapshots_topic, lease.encode(), LEASE_KEY, Lease.headers())
        log.flush()
        with pytest.raises(InvalidState, match="has been served by shoal server"):
            open_region(config, log)
        log.publish(
            changelog_topic(config.replica.group, config.contract.updates_topic), b"state", b"key"
        )
        log.flush()
        open_region(config, log)  # one that replicas have served already passes


def test_a_changelog_kept_otherwise_is_refused(tmp_path: Path, kafka_bootstrap: str) -> None:
    group = f'[replica]\ngroup = "replicas-{uuid.uuid4().hex}"\n'
    config = load_config(region_file(tmp_path, group, address=f"kafka://{kafka_bootstrap}"))
    with closing(open_log(config.log)) as log:
        log.ensure(changelog_topic(config.replica.group, config.contract.updates_topic))
        with pytest.raises(LogError, match="kept with other settings than declared"):
            open_region(config, log)


class Asked(Timers):
    """Counts how often all models are asked."""

    times = 0

    def ask_all(self) -> None:
        self.times += 1
        super().ask_all()


def test_an_assignment_is_logged_and_has_every_model_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = Asked([], lambda: open_log(KAFKA))
    assignments = Assignments(asked)
    partition = (
        '"north.updates": {"partitions": {"2": {"fetch_state": "active"}, "-1": {"fetch_state":'
        ' "none"}}}'
    )
    with caplog.at_level("INFO", "shoal"):
        for _ in range(2):
            assignments.take_statistics('{"cgrp": {"rebalance_cnt": 0}}')
            assert asked.times == 0
        for _ in range(2):
            assignments.take_statistics(
                f'{{"cgrp": {{"rebalance_cnt": 1}}, "topics": {{{partition}}}}}'
            )
            assert asked.times == 1
    (logged,) = caplog.records
    assert logged.__dict__["fields"] == {"partitions": 1, "topics": "north.updates/2"}
