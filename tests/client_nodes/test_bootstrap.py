"""A client's folder: created once, opened again, and refused when only a part of it is left."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from shoal.client_nodes import bootstrap
from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState, LogUnavailable, SettingsError
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS, READINGS_SETTINGS
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.service import resumed
from shoal.transports import open_log
from shoal.transports.sqlite.log import SqliteLog
from tests.client_nodes.site import readings
from tests.federation_text import federation_text

FILE = federation_text(privacy={"mode": "formal", "epsilon_per_reading": 100})


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "plant.toml"
    path.write_text(FILE)
    return load_config(path)


def folder_of_a_used_client(config: Config, client: str, n: int = 20) -> Path:
    """The folder of a client that has learnt `n` readings."""
    folder = config.client.folder / client
    with resumed(open_client(config, client)):
        pass
    log = open_log(f"sqlite:{folder / 'readings.db'}")
    log.ensure(READINGS, READINGS_SETTINGS)
    for values in readings(n):
        log.publish(READINGS, Reading(1e9, values).encode(), None, Reading.headers())
    log.close()
    with resumed(open_client(config, client)) as node:
        while node.step():
            pass
        assert node.totals["learned"] == n
    return folder


def test_a_new_client_creates_its_files(config: Config) -> None:
    with resumed(open_client(config, "attic")) as node:
        assert not node.step()
    folder = config.client.folder / "attic"
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint.db",
        "ledger.db",
        "noise.key",
        "readings.db",
    ]
    assert stat.S_IMODE((folder / "noise.key").stat().st_mode) == 0o600


def test_a_client_that_learnt_nothing_can_be_opened_again(config: Config) -> None:
    for _ in range(3):
        with resumed(open_client(config, "attic")) as node:
            assert not node.step()


def test_a_client_continues_where_it_was(config: Config) -> None:
    folder_of_a_used_client(config, "attic")
    with resumed(open_client(config, "attic")) as node:
        assert node.totals["learned"] == 20
        assert not node.step()


def test_every_client_has_a_noise_key_of_its_own(config: Config) -> None:
    folders = [folder_of_a_used_client(config, name) for name in ("attic", "cellar")]
    assert len({(folder / "noise.key").read_bytes() for folder in folders}) == 2


def topics_of_records(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topic of each record that is read from now on."""
    read: list[str] = []
    plain = SqliteLog.read

    def reading(log: SqliteLog, topic: str, *arguments: Any, **named: Any) -> Any:
        records, after = plain(log, topic, *arguments, **named)
        read.extend([topic] * len(records))
        return records, after

    monkeypatch.setattr(SqliteLog, "read", reading)
    return read


