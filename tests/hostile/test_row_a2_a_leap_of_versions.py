"""Row A2: a forged snapshot of a far version, or an old one published again, keeps no client from
the true ones."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.client_nodes.snapshots import Snapshots
from shoal.config.contract import Contract
from shoal.config.resolved import resolve
from shoal.config.settings import load_config
from shoal.onebox.federation import OneBox
from shoal.protocol.lease import LEASE_KEY, VERSIONS_AHEAD_MAX, Lease
from shoal.protocol.messages import Snapshot
from shoal.protocol.topics import ensure_topics
from shoal.protocol.validation import Validator
from shoal.transports import open_log
from shoal.transports.base import Log, latest
from tests.house.rounds_federation import KMEANS, create_rounds_federation
from tests.house.small_federation import CLIENTS
from tests.small_plant import Clock, a_snapshot, plant

FAR = 999_999


class Topic:
    """The topic of snapshots, and a client that follows it."""

    def __init__(self, log: Log, contract: Contract) -> None:
        self._log = log
        self._contract = contract
        ensure_topics(log, contract)
        self._snapshot = a_snapshot(contract)
        self._client = Snapshots(contract, Validator(resolve(contract)), log)

    def newest(self) -> int:
        """Version of the snapshot that the client takes for the newest."""
        self._client.follow()
        found = self._client.newest("clusters")
        assert found is not None
        return found.version

    def after(self, *versions: int) -> int:
        """The same once snapshots of these versions have been published."""
        for version in versions:
            value = replace(self._snapshot, version=version).encode()
            self._log.publish(
                self._contract.snapshots_topic, value, b"clusters", Snapshot.headers()
            )
            self._log.flush()
        return self.newest()

    def lease(self, generation: int) -> None:
        """A server takes the lease."""
        lease = Lease(self._contract.federation, "i", f"p{generation}", generation, 5.0, "a server")
        self._log.publish(
            self._contract.snapshots_topic, lease.encode(), LEASE_KEY, Lease.headers()
        )
        self._log.flush()

    def warnings(self) -> int:
        return len(self._client.take_rejected())


@pytest.fixture(params=["sqlite", "kafka"])
def topic(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Topic]:
    contract = plant()
    address = f"sqlite:{tmp_path / 'federation.db'}"
    if request.param == "kafka":
        contract = contract.model_copy(update={"federation": f"plant-{uuid.uuid4().hex}"})
        address = f"kafka://{request.getfixturevalue('kafka_bootstrap')}"
    with closing(open_log(address)) as log:
        found = Topic(log, contract)
        found.lease(1)
        assert [found.after(version) for version in (1, 2, 3)] == [1, 2, 3]
        yield found


def test_a_leap_counts_only_once_another_snapshot_continues_it(topic: Topic) -> None:
    assert topic.after(3 + FAR) == 3
    assert topic.warnings() == 1
    assert topic.after(4) == 4
    assert topic.after(5 + FAR) == 4
    assert topic.after(6 + FAR) == 6 + FAR
    assert topic.after(5) == 6 + FAR
    assert topic.after(7 + FAR) == 7 + FAR
    assert topic.after(6) == 6, "the true ones count again"
    assert topic.warnings() == 2
    assert topic.after(7) == 7


def test_an_old_snapshot_published_again_does_not_count_and_a_lower_one_does_under_a_newer_lease(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.protocol.lease.VERSIONS_AHEAD_MAX", 4)
    for version in range(4, 12):
        assert topic.after(version) == version
    newest = topic.newest()
    assert topic.after(1, 2, 3) == newest
    assert topic.warnings() >= 1
    topic.lease(1)  # it is renewed
    assert topic.after(1, 2, 3) == newest
    topic.lease(2)
    assert topic.after(2) == 2, "a server that was restored from a backup"
    assert topic.after(1) == 2


def test_a_client_that_reads_rarely_takes_the_newest_at_once(topic: Topic) -> None:
    """On the embedded log all others are gone by then."""
    assert topic.after(*range(4, 4 + 2 * VERSIONS_AHEAD_MAX)) == 3 + 2 * VERSIONS_AHEAD_MAX
    assert topic.warnings() == 0


@pytest.mark.parametrize("forged", [1, 2])
def test_clients_in_rounds_go_on_answering(tmp_path: Path, forged: int) -> None:
    file = create_rounds_federation(tmp_path, KMEANS, readings=100)
    config = load_config(file)
    clock = Clock()
    topic = config.contract.snapshots_topic
    deadline_s = config.contract.models[0].rounds.deadline_s
    with OneBox(config, CLIENTS, clock) as box, closing(open_log(config.log)) as log:
        box.run_until_idle()
        true = Snapshot.decode(latest(log, topic)[b"heaps"].value, Snapshot.headers())
        asks = {"deadline": clock.now + 86_400.0, "fraction": 1.0, "rows_min": 1}
        for number in range(forged):
            one = replace(true, version=true.version + FAR + number, round_request=asks)
            log.publish(topic, one.encode(), b"heaps", Snapshot.headers())
            log.flush()
            for _ in CLIENTS:
                box.step()
        box.wake_rounds()
        for _ in range(4):
            for _ in range(20):
                box.step()
            clock.now += deadline_s + 1.0
        after = box.server.models()["heaps"].snapshot
        assert after is not None
        assert after.round is not None
        assert true.round is not None
        assert after.round > true.round
        assert after.round_request is None, "the round is over"
        assert after.clients == len(CLIENTS)
