"""The lease: which server gets it, which is rejected and which ends, whatever the clocks of the
machines show."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from shoal.client_nodes.snapshots import Snapshots
from shoal.config.resolved import resolve
from shoal.config.sections import ServerSettings
from shoal.config.settings import Config
from shoal.errors import LeaseHeld, LeaseUncertain, LogUnavailable, MessageRejected
from shoal.protocol.lease import LEASE_KEY, Lease
from shoal.protocol.published_contract import CONTRACT_KEY
from shoal.protocol.topics import ensure_topics
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import Checkpoint
from shoal.server_node.bootstrap import StatusUpdater, initial_status
from shoal.server_node.lease import MISSED_RENEWALS_MAX, RECORD_S, LeaseHolder, LeaseRenewal
from shoal.server_node.report.status import StatusBoard
from shoal.transports.base import Log, latest
from shoal.transports.sqlite import log as sqlite_log
from shoal.transports.sqlite.log import SqliteLog
from shoal.transports.sqlite.renewals import RenewalLocks
from tests.house.processes import wait_until
from tests.server_node.server_fixture import ServerFixture
from tests.small_plant import Clock, an_update, forged, plant

RENEW_S = ServerSettings().lease_renew_s
on_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux: other systems have no such locks"
)


class Server:
    """One process with its lease, and a clock that started at any time."""

    def __init__(
        self, path: Path, instance: str, clock_s: float = 0.0, take_over: bool = False
    ) -> None:
        self.clock = Clock(clock_s)
        self._instance = instance
        self._path = path
        self._lease = LeaseHolder(Config(contract=plant()), take_over, self.clock)
        self._open = ExitStack()

    def start(self) -> None:
        self._log = self._open.enter_context(closing(SqliteLog(self._path, durable=False)))
        self._open.enter_context(self._lease.held(self._log, self._instance))

    def renew(self) -> None:
        self._lease.renew()

    def after(self, seconds: float) -> Server:
        self.clock.now += seconds
        return self

    def end(self) -> None:
        self._open.close()

    def kill(self) -> None:
        """End without releasing the lease; all that the process had open is closed."""
        self._log.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "federation.db"


@pytest.fixture
def first(path: Path) -> Server:
    server = Server(path, "one")
    server.start()
    return server


def test_a_second_server_is_rejected_as_soon_as_the_first_renews_its_lease(
    path: Path, first: Server
) -> None:
    second = Server(path, "two", clock_s=-1e9)
    with pytest.raises(LeaseUncertain, match="whether it still renews it"):
        second.start()
    first.after(RENEW_S).renew()
    with pytest.raises(LeaseHeld, match=r"process \d+ on .*--take-over") as rejected:
        second.after(1.0).start()
    assert not rejected.value.retriable
    first.after(RENEW_S).renew()


def test_an_expired_lease_is_acquired_and_its_former_holder_ends(path: Path, first: Server) -> None:
    second = Server(path, "two", clock_s=1e9)
    for waited_s in (0.0, RENEW_S, (MISSED_RENEWALS_MAX - 1) * RENEW_S - 0.1):
        with pytest.raises(LeaseUncertain):
            second.after(waited_s).start()
    second.after(0.2).start()
    with pytest.raises(LeaseHeld, match="has taken over plant"):
        first.after(1e6).renew()
    second.after(RENEW_S).renew()


def test_a_forged_lease_displaces_a_server_for_as_long_as_its_own_setting_says(
    path: Path, first: Server
) -> None:
    with closing(SqliteLog(path, durable=False)) as log:
        forgery = Lease("plant", "nobody", "life", 2, 86_400.0, "process 1 on attic")
        log.publish(plant().snapshots_topic, forgery.encode(), LEASE_KEY, Lease.headers())
        log.flush()
    with pytest.raises(LeaseUncertain, match="returns if that one does not renew") as displaced:
        first.after(RENEW_S).renew()
    assert displaced.value.retriable, "the process goes on"
    with pytest.raises(LeaseUncertain, match="whether it still renews it"):
        first.start()
    first.after(MISSED_RENEWALS_MAX * RENEW_S).start()
    first.after(RENEW_S).renew()


def test_a_displaced_server_ends_when_it_sees_that_the_other_one_runs(
    path: Path, first: Server
) -> None:
    second = Server(path, "two", take_over=True)
    second.start()
    with pytest.raises(LeaseUncertain):
        first.after(RENEW_S).renew()
    with pytest.raises(LeaseUncertain):
        first.start()
    second.after(RENEW_S).renew()
    with pytest.raises(LeaseHeld) as ended:
        first.after(1.0).start()
    assert not ended.value.retriable


def test_a_server_restarted_with_its_own_checkpoint_acquires_the_lease_at_once(
    path: Path, first: Server
) -> None:
    again = Server(path, "one", clock_s=-5.0)
    again.start()
    again.after(RENEW_S).renew()
    # A copied checkpoint has the identity of the original: only the generation tells the newer
    # server.
    with pytest.raises(LeaseHeld):
        first.after(RENEW_S).renew()


def test_a_released_lease_is_acquired_at_once(path: Path, first: Server) -> None:
    first.end()
    second = Server(path, "two")
    second.start()
    second.end()
    Server(path, "one").start()


def test_a_server_that_takes_over_does_not_wait_and_does_so_once(path: Path, first: Server) -> None:
    second = Server(path, "two", take_over=True)
    second.start()
    with pytest.raises(LeaseHeld, match="has taken over"):
        first.after(RENEW_S).renew()
    third = Server(path, "three", take_over=True)
    third.start()
    # Its node is built again after a broker was away: that is no reason to fight.
    with pytest.raises(LeaseUncertain):
        second.start()
    third.after(RENEW_S).renew()
    with pytest.raises(LeaseHeld, match="holds the lease of plant"):
        second.start()


@pytest.mark.parametrize("ids", [("a" * 16, "b" * 16), ("b" * 16, "a" * 16)], ids=["less", "more"])
def test_of_two_servers_started_at_the_same_instant_one_remains(
    path: Path, ids: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first to publish has the greater lease, which the topic keeps no more."""
    one = Server(path, "one")
    two = Server(path, "two")
    for server, process_id in zip((one, two), ids, strict=True):
        monkeypatch.setattr(server._lease, "_process_id", process_id)
    with monkeypatch.context() as blind:
        blind.setattr(LeaseHolder, "_read_greatest", lambda _: None)
        one.start()
        two.start()
    alive = [one, two]
    for _ in range(3):
        for server in list(alive):
            try:
                server.after(RENEW_S).renew()
            except LeaseHeld:
                alive.remove(server)
    assert len(alive) == 1