def test_a_new_client_does_not_read_what_others_have_published_and_an_old_one_does(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many clients, each of which starts for the first time, the starts would take a time of
    clients squared."""
    folder_of_a_used_client(config, "attic", 2 * config.client.publish_readings)
    read = topics_of_records(monkeypatch)
    with resumed(open_client(config, "cellar")):
        assert read.count(config.contract.updates_topic) == 1, (
            "the newest one: it finds out that it may read"
        )
    (config.client.folder / "cellar" / "checkpoint.db").unlink()
    Checkpoint(config.client.folder / "cellar" / "checkpoint.db", "client cellar of plant").close()
    with resumed(open_client(config, "cellar")):
        assert read.count(config.contract.updates_topic) > 1, (
            "the key may have been used before the checkpoint was lost"
        )


@pytest.mark.parametrize("call", ["open_federation_log", "ensure_topics"])
def test_a_client_that_waited_for_its_log_at_its_first_start_is_still_new(
    config: Config, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    folder_of_a_used_client(config, "attic", 2 * config.client.publish_readings)

    def unavailable(*_: object) -> None:
        raise LogUnavailable("no broker yet")

    with monkeypatch.context() as away:
        away.setattr(bootstrap, call, unavailable)
        for _ in range(2):
            with pytest.raises(LogUnavailable), resumed(open_client(config, "cellar")):
                pass
    read = topics_of_records(monkeypatch)
    with resumed(open_client(config, "cellar")):
        assert read.count(config.contract.updates_topic) == 1, (
            "the newest one: it finds out that it may read"
        )


def test_a_client_is_not_new_if_another_process_made_its_key_meanwhile(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = topics_of_records(monkeypatch)

    def open_later(path: Path, owner: str, *_: object, **__: object) -> Checkpoint:
        monkeypatch.setattr(bootstrap, "Checkpoint", Checkpoint)
        folder_of_a_used_client(config, "attic", 2 * config.client.publish_readings)
        read.clear()
        return Checkpoint(path, owner)

    monkeypatch.setattr(bootstrap, "Checkpoint", open_later)
    with resumed(open_client(config, "attic")):
        assert read.count(config.contract.updates_topic) > 1


def test_a_second_process_of_the_same_client_is_refused(config: Config) -> None:
    with (
        resumed(open_client(config, "attic")),
        pytest.raises(InvalidState, match="in use"),
        resumed(open_client(config, "attic")),
    ):
        pass


@pytest.mark.parametrize(
    ("missing", "present"), [("checkpoint.db", "noise.key"), ("noise.key", "checkpoint.db")]
)
def test_a_checkpoint_and_a_key_are_refused_without_each_other(
    config: Config, missing: str, present: str
) -> None:
    folder = folder_of_a_used_client(config, "attic")
    (folder / missing).unlink()
    with (
        pytest.raises(
            InvalidState, match=rf"{present} is present but {missing} is missing: restore it"
        ),
        resumed(open_client(config, "attic")),
    ):
        pass
    assert not (folder / missing).exists(), "and no new one is created"


def test_a_used_client_without_its_readings_log_is_refused(config: Config) -> None:
    folder = folder_of_a_used_client(config, "attic")
    (folder / "readings.db").unlink()
    with (
        open_client(config, "attic") as node,
        pytest.raises(InvalidState, match="the readings log was created anew"),
    ):
        node.resume()


def test_an_empty_checkpoint_file_is_refused(config: Config) -> None:
    folder = folder_of_a_used_client(config, "attic")
    (folder / "checkpoint.db").write_bytes(b"")
    with pytest.raises(InvalidState, match="damaged"), resumed(open_client(config, "attic")):
        pass


def test_the_checkpoint_of_another_client_is_refused(config: Config) -> None:
    folder = folder_of_a_used_client(config, "attic")
    shutil.copytree(folder, folder.with_name("cellar"))
    with (
        pytest.raises(
            InvalidState, match="the checkpoint of client attic of plant, not of client cellar"
        ),
        resumed(open_client(config, "cellar")),
    ):
        pass


def test_a_key_that_other_users_may_read_is_refused(config: Config) -> None:
    folder = folder_of_a_used_client(config, "attic")
    (folder / "noise.key").chmod(0o644)
    with (
        pytest.raises(SettingsError, match="open to others"),
        resumed(open_client(config, "attic")),
    ):
        pass


def test_a_client_killed_between_creating_checkpoint_and_key_can_be_opened_again(
    config: Config,
) -> None:
    """The checkpoint is created before the key, and the ledger after: without key and state nothing
    was learnt yet."""
    with resumed(open_client(config, "attic")):
        pass
    for name in ("noise.key", "ledger.db"):
        (config.client.folder / "attic" / name).unlink()
    with resumed(open_client(config, "attic")) as node:
        assert not node.step()


@pytest.mark.parametrize("name", ["../attic", "Attic", ""])
def test_an_invalid_client_name_creates_no_folder(config: Config, name: str) -> None:
    with pytest.raises(SettingsError, match="client name"), resumed(open_client(config, name)):
        pass
    assert not config.client.folder.exists()


def test_an_error_while_opening_closes_every_file(config: Config) -> None:
    folder = folder_of_a_used_client(config, "attic")
    key = (folder / "noise.key").read_bytes()
    (folder / "noise.key").write_bytes(bytes(32))
    with pytest.raises(InvalidState), resumed(open_client(config, "attic")):
        pass
    (folder / "noise.key").write_bytes(key)
    with resumed(open_client(config, "attic")) as node:
        assert node.totals["learned"] == 20
