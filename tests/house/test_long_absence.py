"""Clients that join late or return after long: snapshots are compacted, rounds are over, old
updates are gone."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from shoal.config.settings import Config, LogSettings, load_config
from shoal.protocol.codec import unpack
from shoal.protocol.messages import Snapshot, Update
from shoal.protocol.topics import LABELS, ensure_topics
from shoal.runtime.logs import open_client_log
from shoal.transports import open_log
from shoal.transports.base import Record, latest
from tests.house.federation_processes import (
    have_published,
    prepare_federation,
    replayed_model,
    start_all,
    undisturbed_updates,
)
from tests.house.processes import Process, killed_on_exit, wait_until
from tests.house.small_federation import (
    CLIENTS,
    all_records,
    contents,
    create_federation,
    final_model,
    run_to_end,
    weather,
    write_readings,
)

FAST_COMPACTION = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
AWAY = CLIENTS[2]
HEAPS = """
[[models]]
name = "heaps"
algorithm = "kmeans"
options = { clusters = 4 }
[models.rounds]
deadline_s = 1
rounds_max = 1000
tolerance = 0
wake_s = 0.2
[log]"""
"""a model that requests round after round and hardly sleeps"""


def compact_quickly(config: Config, bootstrap: str) -> None:
    """Let the brokers compact the snapshots within seconds."""
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
    topic = ConfigResource(
        ConfigResourceType.TOPIC, config.contract.snapshots_topic, FAST_COMPACTION
    )
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        admin.alter_configs([topic])


def is_compacted(config: Config) -> bool:
    """Whether only the newest of many snapshots of the model `clusters` are left."""
    kept = all_records(config.log.address, config.contract.snapshots_topic)
    of_model = [record for record in kept if record.key == b"clusters"]
    return bool(of_model) and len(of_model) <= 2 and newest(config, "clusters").version > 3


def newest(config: Config, model: str) -> Snapshot:
    with closing(open_log(config.log)) as log:
        record = latest(log, config.contract.snapshots_topic)[model.encode()]
    return Snapshot.decode(record.value, record.headers)


def newest_round(config: Config) -> int:
    """The newest round of the model `heaps`; 0 before the first."""
    with closing(open_log(config.log)) as log:
        record = latest(log, config.contract.snapshots_topic).get(b"heaps")
    return 0 if record is None else Snapshot.decode(record.value, record.headers).round or 0


def updates(records: list[Record], model: str, client: str) -> list[Update]:
    decoded = [Update.decode(record.value, record.headers) for record in records]
    return [update for update in decoded if (update.model, update.client) == (model, client)]


def cluster_updates(records: list[Record]) -> set[bytes]:
    """The updates of the client that was away for the model `clusters`."""
    return {contents(update) for update in updates(records, "clusters", AWAY)}


def answers(records: list[Record]) -> dict[int, int]:
    """Sequence number of each answer of the client that was away -> the round it answers."""
    return {update.sequence: update.round or 0 for update in updates(records, "heaps", AWAY)}


def test_a_client_that_joins_late_labels_by_the_newest_snapshot_of_a_compacted_topic(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    # The late client learns too little for an update, so that no newer snapshot follows from it.
    file = create_federation(
        tmp_path, readings=400, publish_readings=20, address=f"kafka://{kafka_bootstrap}"
    )
    file.write_text(
        file.read_text(encoding="utf-8").replace("[server]", "[server]\nlease_renew_s = 0.2"),
        encoding="utf-8",
    )
    config = load_config(file)
    compact_quickly(config, kafka_bootstrap)
    run_to_end(file)
    write_readings(config, "loft", weather(15, 9))
    server = Process(["server", "--config", str(file), "--no-page"], tmp_path / "server.txt")
    with killed_on_exit([server]):
        wait_until(
            lambda: is_compacted(config)
        )  # brokers never compact the newest segment: the server's leases fill it
        version = newest(config, "clusters").version
        late = Process(
            ["client", "--config", str(file), "--name", "loft", "--until-idle", "1"],
            tmp_path / "loft.txt",
        )
        late.end()
    with closing(open_client_log(config, "loft")) as log:
        labels = [unpack(record.value) for record in latest(log, LABELS).values() if record.value]
    assert len(labels) == 15
    assert {label["version"] for label in labels} == {version}


def test_a_client_that_was_away_for_long_publishes_what_it_learns_and_answers_no_old_request(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    file = prepare_federation(tmp_path, f"kafka://{kafka_bootstrap}")
    file.write_text(file.read_text(encoding="utf-8").replace("[log]", HEAPS, 1), encoding="utf-8")
    config = load_config(file)
    compact_quickly(config, kafka_bootstrap)
    topic = config.contract.updates_topic
    processes = start_all(file, 600)
    server, *clients, producer = processes
    with killed_on_exit(processes):
        wait_until(lambda: have_published(clients))
        assert clients[2].stop() == 0
        left_at = newest_round(config)
        producer.end()
        wait_until(lambda: is_compacted(config) and newest_round(config) > left_at + 5)
        # Brokers remove what the server has read.
        cut = newest(config, "clusters").read_up_to[0]
        gone = [record for record in all_records(config.log.address, topic) if record.offset < cut]
        with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
            admin.delete_records({TopicPartition(topic, 0): cut})
        # The folder is copied while no process writes to it.
        expected = undisturbed_updates(config, AWAY, tmp_path / "undisturbed")
        back_at = newest_round(config)
        before = answers(gone + all_records(config.log.address, topic))
        clients[2] = processes[3] = clients[2].restarted()
        # It repeats its newest update, which is not known to be published.
        wait_until(
            lambda: len(answers(gone + all_records(config.log.address, topic))) > len(before) + 2
        )
        wait_until(
            lambda: cluster_updates(gone + all_records(config.log.address, topic)) >= set(expected)
        )
        for process in (*clients, server):
            assert process.stop() == 0
    records = gone + all_records(config.log.address, topic)
    after = answers(records)
    assert before.items() <= after.items()
    assert min(answered for number, answered in after.items() if number not in before) >= back_at
    assert cluster_updates(records) == set(expected)
    assert final_model(file) == whole_model(config, records, tmp_path)


def whole_model(config: Config, records: list[Record], scratch: Path) -> bytes:
    """The model of a server that reads all updates, also those that brokers removed."""
    there = config.model_copy(update={"log": LogSettings(address=f"sqlite:{scratch / 'copy.db'}")})
    with closing(open_log(there.log)) as log:
        ensure_topics(log, config.contract, there.log)
        for record in records:
            if record.key == there.contract.update_key("clusters"):
                log.publish(record.topic, record.value, record.key, record.headers)
    return replayed_model(there, scratch / "replay.db")
