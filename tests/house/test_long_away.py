"""Who comes late or back after long: the snapshots have been compacted, calls were missed, old updates are gone."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from shoal.config.settings import Config, LogSettings, load_config
from shoal.protocol.codec import unpack
from shoal.protocol.messages import Snapshot, Update
from shoal.protocol.topics import LABELS, ensure_topics
from shoal.runtime.readings_log import open_client_log
from shoal.transports import open_log
from shoal.transports.base import Record, latest
from tests.house.processes import Process, none_left_over, wait_until
from tests.house.small_federation import (
    CLIENTS,
    all_records,
    begin,
    final_model,
    run_to_end,
    said,
    weather,
    write_readings,
)
from tests.house.whole_house import at_work, replayed, start_all, undisturbed_updates, whole_house

HURRY = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
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
"""a model that calls again and again, whoever answers: it hardly sleeps when nothing moves any more"""


def hurry_the_cleaner(config: Config, bootstrap: str) -> None:
    """Let the brokers compact the snapshots within seconds."""
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
    topic = ConfigResource(ConfigResourceType.TOPIC, config.contract.snapshots_topic, HURRY)
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        admin.alter_configs([topic])


def is_cleaned(config: Config) -> bool:
    """Whether of the snapshots of the one model that clients label by only a few of many are left."""
    kept = all_records(config.log.address, config.contract.snapshots_topic)
    of_model = [record for record in kept if record.key == b"clusters"]
    return bool(of_model) and len(of_model) <= 2 and newest(config, "clusters").version > 3


def newest(config: Config, model: str) -> Snapshot:
    with closing(open_log(config.log)) as log:
        record = latest(log, config.contract.snapshots_topic)[model.encode()]
    return Snapshot.decode(record.value, record.headers)


def newest_round(config: Config) -> int:
    """Of the calls that have been made; 0 before the first."""
    with closing(open_log(config.log)) as log:
        record = latest(log, config.contract.snapshots_topic).get(b"heaps")
    return 0 if record is None else Snapshot.decode(record.value, record.headers).round or 0


def updates(records: list[Record], model: str, client: str) -> list[Update]:
    heard = [Update.decode(record.value, record.headers) for record in records]
    return [update for update in heard if (update.model, update.client) == (model, client)]


def told(records: list[Record]) -> set[bytes]:
    """What the client that was away has said of its clusters."""
    return {said(update) for update in updates(records, "clusters", AWAY)}


def answers(records: list[Record]) -> dict[int, int]:
    """The rounds that the client that was away has answered, by the number of its answer."""
    return {update.sequence: update.round or 0 for update in updates(records, "heaps", AWAY)}


def test_who_joins_late_reads_only_what_the_cleaner_has_left_of_the_snapshots_and_labels_by_the_newest(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    # What the late one learns is too little to be said, so that no newer snapshot comes of it.
    file = begin(tmp_path, readings=400, publish_readings=20, address=f"kafka://{kafka_bootstrap}")
    file.write_text(
        file.read_text(encoding="utf-8").replace("[server]", "[server]\nlease_renew_s = 0.2"), encoding="utf-8"
    )
    config = load_config(file)
    hurry_the_cleaner(config, kafka_bootstrap)
    run_to_end(file)
    write_readings(config, "loft", weather(15, 9))
    server = Process(["server", "--config", str(file), "--no-page"], tmp_path / "server.txt")
    with none_left_over([server]):
        wait_until(lambda: is_cleaned(config))  # the newest segment never is: the server's claims make it an older one
        version = newest(config, "clusters").version
        late = Process(["client", "--config", str(file), "--name", "loft", "--until-idle", "1"], tmp_path / "loft.txt")
        late.end()
    with closing(open_client_log(config, "loft")) as log:
        labels = [unpack(record.value) for record in latest(log, LABELS).values() if record.value]
    assert len(labels) == 15
    assert {label["version"] for label in labels} == {version}


def test_a_client_that_was_away_for_long_says_what_it_has_learnt_and_answers_no_call_that_is_over(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    file = whole_house(tmp_path, f"kafka://{kafka_bootstrap}")
    file.write_text(file.read_text(encoding="utf-8").replace("[log]", HEAPS, 1), encoding="utf-8")
    config = load_config(file)
    hurry_the_cleaner(config, kafka_bootstrap)
    topic = config.contract.updates_topic
    processes = start_all(file, 1200)
    server, *clients, producer = processes
    with none_left_over(processes):
        wait_until(lambda: at_work(clients))
        assert clients[2].stop() == 0
        left_at = newest_round(config)
        producer.end()
        wait_until(lambda: is_cleaned(config) and newest_round(config) > left_at + 5)
        # What the server has read is dropped by the brokers.
        cut = newest(config, "clusters").read_up_to[0]
        gone = [record for record in all_records(config.log.address, topic) if record.offset < cut]
        with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
            admin.delete_records({TopicPartition(topic, 0): cut})
        # While nobody writes into the client's folder: it is copied.
        wanted = undisturbed_updates(config, AWAY, tmp_path / "undisturbed")
        back_at = newest_round(config)
        before = answers(gone + all_records(config.log.address, topic))
        clients[2] = processes[3] = clients[2].again()
        # What it said last it says again, as nothing remembers that it was heard.
        wait_until(lambda: len(answers(gone + all_records(config.log.address, topic))) > len(before) + 2)
        wait_until(lambda: told(gone + all_records(config.log.address, topic)) >= set(wanted))
        for process in (*clients, server):
            assert process.stop() == 0
    records = gone + all_records(config.log.address, topic)
    after = answers(records)
    assert before.items() <= after.items()
    assert min(called for number, called in after.items() if number not in before) >= back_at
    assert told(records) == set(wanted)
    assert final_model(file) == whole_model(config, records, tmp_path)


def whole_model(config: Config, records: list[Record], scratch: Path) -> bytes:
    """What a server makes of all updates, those that are gone too."""
    there = config.model_copy(update={"log": LogSettings(address=f"sqlite:{scratch / 'copy.db'}")})
    with closing(open_log(there.log)) as log:
        ensure_topics(log, config.contract, there.log)
        for record in records:
            if record.key == b"clusters":
                log.publish(record.topic, record.value, record.key, record.headers)
    return replayed(there, scratch / "replay.db")
