"""Hosts of a group share the partitions of a topic, and clients move with them."""

from __future__ import annotations

import hmac
import json
import logging
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import pytest
from click.testing import CliRunner
from kafka import KafkaAdminClient, KafkaProducer

from shoal.cli.main import shoal
from shoal.client_nodes import group_host, site_intake
from shoal.client_nodes.bootstrap import open_client
from shoal.client_nodes.group_host import GroupHost, changelog_topic
from shoal.client_nodes.partition_state import noise_key_of, readings_identity
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState, SettingsError
from shoal.files import write_secret
from shoal.privacy.ledger import LEDGER, Spending, read_spending
from shoal.protocol.messages import Update
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS, READINGS_SETTINGS
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports import open_log
from shoal.transports.base import Record, TopicSettings, first_positions, latest, partition_of
from shoal.transports.sqlite.log import SqliteLog
from tests.house.counted_hosts import WINDOW, text_of
from tests.house.processes import Process, killed_on_exit, wait_until
from tests.house.small_federation import all_records, clock, contents, weather

DEVICES = tuple(f"d{number}" for number in range(6))
PARTITIONS = 2
READINGS_EACH = 90
SENT = len(DEVICES) * READINGS_EACH


@pytest.fixture
def config(tmp_path: Path, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> Config:
    """See `site_of_small_steps`."""
    return site_of_small_steps(tmp_path, kafka_bootstrap, monkeypatch)


def site_of_small_steps(folder: Path, bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A federation on an embedded log whose clients' readings come on a topic of a broker."""
    # Small steps, so that there are many moments between them.
    monkeypatch.setattr(site_intake, "RECORDS_READ_MAX", 40)
    monkeypatch.setattr(site_intake, "TAKE_IN_S", 0.0)
    monkeypatch.setattr(group_host, "FENCED_S", 0.0)
    (folder / "alone").mkdir()
    (folder / "alone" / "federation.toml").write_text(text_of({}), encoding="utf-8")
    write_secret(folder / "site.key", bytes(range(32)))
    file = folder / "federation.toml"
    file.write_text(text_of(grouped(bootstrap)), encoding="utf-8")
    federation = load_config(file)
    for settings in (federation, load_config(folder / "alone" / "federation.toml")):
        with resumed(open_server(settings, clock=clock)) as server:
            server.step()
    return federation


def grouped(bootstrap: str) -> dict[str, Any]:
    """The section of hosts of a group, on a topic of their own."""
    return {
        "client": "key",
        "address": f"kafka://{bootstrap}",
        "topic": f"devices-{uuid.uuid4().hex}",
        "group": f"hosts-{uuid.uuid4().hex}",
        "noise_key_file": "site.key",
    }


def publish_alone(config: Config, folder: Path) -> Config:
    """Let each client learn from a log of its own, in another folder, what the topic has of it.

    With the times of the topic, and the key and the identity that hosts give it.
    """
    alone = load_config(folder / "federation.toml")
    assert config.host.noise_key_file is not None
    site_key = config.host.noise_key_file.read_bytes()
    of_each: dict[str, list[Record]] = {name: [] for name in DEVICES}
    with closing(open_log(config.host)) as topic:
        identity = topic.identity(config.host.topic)
        at = first_positions(topic, config.host.topic)
        while records := topic.read(config.host.topic, at)[0]:
            for record in records:
                of_each[(record.key or b"").decode()].append(record)
                at[record.partition] = record.offset + 1
    for name, records in of_each.items():
        own = folder / "clients" / name
        own.mkdir(parents=True)
        Checkpoint(own / "checkpoint.db", f"client {name} of house").close()
        key = noise_key_of(site_key, "house", name)
        write_secret(own / "noise.key", key)
        with closing(
            SqliteLog(
                own / "readings.db",
                clock=clock,
                new_identity=lambda name=name: readings_identity(identity, name),
            )
        ) as log:
            log.ensure(READINGS, READINGS_SETTINGS)
            for record in records:
                log.publish(READINGS, record.value, None, record.headers)
            log.flush()
        with resumed(open_client(alone, name, clock=clock)) as node:
            while node.step():
                pass
    return alone


def of_host(config: Config, name: str) -> Config:
    client = config.client.model_copy(update={"folder": config.client.folder / name})
    return config.model_copy(update={"client": client})


def send(config: Config, seed: int) -> None:
    """Readings of every device, mixed, all at one time, as windows and updates have times of the
    topic in them."""
    used = {partition_of(name.encode(), PARTITIONS) for name in DEVICES}
    assert len(used) == PARTITIONS
    topic = config.host.topic
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_of(config))) as admin:
        if topic not in admin.list_topics():
            configs = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
            made = {"num_partitions": PARTITIONS, "replication_factor": 1, "configs": configs}
            admin.create_topics({topic: made})
    of_each = [weather(READINGS_EACH, seed + number) for number in range(len(DEVICES))]
    headers = list(Reading.headers())
    with closing(KafkaProducer(bootstrap_servers=bootstrap_of(config))) as producer:
        for number, rows in enumerate(zip(*of_each, strict=True)):
            for name, values in zip(DEVICES, rows, strict=True):
                value = Reading(1e9 + number, values).encode()
                partition = partition_of(name.encode(), PARTITIONS)
                producer.send(topic, value, name.encode(), headers, partition, int(1000 * clock()))
        producer.flush()


