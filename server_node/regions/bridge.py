"""The bridge to the upstream federation: it copies a region's contributions there and reads
snapshots from there.

Contributions wait in a topic of the region's own log, where the server publishes them with the
state they belong to. So a region serves its clients as ever while its upstream federation cannot be
reached. The bridge is as a client of the upstream federation is: it signs what it publishes,
repeats what a kill has left unsure, and stops when the upstream server has refused an update
because of its number.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Final

from shoal.config.settings import Config, LogSettings
from shoal.config.upstream import Upstream
from shoal.errors import InvalidState, LogFolderMissing, LogUnavailable, MessageRejected, ShoalError
from shoal.protocol.conflicts import (
    CONFLICTS_KEY,
    PublishedDigests,
    check_no_conflict,
    content_digest,
)
from shoal.protocol.lease import NewestSnapshots, is_for_servers, is_lease
from shoal.protocol.messages import Snapshot
from shoal.protocol.published_contract import CONTRACT_KEY, check_contract
from shoal.protocol.regions import decode_update, update_arrays
from shoal.protocol.signatures import HEADER, client_file, read_keys, signature
from shoal.protocol.topics import ensure_topics
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import Checkpoint, open_replaceable, pairs_of, positions_of
from shoal.runtime.logs import open_federation_log
from shoal.runtime.service import RETRY_FIRST_S, RETRY_MAX_S, in_thread, resumed
from shoal.saved_state import SavedState, state_type
from shoal.server_node.regions.hierarchy import UpstreamState
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, Positions, Record, beginning, latest

BRIDGE_FILE: Final = "upstream.db"
"""checkpoint of the bridge, in the server's folder"""
STATE_VERSION: Final = 1
POLL_S: Final = 0.25
"""seconds between two looks at both logs where nothing has come"""
RECORDS_MAX: Final = 200
"""records copied between two stores of the checkpoint"""


@state_type
class BridgeState(SavedState):
    """Saved state of `Bridge`, beside the digests of what it has published."""

    positions: list[list[int]]
    """[partition, offset] of the region's contributions"""


