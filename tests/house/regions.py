"""Regions on a real Kafka broker, served by real replicas: updates of real clients, fed when a
trial wants load."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from kafka import KafkaConsumer, TopicPartition

from shoal.client_nodes.bootstrap import open_client
from shoal.config.resolved import resolve
from shoal.config.settings import LogSettings, load_config
from shoal.protocol.messages import Snapshot, Update
from shoal.protocol.published_contract import CONTRACT_KEY
from shoal.protocol.topics import ensure_topics
from shoal.runtime.checkpoint import OutboxRecord
from shoal.runtime.service import resumed
from shoal.server_node.replicas.region_model import RegionModel, absorb
from shoal.transports import open_log
from shoal.transports.base import Log, Record, partition_of
from tests.house.processes import Process, wait_until
from tests.house.small_federation import (
    CLIENTS,
    all_records,
    clock,
    weather,
    write_federation,
    write_readings,
)

PARTITIONS = 4
REPLICA = """
[replica]
folder = "{folder}"
group = "{group}"
commit_s = 0.5
"""


class Region:
    """A federation on the broker, and the updates that its clients have made, which are fed to it
    bit by bit."""

    def __init__(
        self, folder: Path, group: str, bootstrap: str, seed: int, readings_each: int
    ) -> None:
        folder.mkdir()
        self.file = write_federation(folder, publish_readings=10, address=f"kafka://{bootstrap}")
        text = self.file.read_text(encoding="utf-8")
        text = text.replace("[log]\n", f"[log]\npartitions = {PARTITIONS}\n")
        text = text.replace(
            "snapshot_updates = 3\nsnapshot_s = 86400", "snapshot_updates = 10\nsnapshot_s = 0.5"
        )
        replica = REPLICA.format(folder=folder.parent / "replicas", group=group)
        self.file.write_text(text + replica, encoding="utf-8")
        self.config = load_config(self.file)
        self._updates = self._made_updates(folder, seed, readings_each)
        self.fed = 0

    def _made_updates(self, folder: Path, seed: int, readings_each: int) -> list[Record]:
        """What real clients publish, on a log of their own."""
        alone = self.config.model_copy(
            update={"log": LogSettings(address=f"sqlite:{folder / 'made.db'}")}
        )
        for place, client in enumerate(CLIENTS):
            write_readings(alone, client, weather(readings_each, 100 * seed + place))
            with resumed(open_client(alone, client, clock=clock)) as node:
                while node.step():
                    pass
        made = all_records(alone.log.address, self.config.contract.updates_topic)
        by_client = len(made) // len(CLIENTS)
        return [
            made[by_client * place + number]
            for number in range(by_client)
            for place in range(len(CLIENTS))
        ]

    @property
    def total(self) -> int:
        """Updates that there are to feed."""
        return len(self._updates)

    def feed(self, log: Log, updates: int) -> None:
        """Publish the next `updates` of them."""
        for record in self._updates[self.fed : self.fed + updates]:
            log.publish(record.topic, record.value, record.key, record.headers)
        log.flush()
        self.fed = min(self.total, self.fed + updates)

    def feed_nonsense(self, log: Log) -> None:
        """Publish four records that no model can absorb."""
        key = self.config.contract.update_key("clusters")
        headers = Update.headers()
        for other_key, value in (
            (key, b"nonsense"),
            (key, None),
            (None, b"nonsense"),
            (b"other/key", b"nonsense"),
        ):
            log.publish(self.config.contract.updates_topic, value, other_key, headers)
        log.flush()

    def expected(self) -> list[OutboxRecord]:
        """What one process publishes that absorbs every record of the model in the topic of
        updates."""
        with closing(open_log(self.config.log)) as log:
            identity = log.identity(self.config.contract.updates_topic)
        (model,) = self.config.contract.models
        contract = resolve(self.config.contract)
        region = RegionModel(self.config, contract, contract.models[model.name], identity)
        state = None
        published = list[OutboxRecord]()
        key = self.config.contract.update_key(model.name)
        records = all_records(self.config.log.address, self.config.contract.updates_topic)
        for record in (record for record in records if record.key == key):
            state, made, *_ = absorb(region, state, record)
            published += made
        return published


class Committed:
    """Follows the topics of snapshots of regions, and sees only what was committed."""

    def __init__(self, bootstrap: str, regions: Sequence[Region]) -> None:
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False
        )
        self._places = {
            TopicPartition(region.config.contract.snapshots_topic, 0): region for region in regions
        }
        self._consumer.assign(list(self._places))
        self._consumer.seek_to_beginning()
        self.snapshots: dict[Region, list[bytes]] = {region: [] for region in regions}
        """the values of all committed, in order"""

    def close(self) -> None:
        self._consumer.close()

    def read(self) -> None:
        """Read what has been committed since."""
        for place, records in self._consumer.poll(200).items():
            self.snapshots[self._places[place]] += [
                record.value for record in records if record.key != CONTRACT_KEY
            ]

    def show_all(self, regions: Sequence[Region]) -> bool:
        """Whether the newest snapshot of each of these shows every update that it was fed."""
        self.read()
        return all(self._shown(region) == region.fed for region in regions)

    def wait(self, regions: Sequence[Region]) -> None:
        """Return once they do."""
        wait_until(lambda: self.show_all(regions))

    def _shown(self, region: Region) -> int:
        values = self.snapshots[region]
        return Snapshot.decode(values[-1], Snapshot.headers()).updates if values else 0


def make_regions(folder: Path, bootstrap: str, number: int, readings_each: int) -> list[Region]:
    """Regions whose models are in all partitions; the topics of each are there."""
    group = f"replicas-{uuid.uuid4().hex}"
    regions = [
        Region(folder / f"region-{place}", group, bootstrap, place, readings_each)
        for place in range(number)
    ]
    for region in regions:
        with closing(open_log(region.config.log)) as log:
            ensure_topics(log, region.config.contract, region.config.log)
    return regions


def replica(regions: Sequence[Region], name: str) -> Process:
    """A replica that serves these."""
    folder = regions[0].file.parent.parent
    files = [word for region in regions for word in ("--config", str(region.file))]
    return Process(["replica", *files, "--name", name], folder / f"replica-{name}.txt")


def assignments(process: Process) -> int:
    """How many assignments a replica has had, and those started before it under its name."""
    return process.log_text().count(" regions_assigned ")


def assigned(process: Process) -> set[str]:
    """The newest assignment of a replica, each TOPIC/PARTITION."""
    lines = [line for line in process.log_text().splitlines() if " regions_assigned " in line]
    return set(lines[-1].partition("topics=")[2].strip('"').split()) if lines else set()


def place_of(region: Region) -> str:
    """Where the updates of its model are, TOPIC/PARTITION."""
    contract = region.config.contract
    return f"{contract.updates_topic}/{partition_of(contract.update_key('clusters'), PARTITIONS)}"


def snapshot_values(region: Region, published: Sequence[OutboxRecord]) -> list[bytes | None]:
    """Those of the records that are snapshots."""
    topic = region.config.contract.snapshots_topic
    return [record.value for record in published if record.topic == topic]
