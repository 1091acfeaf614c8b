"""A host takes in the readings of all its clients from one log of the site."""

from __future__ import annotations

import json
import logging
import math
import random
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient

from shoal.client_nodes import host as host_module
from shoal.client_nodes import hosted_client, site_intake, site_source
from shoal.client_nodes.asleep import StoredStates
from shoal.client_nodes.bootstrap import RESTORED, open_client
from shoal.client_nodes.host import Host
from shoal.client_nodes.host_metrics import HostMetrics
from shoal.client_nodes.hosted_client import HostedClient
from shoal.client_nodes.node import ClientNode
from shoal.client_nodes.shared_files import SharedFiles, SharedLog
from shoal.config.base import client_name_of
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState, LogUnavailable, OffsetOutOfRange, SettingsError
from shoal.onebox.upkeep.backup import back_up
from shoal.onebox.upkeep.restore import restore
from shoal.producers.kafka.settings import KafkaSourceSettings
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS, READINGS_SETTINGS
from shoal.runtime.checkpoint import CheckpointFile
from shoal.runtime.logs import open_client_log
from shoal.runtime.service import resumed
from shoal.runtime.site_readings import SiteReadings
from shoal.server_node.bootstrap import open_server
from shoal.transports import open_log
from shoal.transports.base import Record, TopicSettings
from shoal.transports.sqlite.log import SqliteLog
from tests.house.small_federation import (
    CLIENTS,
    all_records,
    clock,
    create_federation,
    give_noise_keys,
    weather,
)
from tests.house.test_host import MODES, PAIR, federation_of_all, published, serve

SITE = '[host]\nclient = "key"\naddress = "sqlite:site-log.db"\n'


def use_site_log(file: Path) -> Config:
    """The configuration of the file, with the readings of all clients in one log."""
    file.write_text(file.read_text(encoding="utf-8") + SITE, encoding="utf-8")
    return load_config(file)


def write_site(config: Config, records: Sequence[tuple[bytes | None, Record]]) -> None:
    """Append records to the site's log, under these keys."""
    path = config.host.address.partition(":")[2]
    with closing(SqliteLog(path, clock=clock)) as log:
        log.ensure(config.host.topic)
        for key, record in records:
            log.publish(config.host.topic, record.value, key, record.headers)
        log.flush()


def keyed(client: str, readings: int, seed: int) -> list[tuple[bytes | None, Record]]:
    """Readings of a client, as records of the site's log."""
    records = []
    for number, values in enumerate(weather(readings, seed)):
        value = Reading(1e9 + number, values).encode()
        record = Record(READINGS, 0, 0, 0, None, value, Reading.headers())
        records.append((client.encode(), record))
    return records


def identity_of(client: str) -> bytes:
    return client.encode().ljust(16, b"i")


@pytest.fixture
def same_identities(monkeypatch: pytest.MonkeyPatch) -> None:
    identify_by_name(monkeypatch)


def identify_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the logs of clients have identities by their names, on which their noise depends."""

    def site_readings(path: Path, retain_bytes: int) -> SiteReadings:
        return SiteReadings(path, retain_bytes, identity_of)

    monkeypatch.setattr(site_source, "SiteReadings", site_readings)


def move_to_site_log(config: Config, site: Config, clients: Sequence[str]) -> None:
    """Give each client a log with an identity by its name, and write all readings of these into one
    log as well, in a mixed order that keeps that of each client."""
    waiting = {}
    for client in clients:
        path = config.client.folder / client / "readings.db"
        records = all_records(f"sqlite:{path}", READINGS)
        for old in path.parent.glob("readings.db*"):
            old.unlink()
            shutil.rmtree(site.client.folder / client, ignore_errors=True)

        def new_identity(name: str = client) -> bytes:
            return identity_of(name)

        with closing(SqliteLog(path, clock=clock, new_identity=new_identity)) as log:
            log.ensure(READINGS, READINGS_SETTINGS)
            for record in records:
                log.publish(READINGS, record.value, None, record.headers)
            log.flush()
        waiting[client] = list(records)
    generator = random.Random(1)
    mixed: list[tuple[bytes | None, Record]] = []
    while any(waiting.values()):
        client = generator.choice([name for name, records in waiting.items() if records])
        mixed.append((client.encode(), waiting[client].pop(0)))
    write_site(site, mixed)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("same_identities")
def test_clients_of_one_log_publish_what_those_with_logs_of_their_own_do(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_intake, "RECORDS_READ_MAX", 70)
    # On a busy machine a turn would end between two clients, of which the second then finds more:
    # that changes the order in which its models publish.
    monkeypatch.setattr(host_module, "SLICE_S", math.inf)
    own = load_config(federation_of_all(tmp_path / "own", mode))
    shutil.copytree(tmp_path / "own", tmp_path / "site")
    site = use_site_log(tmp_path / "site" / "federation.toml")
    move_to_site_log(own, site, PAIR)
    for folder in (tmp_path / "own", tmp_path / "site"):
        give_noise_keys(folder, PAIR, of_host=folder.name == "site")
    for client in PAIR:
        with resumed(open_client(own, client, clock=clock)) as node:
            while node.step():
                pass
    learnt = published(own)
    assert set(learnt) == set(PAIR)
    with closing(Host(site, clock=clock)) as host:
        serve(host)
    assert published(site) == learnt
    # The requests of a server, which clients answer from their windows.
    for config in (own, site):
        with resumed(open_server(config, clock=clock)) as server:
            while server.step():
                pass
    for client in PAIR:
        with resumed(open_client(own, client, clock=clock)) as node:
            while node.step():
                pass
    with closing(Host(site, clock=clock)) as host:
        serve(host)
    assert published(site) == published(own)
    assert published(own) != learnt, "requests were answered"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A federation of clients whose readings are to come in one log, and whose server has begun."""
    file = create_federation(tmp_path, [])
    give_noise_keys(tmp_path, CLIENTS, of_host=True)
    with resumed(open_server(load_config(file), clock=clock)) as server:
        server.step()
    return use_site_log(file)