class Bridge:
    """Copies contributions upstream and reads snapshots from there, one step at a time.

    For one thread. After an error a new one, resumed from the checkpoint, goes on.
    """

    def __init__(
        self,
        config: Config,
        upstream: Config,
        own_log: Log,
        upstream_log: Log,
        checkpoint: Checkpoint,
        on_snapshot: Callable[[Snapshot], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`on_snapshot` is called with each newer snapshot of the upstream federation."""
        self._clock = clock
        self._contract = config.contract
        self._upstream_contract = upstream.contract
        self._own_log = own_log
        self._upstream_log = upstream_log
        self._checkpoint = checkpoint
        self._on_snapshot = on_snapshot
        self._key: bytes | None = None
        template = upstream.client.signing_key_file
        if template is not None:
            self._key = read_keys(client_file(template, self._contract.federation))[0]
        self._validator = Validator(upstream.resolved)
        self._digests = PublishedDigests()
        self._positions: Positions = {}
        self._snapshot_positions: Positions = {}
        self._newest = NewestSnapshots()

    def resume(self) -> None:
        """Restore the checkpoint. Once, before the first step.

        A log of the upstream federation that was made anew gets all contributions that are kept.
        Raises `InvalidState` for the checkpoint of another log, and when the upstream server has
        refused a contribution because another update has its number; and as the logs do.
        """
        topic = self._contract.contributions_topic
        snapshots_topic = self._upstream_contract.snapshots_topic
        own = self._own_log.identity(topic)
        upstream = self._upstream_log.identity(self._upstream_contract.updates_topic)
        self._identities = [own, upstream]
        state = self._checkpoint.load()
        if state is not None and state["logs"][1] == upstream:
            self._restore(state)
            newest = latest(self._upstream_log, snapshots_topic)
            # Only in the log that the digests are of: in one that was made anew, nothing of this
            # region has been refused yet.
            check_no_conflict(newest.get(CONFLICTS_KEY), self._contract.federation, self._digests)
        else:
            self._positions = beginning(self._own_log, topic)
        # Not kept: the newest snapshots are read at each start, and are few.
        self._snapshot_positions = beginning(self._upstream_log, snapshots_topic)

    def step(self) -> bool:
        """Copy the next contributions and read the next snapshots; whether there was any."""
        # First, as it checks the upstream contract: nothing may be published under another one.
        snapshots = self._read_snapshots()
        records, after = self._own_log.read(
            self._contract.contributions_topic, self._positions, RECORDS_MAX
        )
        for record in records:
            self._copy(record)
        if records:
            # Before the position is stored: what a kill leaves unsure is published again, and the
            # upstream server drops it as repeated.
            self._upstream_log.flush()
            self._positions = after
            self._checkpoint.save(self._state())
            log_event(
                "contributions_published",
                logging.DEBUG,
                upstream=self._upstream_contract.federation,
                records=len(records),
            )
        return bool(records or snapshots)

    @property
    def lag_records(self) -> int:
        """Contributions that are not copied yet."""
        ends = self._own_log.bounds(self._contract.contributions_topic)
        return sum(end - self._positions.get(partition, 0) for partition, (_, end) in ends.items())

    def _copy(self, record: Record) -> None:
        update = decode_update(record.value, record.headers)
        value = record.value or b""
        digest = content_digest(update, value, update_arrays(update))
        self._digests.add(update.model, update.sequence, digest)
        topic = self._upstream_contract.updates_topic
        headers = record.headers
        if self._key is not None:
            headers += ((HEADER, signature(self._key, topic, value)),)
        self._upstream_log.publish(topic, value, record.key, headers)

    def _read_snapshots(self) -> Sequence[Record]:
        """Pass on the snapshots since the last call; all records of their topic since then.

        Raises `ContractDiffers`.
        """
        topic = self._upstream_contract.snapshots_topic
        records, self._snapshot_positions = self._upstream_log.read(topic, self._snapshot_positions)
        # A broker keeps what was replaced for a while: only the newest contract counts.
        contracts = [record for record in records if record.key == CONTRACT_KEY]
        check_contract(contracts[-1] if contracts else None, self._upstream_contract)
        for record in records:
            if is_lease(record):
                self._newest.take_lease(record)
            elif _has_snapshot(record):
                self._take_snapshot(record)
        return records

    def _take_snapshot(self, record: Record) -> None:
        """Pass a snapshot on if it is the newest.

        Of two versions the region follows the higher or the later one. A time that is yet to come
        is made now, or no snapshot until then would be later.
        """
        try:
            snapshot = Snapshot.decode(record.value, record.headers)
            self._validator.check_snapshot(snapshot)
            is_newest = self._newest.take(snapshot, record)
        except MessageRejected as rejected:
            log_event(
                "snapshot_rejected", logging.WARNING, reason=rejected.reason, detail=rejected.detail
            )
            return
        if is_newest:
            self._on_snapshot(replace(snapshot, made_at=min(snapshot.made_at, self._clock())))

    def _state(self) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "logs": list(self._identities),
            "published": self._digests.state(),
            **BridgeState(positions=pairs_of(self._positions)).saved(),
        }

    def _restore(self, state: dict[str, Any]) -> None:
        if state["version"] != STATE_VERSION:
            raise InvalidState(f"{BRIDGE_FILE} is of another version of shoal; run that one")
        if state["logs"][0] != self._identities[0]:
            raise InvalidState(
                f"the log of {self._contract.federation} was made anew since {BRIDGE_FILE} was "
                "stored; restore the log, or start the region under a new federation name"
            )
        self._positions = positions_of(BridgeState.read(state).positions)
        self._digests.restore(state["published"])


def _has_snapshot(record: Record) -> bool:
    is_snapshot = record.value is not None and ("type", b"snapshot") in record.headers
    return is_snapshot and not is_for_servers(record)


class BridgeThread:
    """Runs the bridge in a thread of its own while a server runs.

    An error that no later try mends ends the server. Without an upstream federation it does
    nothing.
    """

    def __init__(self, config: Config, upstream: Upstream | None) -> None:
        self._config = config
        self._upstream = upstream
        self._newest: dict[str, Snapshot] = {}
        self._waiting = 0
        self._error: BaseException | None = None
        self._retry_s = RETRY_FIRST_S

    @cached_property
    def upstream(self) -> UpstreamState | None:
        """The upstream federation as the server needs it; None if there is none."""
        if self._upstream is None:
            return None
        return UpstreamState(
            self._upstream, self._config.upstream, self._newest.get, lambda: self._waiting
        )

    @property
    def logs(self) -> list[LogSettings]:
        """The logs that the server and the bridge open."""
        logs = [self._config.log]
        if self._upstream is not None:
            logs.append(self._upstream.config.log)
        return logs

    @contextmanager
    def running(self) -> Iterator[None]:
        """Copy contributions and read snapshots until the context ends."""
        if self._upstream is None:
            yield
            return
        self._error = None
        # The checkpoint and both logs are closed by the thread, so nothing may open them again
        # before it has ended.
        with in_thread("upstream", partial(self._run, self._upstream.config)):
            yield

    def check(self) -> None:
        """Raises what has ended the bridge; called before each step of the server."""
        if self._error is not None:
            raise self._error

    def _run(self, upstream: Config, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                try:
                    with resumed(open_bridge(self._config, upstream, self._keep)) as bridge:
                        self._work(bridge, stop)
                except ShoalError as error:
                    if not error.retriable:
                        self._error = error
                        return
                    self._log_unavailable(error)
                    stop.wait(self._retry_s)
                    self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
        except BaseException as error:
            # The thread of the server raises it, too: otherwise it would serve without the bridge.
            self._error = error
            raise

    def _log_unavailable(self, error: ShoalError) -> None:
        # Once the wait has grown to its longest, this is no outage that passes: people must look at
        # the address.
        if self._retry_s < RETRY_MAX_S:
            log_event(
                "upstream_unavailable", logging.WARNING, error=str(error), retry_s=self._retry_s
            )
            return
        advice = "or [log] address in the upstream file is wrong"
        log_event(
            "upstream_still_unavailable",
            logging.ERROR,
            error=f"{error}; {advice}",
            retry_s=self._retry_s,
        )

    def _work(self, bridge: Bridge, stop: threading.Event) -> None:
        while not stop.is_set():
            worked = bridge.step()
            self._retry_s = RETRY_FIRST_S
            self._waiting = bridge.lag_records
            if not worked:
                stop.wait(POLL_S)

    def _keep(self, snapshot: Snapshot) -> None:
        # One assignment to a dictionary, which no other thread sees half done: the server reads it
        # without a lock.
        self._newest[snapshot.model] = snapshot


@contextmanager
def open_bridge(
    config: Config, upstream: Config, on_snapshot: Callable[[Snapshot], None]
) -> Iterator[Bridge]:
    """Open the bridge of a region: its checkpoint and both logs.

    `resumed` resumes it and closes all. Raises as the logs do, and `LogUnavailable` where the
    upstream federation has no log yet.
    """
    owner = f"region {config.contract.federation} of {upstream.contract.federation}"
    with ExitStack() as stack:
        # What was contributed is in the region's log: copied again, it is dropped as repeated.
        file = config.server.folder / BRIDGE_FILE
        checkpoint = stack.enter_context(open_replaceable(file, owner))
        own_log = stack.enter_context(closing(open_federation_log(config)))
        ensure_topics(own_log, config.contract, config.log, upstream=True)
        upstream_log = stack.enter_context(closing(_open_upstream_log(upstream)))
        ensure_topics(upstream_log, upstream.contract, upstream.log)
        yield Bridge(config, upstream, own_log, upstream_log, checkpoint, on_snapshot)


def _open_upstream_log(upstream: Config) -> Log:
    try:
        return open_federation_log(upstream)
    except LogFolderMissing as missing:
        # Servers may start in any order, so the upstream one may not have made its folder yet.
        raise LogUnavailable(str(missing)) from None
