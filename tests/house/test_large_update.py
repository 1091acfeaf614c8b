"""An update of 8 MiB over topics that accept records of less than 1 MiB."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from shoal.algorithms.registry import load_algorithm
from shoal.config.limits import RECORD_BYTES_MAX
from shoal.config.settings import Config, LogSettings, load_config
from shoal.protocol.chunking import join_chunks
from shoal.protocol.messages import Update
from shoal.protocol.topics import ensure_topics
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports import open_log
from shoal.transports.base import Record
from shoal.transports.kafka.log import KafkaLog
from tests.house.processes import Process, killed_on_exit, wait_until
from tests.house.small_federation import clock, model_bytes, write_readings

MIB = 1024 * 1024
FEATURES = 4096
READINGS = 270


# Of updates in chunks on the embedded log, test_chunks_power_cut.py has small ones.
@pytest.fixture(params=[pytest.param("embedded", marks=pytest.mark.integration), "kafka"])
def address(request: pytest.FixtureRequest) -> str:
    if request.param == "embedded":
        return "sqlite:federation.db"
    return f"kafka://{request.getfixturevalue('kafka_bootstrap')}"


def wide_federation(folder: Path, address: str) -> Config:
    """A federation with so many features that a few hundred readings give an update of 8 MiB."""
    features = "".join(f'[[features]]\nname = "f{n}"\nlow = 0\nhigh = 1\n' for n in range(FEATURES))
    name = f"wide-{uuid.uuid4().hex}"
    text = (
        f'[federation]\nname = "{name}"\n{features}[privacy]\nmode = "off"\n[[models]]\nname ='
        ' "clusters"\n'
    )
    text += (
        f'algorithm = "fcac"\n[log]\naddress = "{address}"\n[client]\npublish_readings ='
        f" {READINGS}\n"
    )
    text += "publish_s = 3600\n[server]\npool_clients = 1\nsnapshot_updates = 1\n"
    (folder / "wide.toml").write_text(text, encoding="utf-8")
    return load_config(folder / "wide.toml")


def records_of(config: Config) -> list[Record]:
    with closing(open_log(config.log)) as log:
        records, _ = log.read(config.contract.updates_topic, {0: 0}, 1000, 10.0)
        end = log.bounds(config.contract.updates_topic)[0][1]
        while len(records) < end:
            records = [
                *records,
                *log.read(config.contract.updates_topic, {0: len(records)}, 1000, 10.0)[0],
            ]
    return list(records)


def model_of(config: Config) -> tuple[bytes, int]:
    """The model, and how often it was published."""
    with resumed(open_server(config, clock=clock)) as server:
        while not server.up_to_date:
            server.step(1.0)
        snapshot = server.models()["clusters"].snapshot
        assert snapshot is not None
        return model_bytes(server), snapshot.updates


def test_an_update_of_8_mib_in_small_records_is_absorbed_as_one(
    address: str, tmp_path: Path
) -> None:
    config = wide_federation(tmp_path, address)
    write_readings(config, "attic", np.random.default_rng(0).uniform(size=(READINGS, FEATURES)))
    file = str(tmp_path / "wide.toml")
    server = Process(["server", "--config", file, "--no-page"], tmp_path / "server.txt")
    client = Process(
        ["client", "--config", file, "--name", "attic", "--until-idle", "2"], tmp_path / "attic.txt"
    )
    with killed_on_exit([server, client]):
        client.end()
        wait_until(lambda: "snapshot_published" in server.log_text())
        assert server.stop() == 0
    assert "updates=1\n" in client.log_text()
    records = records_of(config)
    chunks = [Update.decode(record.value, record.headers) for record in records]
    whole = join_chunks(chunks, load_algorithm("fcac").update)
    assert len(whole.encode()) >= 8 * MIB
    assert max(len(record.value or b"") for record in records) < MIB
    assert [chunk.chunk for chunk in chunks] == list(range(1, len(records) + 1))
    model, updates = model_of(config)
    assert updates == 1

    beside = config.model_copy(
        update={
            "log": LogSettings(
                address=f"sqlite:{tmp_path / 'unsplit.db'}", update_bytes_max=RECORD_BYTES_MAX
            ),
            "server": config.server.model_copy(update={"folder": tmp_path / "unsplit"}),
        }
    )
    with closing(open_log(beside.log)) as log:
        ensure_topics(log, config.contract, beside.log)
        log.publish(config.contract.updates_topic, whole.encode(), b"clusters", Update.headers())
    assert model_of(beside) == (model, 1)


def test_a_topic_created_with_the_brokers_defaults_takes_the_largest_record(
    kafka_bootstrap: str,
) -> None:
    topic = f"as-it-comes-{uuid.uuid4().hex}"
    with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
        admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}})
        configs: dict[str, dict[str, str]] = {}

        def described() -> bool:
            """Whether the broker knows the topic that its controller has created: until then it
            describes nothing."""
            asked = ConfigResource(ConfigResourceType.TOPIC, topic)
            configs.update(
                admin.describe_configs([asked], config_filter="all")["topic"].get(topic, {})
            )
            return bool(configs)

        wait_until(described)
    assert configs["max.message.bytes"]["value"] == "1048588", "the default of brokers"
    with closing(KafkaLog(f"//{kafka_bootstrap}")) as log:
        log.publish(topic, bytes(LogSettings().update_bytes_max))
        log.flush()
        assert log.bounds(topic) == {0: (0, 1)}
