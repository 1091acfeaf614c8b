"""Five clients and a server with a network between them that repeats, delays and reorders
updates."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from shoal.config.settings import Config, LogSettings, load_config
from shoal.protocol.messages import Update
from shoal.protocol.topics import ensure_topics
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports import open_log
from shoal.transports.base import Log, Record
from tests.house.federation_processes import replayed_model
from tests.house.processes import Process, killed_on_exit, wait_until
from tests.house.small_federation import all_records, clock, model_bytes, weather, write_federation
from tests.kafka_broker import Broker

CLIENTS = ("attic", "cellar", "garden", "kitchen", "loft")
READINGS_EACH = 1000
READINGS_PER_S = 1000
"""of all producers together"""
UPDATES_EACH = 40
HELD_MAX = 25
"""records that the network holds back at once"""


class Network:
    """Copies updates from one log to another: each at least once, some three times, in random
    order."""

    def __init__(self, config: Config, there: Config, seed: int) -> None:
        self._topic = config.contract.updates_topic
        self._from = open_log(config.log)
        self._to = open_log(there.log)
        self._chance = random.Random(seed)
        self._at = {0: 0}
        self._held: list[Record] = []
        self.carried: list[tuple[str, int]] = []
        """(client, sequence) of each record as it was delivered"""

    def carry(self) -> None:
        """Read new updates and deliver some of those held back."""
        self._held += self._read_new()
        while len(self._held) > HELD_MAX:
            self._deliver(self._held.pop(self._chance.randrange(len(self._held))))
        self._to.flush()

    def empty(self) -> None:
        """Deliver all updates that are held back, and close the logs."""
        while new := self._read_new():
            self._held += new
        self._chance.shuffle(self._held)
        for record in self._held:
            self._deliver(record)
        for log in (self._to, self._from):
            log.close()

    def _read_new(self) -> Sequence[Record]:
        records, self._at = self._from.read(self._topic, self._at, 100, 0.1)
        return records

    def _deliver(self, record: Record) -> None:
        update = Update.decode(record.value, record.headers)
        for _ in range(self._chance.choice((1, 1, 2, 3))):
            self._to.publish(self._topic, record.value, record.key, record.headers)
            self.carried.append((update.client, update.sequence))


def without_repeats(there: Config, scratch: Path) -> Config:
    """An embedded log with each update once, at its first place."""
    copy = there.model_copy(update={"log": LogSettings(address=f"sqlite:{scratch / 'once.db'}")})
    records = {
        record.value: record
        for record in reversed(all_records(there.log.address, there.contract.updates_topic))
    }
    with closing(open_log(copy.log)) as log:
        ensure_topics(log, copy.contract, copy.log)
        for record in sorted(records.values(), key=lambda record: record.offset):
            log.publish(record.topic, record.value, record.key, record.headers)
    return copy


def producer_of(client: str, seed: int, file: Path) -> Process:
    """A producer for this client alone."""
    readings = enumerate(weather(READINGS_EACH, seed).tolist())
    rows = [f"{1e9 + number},{client},{warm!r},{damp!r}" for number, (warm, damp) in readings]
    csv = file.with_name(f"{client}.csv")
    csv.write_text("\n".join(["time,site,warm,damp", *rows]) + "\n", encoding="utf-8")
    arguments = [
        "producer",
        "--config",
        str(file),
        str(csv),
        "--split",
        "column:site",
        "--time-column",
        "time",
    ]
    return Process(
        [*arguments, "--rate", f"{READINGS_PER_S // len(CLIENTS)}/s"],
        file.with_name(f"{client}-producer.txt"),
    )


def first_of_each(carried: list[tuple[str, int]], client: str) -> list[int]:
    return list(dict.fromkeys(sequence for name, sequence in carried if name == client))


def all_published(log: Log, topic: str) -> bool:
    return log.bounds(topic)[0][1] >= UPDATES_EACH * len(CLIENTS)


@pytest.mark.integration
def test_updates_of_five_clients_count_once_over_a_network_that_repeats_and_reorders_them(
    own_broker: Broker, kafka_bootstrap: str, tmp_path: Path
) -> None:
    sizes = {
        "publish_readings": READINGS_EACH // UPDATES_EACH,
        "pool_clients": len(CLIENTS),
        "batch_updates_max": 7,
    }
    file = write_federation(tmp_path, **sizes, address=f"kafka://{own_broker.bootstrap}")
    far = tmp_path / "far.toml"
    far.write_text(
        file.read_text(encoding="utf-8").replace(own_broker.bootstrap, kafka_bootstrap),
        encoding="utf-8",
    )
    config = load_config(file)
    there = load_config(far)
    for config_of_site in (config, there):
        with closing(open_log(config_of_site.log)) as log:
            ensure_topics(log, config_of_site.contract, config_of_site.log)
    network = Network(config, there, 11)
    server = Process(["server", "--config", str(far), "--no-page"], tmp_path / "server.txt")
    # The network carries updates only, so the server's contract does not reach the clients.
    client = ["client", "--config", str(file), "--no-wait", "--name"]
    clients = [Process([*client, name], tmp_path / f"{name}.txt") for name in CLIENTS]
    processes = [
        server,
        *clients,
        *(producer_of(name, seed, file) for seed, name in enumerate(CLIENTS)),
    ]
    with killed_on_exit(processes), closing(open_log(config.log)) as log:
        while not all_published(log, config.contract.updates_topic):
            network.carry()
            if len(network.carried) > 100 and processes[0] is server:
                server.kill()
                processes[0] = server.restarted()
        network.empty()
        wait_until(lambda: processes[0].log_text().count("snapshot_published") > 0)
        for process in processes[1:]:
            assert process.stop() == 0
        processes[0].kill()
        processes[0] = Process([*server.arguments, "--until-idle", "2"], tmp_path / "server.txt")
        processes[0].end()

    delivered = [first_of_each(network.carried, name) for name in CLIENTS]
    assert all(sorted(numbers) == list(range(1, UPDATES_EACH + 1)) for numbers in delivered)
    assert all(numbers != sorted(numbers) for numbers in delivered), "nothing was reordered"
    assert len(network.carried) > 1.3 * UPDATES_EACH * len(CLIENTS), "nothing was repeated"
    with resumed(open_server(there, clock=clock)) as node:
        known = node.models()["clusters"].clients.totals()
        assert [entry[:3] for entry in known] == [
            (name, UPDATES_EACH, READINGS_EACH) for name in CLIENTS
        ]
        assert node.status().rejected == {}
        model = model_bytes(node)
    assert replayed_model(without_repeats(there, tmp_path), tmp_path / "replay.db") == model