def test_an_outage_of_the_log_does_not_let_a_lease_expire(
    path: Path, first: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Server(path, "two")
    with pytest.raises(LeaseUncertain):
        second.start()
    with monkeypatch.context() as away:

        def no_answer(*_: object) -> None:
            raise LogUnavailable("away")

        away.setattr(SqliteLog, "bounds", no_answer)
        with pytest.raises(LogUnavailable):
            second.after(1.0).start()
    with pytest.raises(LeaseUncertain):
        second.after(MISSED_RENEWALS_MAX * RENEW_S).start()
    first.renew()


def records(path: Path) -> int:
    """How many records the topic with the lease has had."""
    with closing(SqliteLog(path)) as log:
        return log.bounds(plant().snapshots_topic)[0][1]


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every renewal is a record, as on a system that has no such locks."""
    monkeypatch.setattr(RenewalLocks, "show", lambda *_: False)


@pytest.mark.usefixtures("without_locks")
def test_a_lease_is_renewed_only_when_it_is_due(path: Path, first: Server) -> None:
    for _ in range(10):
        first.after(RENEW_S / 5).renew()
    assert records(path) == 1 + 2
    with closing(SqliteLog(path)) as log:
        (record,) = latest(log, plant().snapshots_topic).values()
    assert record.key == LEASE_KEY


@on_linux
def test_an_idle_server_writes_its_lease_every_ten_minutes_only(path: Path, first: Server) -> None:
    for _ in range(int(RECORD_S / RENEW_S) - 1):
        first.after(RENEW_S).renew()
    assert records(path) == 1
    with pytest.raises(LeaseUncertain):
        Server(path, "two").start()
    first.after(RENEW_S).renew()
    assert records(path) == 2


@on_linux
def test_what_has_taken_the_place_of_a_lease_is_replaced_at_the_next_renewal(
    path: Path, first: Server, log: Log
) -> None:
    """Compaction keeps what was written last under a key, also by who is no server."""
    log.publish(plant().snapshots_topic, b"no lease", LEASE_KEY, Lease.headers())
    log.flush()
    first.after(RENEW_S).renew()
    with pytest.raises(LeaseUncertain):
        Server(path, "two").start()
    first.after(RENEW_S).renew()
    assert records(path) == 3, "and is not written again and again"


@pytest.mark.usefixtures("without_locks")
def test_a_renewal_by_a_record_is_seen_as_well(path: Path, first: Server) -> None:
    second = Server(path, "two")
    with pytest.raises(LeaseUncertain):
        second.start()
    first.after(RENEW_S).renew()
    with pytest.raises(LeaseHeld):
        second.after(1.0).start()


@on_linux
def test_a_lock_that_ends_with_its_process_is_no_renewal(path: Path, first: Server) -> None:
    first.after(RENEW_S).renew()
    second = Server(path, "two")
    with pytest.raises(LeaseUncertain):
        second.start()
    first.kill()
    with pytest.raises(LeaseUncertain):
        second.after(MISSED_RENEWALS_MAX * RENEW_S - 0.1).start()
    second.after(0.2).start()


@on_linux
def test_a_server_with_a_full_disk_does_not_renew_its_lease(
    path: Path, first: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(sqlite_log, "ROOM_BYTES_MIN", 2**80)
        with pytest.raises(LogUnavailable, match="disk full"):
            first.after(RENEW_S).renew()
    first.renew()


@pytest.fixture
def log(path: Path) -> Iterator[Log]:
    with closing(SqliteLog(path, durable=False)) as log:
        ensure_topics(log, plant())
        yield log


LEASE = Lease("plant", "one", "life", 7, 5.0, "process 1 on attic")


@pytest.mark.parametrize(
    "changed",
    [
        {"generation": 0},
        {"generation": True},
        {"renew_s": 0.0},
        {"renew_s": "soon"},
        {"holder": "attic\n"},
        {"holder": "x" * 1000},
        {"process_id": 5},
        {"released": 1},
    ],
)
def test_an_invalid_lease_is_rejected_and_blocks_no_server(
    path: Path, log: Log, changed: dict[str, Any]
) -> None:
    with pytest.raises(MessageRejected):
        dataclasses.replace(LEASE, **changed)
    log.publish(plant().snapshots_topic, forged(LEASE, **changed), LEASE_KEY, Lease.headers())
    log.flush()
    Server(path, "two").start()


def test_a_lease_of_another_federation_blocks_no_server(path: Path, log: Log) -> None:
    other = dataclasses.replace(LEASE, federation="other")
    log.publish(plant().snapshots_topic, other.encode(), LEASE_KEY, Lease.headers())
    log.flush()
    Server(path, "two").start()


def test_a_lease_is_not_mistaken_for_a_snapshot(
    tmp_path: Path, path: Path, first: Server, caplog: pytest.LogCaptureFixture
) -> None:
    site = ServerFixture(tmp_path)
    with site.log() as log:
        snapshots = Snapshots(site.contract, Validator(resolve(site.contract)), log)
        snapshots.follow()
    assert not [record for record in caplog.records if record.getMessage() == "snapshot_rejected"]
    site.send(an_update(site.contract))
    site.run()  # a lease alone is no sign of a lost checkpoint
    assert set(latest_of(site)) == {LEASE_KEY, CONTRACT_KEY, b"clusters"}


def latest_of(site: ServerFixture) -> dict[bytes, object]:
    with site.log() as log:
        return {**latest(log, site.contract.snapshots_topic)}


def test_a_checkpoint_keeps_its_identity(tmp_path: Path) -> None:
    identities = []
    for name in ("a", "a", "b"):
        with Checkpoint(tmp_path / name, "server") as checkpoint:
            identities.append(checkpoint.identity)
    assert identities[0] == identities[1] != identities[2]


def test_a_server_that_cannot_renew_its_lease_on_a_full_disk_is_not_ready(tmp_path: Path) -> None:
    """A server without work writes nothing else."""
    site = ServerFixture(tmp_path)
    config = Config(contract=site.contract)
    clock = Clock(0.0)
    holder = LeaseHolder(config, False, clock)
    disk_is_full = threading.Event()
    disk_is_full.set()

    def open_log() -> Log:
        if disk_is_full.is_set():
            raise LogUnavailable("disk full")
        return SqliteLog(tmp_path / "federation.db", durable=False)

    renewal = LeaseRenewal(holder, open_log)
    board = StatusBoard(initial_status(config, 0.0))
    updater = StatusUpdater(board, lambda: clock.now, lambda: renewal.is_failing)
    with site.server() as node, site.log() as log, holder.held(log, "one"):
        updater.update(node)
        assert board.status.ready
        clock.now += RENEW_S
        with renewal.running():
            wait_until(lambda: renewal.is_failing)
            updater.update(node)
            assert (board.status.ready, board.status.unavailable) == (False, True)
            disk_is_full.clear()
            wait_until(lambda: not renewal.is_failing)
        clock.now += RENEW_S
        updater.update(node)
        assert (board.status.ready, board.status.unavailable) == (True, False)


def test_a_server_whose_log_fails_is_not_ready_until_it_steps_again(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path)
    board = StatusBoard(initial_status(Config(contract=site.contract), 0.0))
    updater = StatusUpdater(board)
    with pytest.raises(LogUnavailable), updater.showing_failures():
        raise LogUnavailable("disk full")
    assert (board.status.ready, board.status.unavailable) == (False, True)
    with site.server() as node:
        updater.update(node)
    assert (board.status.ready, board.status.unavailable) == (True, False)