@pytest.mark.usefixtures("same_identities")
def test_a_host_of_one_log_that_ends_after_every_step_loses_and_repeats_nothing(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_intake, "RECORDS_READ_MAX", 50)
    monkeypatch.setattr(site_intake, "TAKE_IN_S", 0.0)
    records = [record for seed, name in enumerate(CLIENTS) for record in keyed(name, 90, seed)]
    write_site(config, records)
    shutil.copytree(tmp_path, tmp_path / "copy")
    with closing(Host(config, clock=clock)) as host:
        serve(host)
    restarted = load_config(tmp_path / "copy" / "federation.toml")
    learnt: dict[str, int] = {}
    while sum(learnt.values()) < len(records):
        with closing(Host(restarted, clock=clock)) as host:
            host.step()
            host.step()
            learnt = {name: client.totals["learned"] for name, client in host.clients.items()}
    with closing(Host(restarted, clock=clock)) as host:
        serve(host)
    assert published(restarted) == published(config)
    assert set(published(config)) == set(CLIENTS)


@pytest.mark.parametrize("place", ["stepped", "saved", "published"])
@pytest.mark.usefixtures("same_identities")
def test_clients_that_step_together_lose_and_repeat_nothing_after_a_kill(
    tmp_path: Path, config: Config, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before what the clients have saved is in their file, before any has published it, and
    before the log has it."""
    monkeypatch.setattr(site_intake, "RECORDS_READ_MAX", 100)
    monkeypatch.setattr(site_intake, "TAKE_IN_S", 0.0)
    write_site(
        config, [record for seed, name in enumerate(CLIENTS) for record in keyed(name, 90, seed)]
    )
    cuts: list[Path] = []
    shared, method = {
        "stepped": (HostedClient, "step"),
        "saved": (SharedFiles, "publishing"),
        "published": (SharedLog, "end"),
    }[place]
    before = getattr(shared, method)
    parts = [path for path in tmp_path.iterdir() if path.name != "cut"]

    def cut_then(self: object) -> object:
        # What a kill leaves: the files as they are, with what SQLite keeps beside them.
        cut = tmp_path / f"cut{len(cuts)}"
        for part in [*parts, *tmp_path.glob("site-log.db*"), *tmp_path.glob("*.db-*")]:
            copy = shutil.copytree if part.is_dir() else shutil.copy
            cut.mkdir(exist_ok=True)
            if not (cut / part.name).exists():
                copy(part, cut / part.name)
        cuts.append(cut)
        return before(self)

    monkeypatch.setattr(shared, method, cut_then)
    with closing(Host(config, clock=clock)) as host:
        serve(host)
    monkeypatch.setattr(shared, method, before)
    whole = published(config)
    assert set(whole) == set(CLIENTS)
    assert len(cuts) >= 3
    for cut in (cuts[1], cuts[len(cuts) // 2], cuts[-1]):
        restarted = load_config(cut / "federation.toml")
        with closing(Host(restarted, clock=clock)) as host:
            serve(host)
            assert not host.failures()
        assert published(restarted) == whole


@pytest.mark.usefixtures("same_identities")
def test_a_full_disk_under_the_checkpoints_of_all_clients_is_waited_for(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "RETRY_FIRST_S", 0.0)
    monkeypatch.setattr(hosted_client, "RETRY_FIRST_S", 0.0)
    records = [record for seed, name in enumerate(CLIENTS) for record in keyed(name, 90, seed)]
    write_site(config, records)
    shutil.copytree(tmp_path, tmp_path / "copy")
    with closing(Host(config, clock=clock)) as host:
        serve(host)
    full = load_config(tmp_path / "copy" / "federation.toml")
    failures = iter([False, True, True])
    together = CheckpointFile.together

    @contextmanager
    def full_at_the_end(self: CheckpointFile) -> Iterator[None]:
        with together(self):
            yield
            # Raised where SQLite would: within the transaction, after all have saved.
            if next(failures, False):
                raise LogUnavailable("no room")

    monkeypatch.setattr(CheckpointFile, "together", full_at_the_end)
    with closing(Host(full, clock=clock)) as host:
        while host.totals()["learned"] < len(records):
            assert host.step(), "an outage is no idleness"
        serve(host)
    assert next(failures, None) is None, "it was full"
    assert published(full) == published(config)


@pytest.mark.usefixtures("same_identities")
def test_an_outage_of_the_federation_s_log_closes_all_clients_and_loses_nothing(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "RETRY_FIRST_S", 0.0)
    monkeypatch.setattr(hosted_client, "RETRY_FIRST_S", 0.0)
    records = [record for seed, name in enumerate(CLIENTS) for record in keyed(name, 90, seed)]
    write_site(config, records)
    shutil.copytree(tmp_path, tmp_path / "copy")
    with closing(Host(config, clock=clock)) as host:
        serve(host)
    away = load_config(tmp_path / "copy" / "federation.toml")
    outages = [True, True, False]
    publish = SqliteLog.publish

    def failing(self: SqliteLog, topic: str, *arguments: Any, **more: Any) -> None:
        if topic == away.contract.updates_topic and outages and outages.pop():
            raise LogUnavailable("the broker does not answer")
        publish(self, topic, *arguments, **more)

    monkeypatch.setattr(SqliteLog, "publish", failing)
    with closing(Host(away, clock=clock)) as host:
        while outages or host.totals()["learned"] < len(records):
            assert host.step(), "an outage is no idleness"
        serve(host)
        assert not host.failures()
    assert published(away) == published(config)


def test_a_client_that_may_not_publish_leaves_the_others_alone(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_site(config, [*keyed("attic", 90, 0), *keyed("garden", 90, 1)])
    publish = ClientNode.publish

    def refused(self: ClientNode) -> None:
        if self._client == "attic":
            raise InvalidState("another process has released readings of this log")
        publish(self)

    monkeypatch.setattr(ClientNode, "publish", refused)
    with closing(Host(config, clock=clock)) as host:
        serve(host)
        assert list(host.failures()) == ["attic"]
        assert host.clients["garden"].totals["learned"] == 90
    assert set(published(config)) == {"garden"}
    folder = config.client.folder / "garden"
    assert not (folder / "checkpoint.db").exists(), "clients share one"
    checkpoints = CheckpointFile(config.client.folder / "checkpoints.db", "host of house")
    with (
        closing(checkpoints),
        closing(Host(config, clock=clock)) as host,
        pytest.raises(InvalidState, match="in use"),
    ):
        serve(host)


def test_a_backup_of_a_host_names_all_its_clients_and_a_restored_one_does_not_go_on(
    tmp_path: Path, config: Config
) -> None:
    write_site(config, [*keyed("attic", 60, 0), *keyed("garden", 60, 1)])
    with closing(Host(config, clock=clock)) as host:
        serve(host)
        manifest = back_up(config.client.folder, tmp_path / "backup")
    folders = {name: client["folder"] for name, client in manifest["clients"].items()}
    assert folders == {"attic": "attic", "cellar": "cellar", "garden": "garden"}
    shutil.rmtree(config.client.folder)
    restore(tmp_path / "backup", config.client.folder, nothing_since=False)
    with (
        closing(Host(config, clock=clock)) as host,
        pytest.raises(InvalidState, match="--after-restore"),
    ):
        serve(host)


def test_new_devices_begin_within_clients_max_under_names_that_are_kept_as_they_were_written(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    hall = client_name_of("Werk Süd/Halle 1")
    write_site(config, keyed("attic", 20, 0) + keyed("Werk Süd/Halle 1", 60, 1))
    metrics = HostMetrics()
    caplog.set_level(logging.INFO, "shoal")
    with closing(Host(config, clients_max=2, metrics=metrics, clock=clock)) as host:
        serve(host)
        assert list(host.clients) == ["attic", hall]
        write_site(config, [*keyed("cellar", 20, 2), *keyed("attic", 5, 3)])
        serve(host)
        assert list(host.clients) == ["attic", hall]
        assert host.refused == {"cellar"}
        assert host.clients["attic"].totals["learned"] == 25
        host._shows_next = -1e9
        host.step()
    refused = [record for record in caplog.records if record.message == "client_refused"]
    assert len(refused) == 1, "said once"
    of_hall = {
        record.__dict__.get("client_text")
        for record in caplog.records
        if record.__dict__["fields"].get("client") == hall and record.message != "client_named"
    }
    assert of_hall == {"Werk Süd/Halle 1"}, "as the data call it"
    counted = metrics.registry.get_sample_value
    assert counted("shoal_host_records_total", {"result": "refused"}) == 20
    assert counted("shoal_host_clients", {"state": "refused"}) == 1
    written = (config.client.folder / hall / "name.txt").read_text(encoding="utf-8")
    assert written == "Werk Süd/Halle 1\n"
    # A client that has begun goes on when it is served by its name, and no other is.
    write_site(config, [*keyed("attic", 5, 4), *keyed("garden", 5, 5)])
    with closing(Host(config, ["attic"], clock=clock)) as host:
        serve(host)
        assert list(host.clients) == ["attic"]
        assert host.totals()["learned"] == 30
    assert not (config.client.folder / "garden" / "readings.db").exists()


def test_records_that_are_no_readings_cost_others_nothing(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Record(READINGS, 0, 0, 0, None, b"\xc1 no reading", Reading.headers())
    nameless = [None, b"", b"\xff\xfe", b"n" * 1001]
    mixed = keyed("attic", 30, 0)
    mixed[10:10] = [(key, broken) for key in [b"attic", *nameless]]
    write_site(config, mixed)
    with closing(Host(config, clock=clock)) as host:
        serve(host)
        assert list(host.clients) == ["attic"]
        totals = host.totals()
    assert (totals["read"], totals["learned"], totals["rejected"]) == (31, 30, 1)
    left_out = [record for record in caplog.records if record.message == "records_left_out"]
    assert [getattr(record, "fields", {})["records"] for record in left_out] == [4]


@pytest.mark.parametrize("client", ["key", "device.id"])
def test_messages_are_read_as_a_producer_of_a_topic_reads_them(
    config: Config, client: str, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = KafkaSourceSettings(fields={"warm": "values.t"}, time="at")
    host_settings = config.host.model_copy(update={"client": client})
    config = config.model_copy(update={"host": host_settings, "sources": {"kafka": kafka}})
    hall = client_name_of("Halle 1")
    records: list[tuple[bytes | None, Record]] = []
    for number, (warm, damp) in enumerate(weather(30, 0)):
        message: dict[str, Any] = {"device": {"id": "Halle 1"}, "at": 1e9 + number, "damp": damp}
        message["values"] = {"t": warm if number != 7 else "broken"}
        value = json.dumps(message).encode()
        records.append((b"Halle 1", Record(READINGS, 0, 0, 0, None, value, ())))
    records.insert(3, (b"cellar", Record(READINGS, 0, 0, 0, None, b'{"device": {"id": 3}}', ())))
    records.insert(5, (b"cellar", Record(READINGS, 0, 0, 0, None, b"{no JSON", ())))
    write_site(config, records)
    with closing(Host(config, clock=clock)) as host:
        serve(host)
        assert list(host.clients) == [hall], "no client begins by what is no reading"
        assert (host.totals()["read"], host.totals()["learned"]) == (29, 29)
    with closing(open_client_log(config, hall)) as log:
        stored = log.read(READINGS, {0: 0}, 100)[0]
    last = Reading.decode(stored[-1].value, stored[-1].headers)
    assert (last.time, list(last.values)) == (1e9 + 29, list(weather(30, 0)[29]))
    left_out = [record for record in caplog.records if record.message == "records_left_out"]
    reasons = {getattr(record, "fields", {})["reason"] for record in left_out}
    assert reasons == {"not_a_number", "not_json", "timeless"}
    held = config.model_copy(
        update={"sources": {"kafka": kafka.model_copy(update={"missing": "hold"})}}
    )
    write_site(config, records[:1])
    with closing(Host(held, clock=clock)) as host, pytest.raises(SettingsError, match="hold"):
        serve(host)


@pytest.mark.usefixtures("same_identities")
def test_what_clients_have_not_stored_is_stored_at_an_end_in_order_and_learnt_again_after_a_kill(
    tmp_path: Path, config: Config
) -> None:
    records = keyed("attic", 40, 0)
    with closing(Host(config, clock=clock)) as host:
        for part in (records[:30], records[30:]):
            write_site(config, part)
            serve(host)
        killed = shutil.copytree(tmp_path, tmp_path / "killed")
    for folder, stored in ((tmp_path, 40), (killed, 30)):
        restarted = load_config(folder / "federation.toml")
        with closing(Host(restarted, clock=clock)) as host:
            serve(host)
            before = host.clients["attic"].totals_before
            assert before is not None
            assert before["read"] == stored
            assert host.totals()["read"] == 40
        write_site(restarted, keyed("attic", 90, 1))
        with closing(Host(restarted, clock=clock)) as host:
            serve(host)
    killed_config = load_config(killed / "federation.toml")
    assert published(killed_config) == published(config)
    assert published(config), "there is something to compare"


def test_a_restart_opens_only_clients_that_have_something_to_do(
    tmp_path: Path, config: Config
) -> None:
    # Labels wait for a first snapshot, which clients look for by themselves.
    file = tmp_path / "federation.toml"
    text = file.read_text(encoding="utf-8").replace("label = true", "label = false")
    file.write_text(text, encoding="utf-8")
    config = load_config(file)
    names = ("attic", "cellar", "hall")
    now = [clock()]
    write_site(config, [record for name in names for record in keyed(name, 40, 0)])
    with closing(Host(config, clock=lambda: now[0])) as host:
        serve(host)
        totals = host.totals()
    write_site(config, keyed("attic", 30, 1))
    with closing(Host(config, clock=lambda: now[0])) as host:
        serve(host)
        is_open = {name: client.is_open for name, client in host.clients.items()}
        assert is_open == {"attic": True, "cellar": False, "hall": False}
        assert host.totals()["read"] == totals["read"] + 30, "those that are closed count, too"
    # What is learnt and not published is published when it is due, though no reading comes.
    updates = {name: len(published(config).get(name, [])) for name in names}
    with closing(Host(config, clock=lambda: now[0])) as host:
        for _ in range(2):
            serve(host)
            # As with a client that is opened at a start, the interval begins there.
            now[0] += config.client.publish_s
        serve(host)
        assert host.totals()["read"] == totals["read"] + 30
    later = {name: len(published(config).get(name, [])) for name in names}
    assert all(later[name] > updates[name] for name in names), (updates, later)


@pytest.mark.parametrize("model", ["fcac", "density_tree"])
def test_a_host_after_a_kill_opens_only_clients_that_have_something_to_do(
    tmp_path: Path, config: Config, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Those with readings that are not learnt or not stored, with records that may not be
    published, and with something that is due by the clock; and each publishes what it does after a
    kill whose host opens all of them."""
    config = without_labels(tmp_path, model)
    now = [clock()]
    names = ("attic", "cellar", "garden", "hall")
    write_site(config, [record for name in names for record in keyed(name, 40, 0)])
    host = Host(config, clock=lambda: now[0])
    serve(host)
    # Learnt and not stored, as it has stored less than five minutes ago.
    write_site(config, keyed("cellar", 3, 1))
    serve(host)
    killed = copy_of(tmp_path, "killed")
    # Stored, and killed before it is published.
    write_site(config, keyed("hall", 60, 2))
    stop_before_publishing(host)
    cut = copy_of(tmp_path, "cut")
    host.close_files()
    write_site(killed, keyed("attic", 1, 3))
    for folder, opened in ((killed, {"attic", "cellar"}), (cut, {"cellar", "hall"})):
        opens_all = copy_of(folder.client.folder.parent, "all")
        caplog.clear()
        with caplog.at_level(logging.INFO), closing(Host(folder, clock=lambda: now[0])) as host:
            serve(host)
            is_open = {name for name, client in host.clients.items() if client.is_open}
            assert is_open == opened
            [begun] = [record for record in caplog.records if record.message == "clients_begun"]
            fields = getattr(begun, "fields", {})
            assert fields == {"clients": 4, "open": 2, "away": 2}
            assert "checkpoint_restored" not in caplog.text
            # What waits is published when it is due, though no reading comes.
            now[0] += 1000.0
            serve(host)
            totals = host.totals()
        now[0] -= 1000.0
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(StoredStates, "note_of", lambda *_: None)
            with closing(Host(opens_all, clock=lambda: now[0])) as host:
                serve(host)
                assert all(client.is_open for client in host.clients.values())
                now[0] += 1000.0
                serve(host)
                assert host.totals() == totals
        now[0] -= 1000.0
        assert published(folder) == published(opens_all)
        assert set(published(folder)) == set(names)


def without_labels(folder: Path, model: str) -> Config:
    """The federation in a folder with this model, windows of 30 and updates after 900 s; labels
    wait for a first snapshot, which clients look for by themselves."""
    file = folder / "federation.toml"
    text = file.read_text(encoding="utf-8").replace("label = true", "label = false")
    text = text.replace("publish_s = 86400", "publish_s = 900", 1)
    if model == "density_tree":
        privacy = 'mode = "formal"\ncounts_epsilon = 4\nwindow_readings = 30\nwindow_s = 900'
        text = text.replace('mode = "formal"\nepsilon_per_reading = 200', privacy)
        text = text.replace('algorithm = "fcac"', 'algorithm = "density_tree"')
    file.write_text(text, encoding="utf-8")
    for old in folder.glob("federation.db*"):
        old.unlink()
    shutil.rmtree(folder / "server", ignore_errors=True)
    config = load_config(file)
    with resumed(open_server(config, clock=clock)) as server:
        server.step()
    return config


def copy_of(folder: Path, name: str) -> Config:
    """What a kill leaves of a federation: the files as they are, with what SQLite keeps beside
    them, in a folder beside."""
    copy = shutil.copytree(folder, folder.with_name(f"{folder.name}-{name}"))
    return load_config(copy / "federation.toml")


def stop_before_publishing(host: Host) -> None:
    """Let a host step until it has stored, and end it there."""
    with pytest.MonkeyPatch.context() as patched:

        def killed(_: SharedFiles) -> None:
            raise KeyboardInterrupt

        patched.setattr(SharedFiles, "publishing", killed)
        with pytest.raises(KeyboardInterrupt):
            serve(host)


def test_a_restart_opens_all_clients_with_another_contract_or_log(
    tmp_path: Path, config: Config
) -> None:
    file = tmp_path / "federation.toml"
    text = file.read_text(encoding="utf-8").replace("label = true", "label = false")
    file.write_text(text, encoding="utf-8")
    config = load_config(file)
    for name in ("attic", "cellar"):
        write_site(config, keyed(name, 40, 0))
    with closing(Host(config, clock=clock)) as host:
        serve(host)
    wider = text.replace("high = 50", "high = 60")
    other = shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-other")
    (other / "federation.toml").write_text(wider, encoding="utf-8")
    without_log = shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-without-log")
    for file in without_log.glob("federation.db*"):
        file.unlink()
    with closing(Host(load_config(without_log / "federation.toml"), clock=clock)) as host:
        serve(host)
        assert all(client.is_open for client in host.clients.values())
    restored = shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-restored")
    for name in ("attic", "cellar"):
        mark = load_config(restored / "federation.toml").client.folder / name / RESTORED
        mark.write_text("2026-01-01", encoding="utf-8")
    # At the start, and not at the next reading.
    for folder, why in (
        (other, "the contract in the federation file"),
        (restored, "from a backup"),
    ):
        host = Host(load_config(folder / "federation.toml"), clock=clock)
        with (
            closing(host),
            pytest.raises(InvalidState, match=f"2 of 2 clients were left out.*{why}"),
        ):
            serve(host)


def sharing(config: Config, hosts: int, number: int) -> Config:
    """The configuration of one of several hosts, which has a folder of its own."""
    host = config.host.model_copy(update={"hosts": hosts, "number": number})
    folder = config.client.folder.with_name(f"clients-{number}")
    client = config.client.model_copy(update={"folder": folder})
    return config.model_copy(update={"host": host, "client": client})


def write_partition(config: Config, partition: int, client: str, seed: int) -> None:
    with closing(open_log(config.host)) as log:
        log.ensure("readings", TopicSettings(partitions=2))
        for key, record in keyed(client, 60, seed):
            log.publish("readings", record.value, key, record.headers, partition)
        log.flush()


def test_hosts_share_the_partitions_of_a_topic_and_clients_do_not_move(config: Config) -> None:
    of_partition = {0: ("attic", "hall"), 1: ("cellar",)}
    for partition, clients in of_partition.items():
        for client in clients:
            write_partition(config, partition, client, partition)
    first = Host(sharing(config, 2, 0), clock=clock)
    metrics = HostMetrics()
    second = Host(sharing(config, 2, 1), metrics=metrics, clock=clock)
    with closing(first), closing(second):
        for number, host in enumerate((first, second)):
            serve(host)
            assert tuple(host.clients) == of_partition[number]
            assert host.totals()["read"] == 60 * len(of_partition[number])
        assert published(config).keys() == {"attic", "hall", "cellar"}
        # Records of one client in two partitions would make two clients of one name: they are left
        # out, and cost the others nothing.
        write_partition(config, 1, "attic", 7)
        write_partition(config, 1, "new", 8)
        serve(second)
        assert tuple(second.clients) == ("cellar", "new")
        assert second.totals()["read"] == 2 * 60
        assert not (sharing(config, 2, 1).client.folder / "attic").exists()
        write_partition(config, 1, "attic", 9)
        serve(second)
        second._shows_next = -1e9
        second.step()
        left_out = {"result": "elsewhere"}
        assert metrics.registry.get_sample_value("shoal_host_records_total", left_out) == 2 * 60
    of_other_folder = {"client": sharing(config, 2, 0).client}
    for wrong, error, match in (
        (sharing(config, 1, 0), InvalidState, "readings of client cellar were taken in by"),
        (
            sharing(config, 2, 1).model_copy(update=of_other_folder),
            InvalidState,
            "Clients do not move between hosts",
        ),
        (sharing(config, 3, 0), SettingsError, "has 2 partitions: one for each host is needed"),
    ):
        host = Host(wrong, clock=clock)
        with closing(host), pytest.raises(error, match=match):
            serve(host)
    # A host that has lost its own file is told from one that meets a client of another.
    shutil.rmtree(sharing(config, 2, 1).client.folder)
    with (
        closing(Host(sharing(config, 2, 1), clock=clock)) as host,
        pytest.raises(InvalidState, match="which is lost"),
    ):
        serve(host)


def test_clients_rest_after_their_turn_and_then_read_all_that_has_come(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "REST_RATIO", 1e9)
    with closing(Host(config, clock=clock)) as host:
        write_site(config, keyed("attic", 30, 0))
        while host.totals()["read"] < 30:
            host.step(0.001)
        # To begin, and to end the turn in which nothing was left to do.
        for _ in range(3):
            host.step(0.001)
        for _ in range(5):
            write_site(config, keyed("attic", 10, 0))
            assert host.step(0.001), "readings wait, so that it is not idle"
            assert host.step(0.001), "the same without new ones"
        assert host.totals()["read"] == 30, "it rests for a minute"
        host._turn.rests_until = 0.0
        host.step(0.001)
        assert host.totals()["read"] == 80, "in one batch"


def test_a_device_with_very_many_records_does_not_starve_the_others(config: Config) -> None:
    many = keyed("attic", 300, 0)
    write_site(config, [*(many * 40), *keyed("garden", 30, 1)])
    with closing(Host(config, clock=clock)) as host:
        host.step()
        # In the step in which its records have come it learns from them.
        while "garden" not in host.clients:
            host.step()
        assert host.clients["garden"].totals["read"] == 30
        assert host.clients["attic"].totals["read"] <= 1000 * 3 < 12_000
        serve(host)
        assert host.clients["attic"].totals["read"] == 12_000


def test_the_same_readings_are_not_given_to_clients_a_second_time_after_a_loss(
    tmp_path: Path, config: Config
) -> None:
    write_site(config, keyed("attic", 60, 0))
    with closing(Host(config, clock=clock)) as host:
        serve(host)
    shutil.rmtree(config.client.folder)
    with (
        closing(Host(config, clock=clock)) as host,
        pytest.raises(InvalidState, match="taken in by another file"),
    ):
        serve(host)


def test_readings_that_retention_has_removed_end_the_host_unless_gaps_are_accepted(
    config: Config,
) -> None:
    path = config.host.address.partition(":")[2]
    with closing(SqliteLog(path, clock=clock)) as log:
        log.ensure(READINGS, TopicSettings(retain_bytes=2000))
    for _ in range(3):
        write_site(config, keyed("attic", 10, 0))
    with closing(Host(config, clock=clock)) as host, pytest.raises(OffsetOutOfRange):
        serve(host)
    client = config.client.model_copy(update={"accept_gap": True})
    lenient = config.model_copy(update={"client": client})
    with closing(Host(lenient, clock=clock)) as host:
        serve(host)
        assert 0 < host.totals()["learned"] < 30


def test_an_outage_of_the_log_of_a_site_is_waited_for(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_source, "RETRY_FIRST_S", 0.0)
    write_site(config, keyed("attic", 60, 0))
    opened = site_source.open_site_intake
    outages = iter([True, True, False])

    def failing(*arguments: object, **more: object) -> object:
        if next(outages):
            raise LogUnavailable("the broker does not answer")
        return opened(*arguments, **more)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(site_source, "open_site_intake", failing)
    with closing(Host(config, clock=clock)) as host:
        while host.totals()["learned"] < 60:
            assert host.step(), "an outage is no idleness"


def test_commands_read_the_readings_of_one_client_and_a_client_by_itself_is_refused(
    config: Config,
) -> None:
    write_site(config, keyed("attic", 60, 0) + keyed("garden", 40, 1))
    with closing(Host(config, clock=clock)) as host:
        serve(host)
        with closing(open_client_log(config, "garden")) as log:
            assert log.bounds(READINGS) == {0: (0, 40)}
            records, after = log.read(READINGS, {0: 38})
        assert [record.offset for record in records] == [38, 39]
        assert after == {0: 40}
    with pytest.raises(SettingsError, match="shoal host"), open_client(config, "attic"):
        pass


def test_old_readings_of_a_client_are_removed_beyond_its_limit(tmp_path: Path) -> None:
    site = SiteReadings(tmp_path / "site.db", 500)
    with closing(site):
        for number in range(5):
            taken = [
                site_intake.TakenIn(client, 7, (("type", b"reading"),), b"x" * size)
                for client, size in (("a", 150), ("b", 1000))
            ]
            at = {0: number} if number else {}
            site.take_in(taken, b"source", at, {0: number + 1})
        a = site.log_of("a")
        first, end = a.bounds(READINGS)[0]
        assert 0 < first < end == 5
        with pytest.raises(OffsetOutOfRange):
            a.read(READINGS, {0: 0})
        assert site.log_of("b").bounds(READINGS) == {0: (4, 5)}, "never the newest one"
    with closing(SiteReadings(tmp_path / "site.db", 500)) as again:
        assert again.log_of("a").bounds(READINGS) == {0: (first, end)}
        assert again.positions(b"source") == {0: 5}
        with pytest.raises(InvalidState, match="another host"):
            again.take_in([], b"source", {0: 4}, {0: 6})
    with closing(SiteReadings(tmp_path / "site.db", 500, read_only=True)) as to_read:
        assert to_read.log_of("b").read(READINGS, {0: 4})[0][0].value == b"x" * 1000
        with closing(SiteReadings(tmp_path / "site.db", 500)) as host:
            host.take_in([], b"source", {0: 5}, {0: 6})
        with pytest.raises(LogUnavailable, match="opened it meanwhile"):
            to_read.log_of("b").read(READINGS, {0: 4})
    assert [path.name for path in tmp_path.iterdir()] == ["site.db"]


def test_a_topic_of_a_broker_is_taken_in_and_read_on_after_a_restart(
    config: Config, kafka_bootstrap: str
) -> None:
    topic = f"devices-{uuid.uuid4().hex}"
    address = f"kafka://{kafka_bootstrap}"
    host_settings = config.host.model_copy(
        update={"client": "device.id", "address": address, "topic": topic}
    )
    config = config.model_copy(update={"host": host_settings})
    with closing(open_log(address)) as log:
        log.ensure(topic, TopicSettings(partitions=3))

        def send(readings: int) -> None:
            for number, (warm, damp) in enumerate(weather(readings, 0)):
                device = f"d{number % 5}"
                message = {"device": {"id": device}, "warm": warm, "damp": damp}
                log.publish(topic, json.dumps(message).encode(), device.encode())
            log.flush()

        def learn_all(number: int) -> None:
            with closing(Host(config, clock=clock)) as host:
                while host.totals()["learned"] < number:
                    host.step(0.05)
                serve(host)
                assert host.totals()["learned"] == number
                assert sorted(host.clients) == ["d0", "d1", "d2", "d3", "d4"]

        send(100)
        learn_all(100)
        send(50)
        learn_all(150)
        sent = 150
        with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
            while not (read := shown_progress(admin, config)):  # a new broker refuses the first
                send(10)
                sent += 10
                learn_all(sent)
        assert 0 < read <= sent


def shown_progress(admin: KafkaAdminClient, config: Config) -> int:
    """Records of the site's topic that the brokers' tools show as read by its hosts."""
    reader = f"{config.contract.federation}.hosts"
    shown = admin.list_group_offsets({reader: None})[reader]
    return sum(about.offset for place, about in shown.items() if place.topic == config.host.topic)