def kill(host: GroupHost) -> None:
    """End a host as a kill does: nothing is stored. The group need not wait for the end of its
    session, as it would after a kill of its process."""
    leave(host)
    host._opened.close()
    for owned in host._owned.values():
        owned.moves.close()
        owned.host.close_files()


def leave(host: GroupHost) -> None:
    """Leave the group, of which the host does not know."""
    if host._group is not None:
        host._group.close()


def step_until(holds: Callable[[], bool], *hosts: GroupHost) -> None:
    """Step these hosts in turn until the condition holds; only pytest's timeout limits that."""
    while not holds():
        for host in hosts:
            host.step(0.02)


def learn(host: GroupHost, readings: int) -> None:
    """Step until so many readings are learnt by the clients of all partitions, and published."""
    step_until(
        lambda: len(host.partitions) == PARTITIONS and host.totals()["learned"] >= readings, host
    )
    while any(owned.host.step() for owned in host._owned.values()):
        pass


def updates_of(config: Config) -> dict[tuple[str, str, int, int], bytes]:
    """Every update in the log by client, model, number and chunk. Copies are the same to the byte;
    how the updates of two models take turns hangs on how many readings a step has found."""
    updates: dict[tuple[str, str, int, int], bytes] = {}
    for record in all_records(config.log.address, config.contract.updates_topic):
        update = Update.decode(record.value or b"", record.headers)
        place = (update.client, update.model, update.sequence, update.chunk)
        assert updates.setdefault(place, record.value or b"") == record.value
    return updates


def all_updates(config: Config) -> list[Update]:
    """The updates in the log, those that were published again among them."""
    records = all_records(config.log.address, config.contract.updates_topic)
    return [Update.decode(record.value or b"", record.headers) for record in records]


def charges(host: GroupHost) -> dict[str, Spending]:
    """What the ledgers of all clients of a host say, by account."""
    accounts = {}
    for partition in host.partitions:
        folder = group_host.config_of_partition(host._config, partition).client.folder
        accounts.update(read_spending(folder / LEDGER))
    return accounts


def charges_alone(config: Config) -> dict[str, Spending]:
    """The same of clients by themselves."""
    accounts = {}
    for ledger in config.client.folder.glob(f"*/{LEDGER}"):
        accounts.update(read_spending(ledger))
    return accounts


def check_charges(found: Mapping[str, Spending], alone: Mapping[str, Spending]) -> None:
    """Windows are charged once, and each row that can have been published."""
    assert found.keys() == alone.keys() == {f"client {name} of house" for name in DEVICES}
    for account, spent in found.items():
        assert (spent.models, spent.windows) == (alone[account].models, alone[account].windows)
        assert spent.rows is not None
        # Rows are charged with what a step has read beyond them.
        assert READINGS_EACH // WINDOW * WINDOW <= spent.rows.places <= READINGS_EACH


def test_a_host_that_stands_still_is_replaced_and_no_reading_is_lost_or_released_twice(
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    send(config, 0)
    alone = publish_alone(config, tmp_path / "alone")
    first = GroupHost(of_host(config, "first"), clock=clock)
    step_until(lambda: first.totals()["learned"] > SENT // 3, first)
    leave(first)
    had = first.partitions
    assert had
    with closing(GroupHost(of_host(config, "second"), clock=clock)) as second:
        learn(second, SENT)
        assert second.totals()["learned"] == SENT
        check_charges(charges(second), charges_alone(alone))
        assert updates_of(config) == updates_of(alone)
        # It does not know of the new assignment yet, and goes on. It can store nothing more: so it
        # publishes nothing more.
        monkeypatch.setattr(first, "_follow", lambda _: True)
        with caplog.at_level(logging.WARNING):
            send(config, 50)
            step_until(lambda: not first.partitions, first)
        lost = [entry for entry in caplog.records if "partition_lost" in entry.getMessage()]
        assert len(lost) == len(had)
        assert updates_of(config) == updates_of(alone)
    kill(first)
    with pytest.raises(InvalidState, match="under another noise key"):
        go_on_with_another_key(config, tmp_path)
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_of(config))) as admin:
        admin.delete_topics([changelog_topic(config)])
    with pytest.raises(InvalidState, match="was deleted since"):
        go_on(of_host(config, "third"))


def test_a_host_that_opens_clients_after_it_was_replaced_gives_them_up_and_does_not_end(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the host after it has published is not known to it: were that an error of its clients,
    the process would end."""
    send(config, 0)
    with closing(GroupHost(of_host(config, "earlier"), clock=clock)) as earlier:
        learn(earlier, SENT)
    first = GroupHost(of_host(config, "first"), clock=clock)
    while len(first.partitions) < PARTITIONS:
        first._follow(0.02)
    leave(first)
    send(config, 50)
    with closing(GroupHost(of_host(config, "second"), clock=clock)) as second:
        learn(second, 2 * SENT)
        before = updates_of(config)
        monkeypatch.setattr(first, "_follow", lambda _: True)
        step_until(lambda: not first.partitions, first)
        assert updates_of(config) == before
    kill(first)


def test_a_host_joins_under_the_name_and_with_the_session_of_its_settings(
    config: Config,
) -> None:
    host = config.host.model_copy(update={"member": "host-0", "session_s": 42.0})
    named = config.model_copy(update={"host": host})
    with (
        closing(group_host.kafka_group(named)) as member,
        closing(KafkaAdminClient(bootstrap_servers=bootstrap_of(config))) as admin,
    ):
        wait_until(lambda: member.assigned(0.1) is not None)
        (described,) = admin.describe_groups([host.group])[host.group]["members"]
        assert described["group_instance_id"] == "host-0"
        assert member._connected().config["session_timeout_ms"] == 42_000


def bootstrap_of(config: Config) -> str:
    return config.host.address.removeprefix("kafka://")


def go_on(config: Config) -> None:
    """Run a host of all partitions until it ends by an error."""
    with closing(GroupHost(config, clock=clock)) as host:
        step_until(lambda: False, host)


def go_on_with_another_key(config: Config, folder: Path) -> None:
    other = folder / "other.key"
    write_secret(other, bytes(32))
    host = config.host.model_copy(update={"noise_key_file": other})
    go_on(of_host(config.model_copy(update={"host": host}), "third"))


@pytest.mark.parametrize(
    ("host", "match"),
    [
        ({"client": ""}, "set client"),
        ({"address": "sqlite:site.db"}, "on Kafka"),
        ({"hosts": 2}, "leave out hosts"),
        ({"noise_key_file": ""}, "name its file with noise_key_file"),
        ({"group": "", "member": "host-0"}, "member names a host of a group"),
    ],
)
def test_a_section_by_which_clients_cannot_move_is_refused(
    tmp_path: Path, host: dict[str, Any], match: str
) -> None:
    section = {name: value for name, value in (grouped("b:9092") | host).items() if value != ""}
    file = tmp_path / "federation.toml"
    file.write_text(text_of(section), encoding="utf-8")
    with pytest.raises(SettingsError, match=match):
        load_config(file)


def test_settings_by_which_clients_would_lose_something_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(text_of(grouped("b:9092")), encoding="utf-8")
    config = load_config(file)
    with pytest.raises(SettingsError, match=r"noise_key_file .* cannot be read"):
        GroupHost(config)
    (tmp_path / "site.key").write_bytes(b"short")
    (tmp_path / "site.key").chmod(0o600)
    with pytest.raises(SettingsError, match="does not have 32 bytes"):
        GroupHost(config)
    labelling = config.client.model_copy(update={"label": True})
    with pytest.raises(SettingsError, match="label = false"):
        GroupHost(config.model_copy(update={"client": labelling}))
    ledgers = config.readings.model_copy(update={"folder": tmp_path / "ledgers"})
    with pytest.raises(SettingsError, match=r"\[readings\] folder"):
        GroupHost(config.model_copy(update={"readings": ledgers}))
    config.client.folder.mkdir()
    (config.client.folder / "site.db").touch()
    with pytest.raises(SettingsError, match="stay on their host"):
        GroupHost(config)


def test_noise_keys_of_clients_and_federations_are_all_different() -> None:
    key = bytes(range(32))
    keys = {
        noise_key_of(site_key, federation, client)
        for site_key in (key, bytes(32))
        for federation in ("plant", "plant2")
        for client in ("a", "2a")
    }
    assert len(keys) == 8
    # RFC 5869, test case 1 with another length of key and text is no use here: that of its
    # definition is.
    extracted = hmac.digest(bytes(32), key, "sha256")
    expected = hmac.digest(extracted, b"shoal noise key 1\nplant\na\x01", "sha256")
    assert noise_key_of(key, "plant", "a") == expected


def charged_in_changelog(config: Config) -> dict[str, int]:
    """Windows that are charged to each client, as a host that takes over now would find them."""
    windows: Counter[str] = Counter()
    with closing(open_log(config.host)) as log:
        records = latest(log, changelog_topic(config))
    for key, record in records.items():
        kind, *where = msgpack.unpackb(key)
        if kind == "ledger" and where[1] == "releases" and record.value is not None:
            windows[where[0]] += 1
    return windows


@pytest.mark.integration
def test_a_killed_process_is_replaced_by_those_that_are_left(
    config: Config, tmp_path: Path
) -> None:
    send(config, 0)
    alone = publish_alone(config, tmp_path / "alone")
    processes: list[Process] = []
    with killed_on_exit(processes):
        for number in range(3):
            folder = tmp_path / f"host-{number}"
            folder.mkdir()
            shutil.copy(tmp_path / "site.key", folder)
            text = text_of(
                config.host.model_dump(include={"client", "address", "topic", "group"})
                | {"noise_key_file": "site.key"},
                address=f"sqlite:{tmp_path / 'federation.db'}",
            )
            (folder / "federation.toml").write_text(text, encoding="utf-8")
            arguments = ["host", "--config", str(folder / "federation.toml"), "--json"]
            processes.append(Process(arguments, folder / "host.log"))
        killed = processes[0]
        # Three for two partitions: one has none, and is to have one.
        wait_until(lambda: any("partition_gained" in host.log_text() for host in processes))
        killed = next(host for host in processes if "partition_gained" in host.log_text())
        killed.kill()
        wait_until(lambda: updates_of(config).keys() == updates_of(alone).keys())
        # All is learnt, stored and published: the last host opens none of the clients that it gets.
        left = [host for host in processes if host is not killed]
        wait_until(lambda: {number for host in left for number in partitions_of(host)} == {0, 1})
        owner = next(host for host in left if partitions_of(host))
        (last,) = [host for host in left if host is not owner]
        before = len(events_of(last, "clients_begun"))
        owner.kill()
        wait_until(lambda: partitions_of(last) == {0, 1})
        wait_until(lambda: len(events_of(last, "clients_begun")) > before)
        gained = events_of(last, "clients_begun")[before:]
        assert gained
        for entry in gained:
            assert (entry["open"], entry["away"]) == (0, entry["clients"])
        assert "checkpoint_restored" not in last.log_text()
        assert last.stop() == 0, last.log_text()
    # Processes go by a clock of their own, whose time is in what they publish.
    assert contents_of(config) == contents_of(alone)


def events_of(host: Process, *names: str) -> list[dict[str, Any]]:
    """The events of these names in the log of a host."""
    events = []
    for line in host.log_text().splitlines():
        if any(f'"{name}"' in line for name in names):
            events.append(json.loads(line))
    return events


def partitions_of(host: Process) -> set[int]:
    """The partitions that a host has, by its log."""
    partitions = set()
    for event in events_of(host, "partition_gained", "partition_lost"):
        if event["event"] == "partition_gained":
            partitions.add(event["partition"])
        else:
            partitions.discard(event["partition"])
    return partitions


def contents_of(config: Config) -> set[tuple[Any, ...]]:
    """What the updates in the log hold, by client and model."""
    return {
        (update.client, update.model, update.sequence, contents(update))
        for update in all_updates(config)
    }


def checked(folder: Path, *options: str) -> str:
    """What `shoal check` prints of the federation there."""
    result = CliRunner().invoke(shoal, ["check", str(folder / "federation.toml"), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_check_says_how_many_hosts_can_share_the_topic(config: Config, tmp_path: Path) -> None:
    topic = config.host.topic
    assert f"group       {config.host.group}  a host for each partition of {topic} at most" in (
        checked(tmp_path)
    )
    assert f"{topic} is not there: make it" in checked(tmp_path, "--log")
    with closing(open_log(config.host)) as log:
        log.ensure(topic, TopicSettings(partitions=PARTITIONS))
    assert f"{topic} has {PARTITIONS} partitions: up to {PARTITIONS} hosts" in (
        checked(tmp_path, "--log")
    )
    shown = json.loads(checked(tmp_path, "--log", "--json"))["group"]
    assert shown == {"name": config.host.group, "topic": topic, "partitions": PARTITIONS}
    assert json.loads(checked(tmp_path, "--json"))["group"]["partitions"] is None


def test_a_host_and_a_check_refuse_brokers_that_are_too_old_for_a_group(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the newest Kafka were the first that verifies transactions.
    monkeypatch.setattr("shoal.transports.kafka.exactly_once.RECORDS_VERIFIED", 10**6)
    with closing(GroupHost(config)) as host, pytest.raises(SettingsError, match="are older than"):
        host.step(1.0)
    command = ["check", str(tmp_path / "federation.toml"), "--log"]
    result = CliRunner().invoke(shoal, command)
    assert result.exit_code != 0
    assert "hosts with fixed numbers" in f"{result.output} {result.exception}"
