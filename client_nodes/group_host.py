"""A host of a group: it serves the clients of those partitions that the group gives it at present.

The clients of a partition are those of a host of their own, in a folder of their own
(`PartitionHost`), whose state moves with the partition (`PartitionState`). The group says whose a
partition is to be, and the changelog whose it is: its new owner fences the one before, which can
store nothing more, and so publish nothing that the new one does not know.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from shoal.client_nodes.bootstrap import OfHost, host_owner
from shoal.client_nodes.host import (
    LAG_EVERY_S,
    REST_RATIO,
    SHOW_EVERY_S,
    SHOW_RATIO,
    Host,
    left_out,
)
from shoal.client_nodes.hosted_client import HostedClient
from shoal.client_nodes.monitoring import TOTALS
from shoal.client_nodes.partition_state import Changelog, PartitionState, SiteTopic
from shoal.client_nodes.shared_files import SharedFiles
from shoal.client_nodes.site_intake import check_site_apart
from shoal.client_nodes.site_source import SiteSource
from shoal.config.extension_settings import parse_address, transport_part
from shoal.config.settings import Config
from shoal.errors import LogUnavailable, PartitionLost, SettingsError, ShoalError
from shoal.files import read_secret
from shoal.runtime.checkpoint import Checkpoint, CheckpointFile
from shoal.runtime.client_folders import PARTITION_FOLDERS, partition_folder
from shoal.runtime.logs import site_file
from shoal.runtime.service import RETRY_FIRST_S, RETRY_MAX_S
from shoal.telemetry.events import log_event
from shoal.transports import open_log
from shoal.transports.base import Positions
from shoal.transports.kafka.settings import KafkaSettings

if TYPE_CHECKING:
    from shoal.client_nodes.host_metrics import HostMetrics

SITE_KEY_BYTES: Final = 32
FENCED_S: Final = 10.0
"""seconds after which a partition that was lost to another host, or to an outage, is tried again if
the group still gives it to this one: by then a member that stood still knows that it was left out
"""
TAKE_EVERY_S: Final = 0.5
"""interval at which a partition is tried again that the group has given, and does not confirm"""
SHOW_PROGRESS_S: Final = 5.0
"""interval at which the group is shown how far was read"""


class Group(Protocol):
    """See `GroupMember`."""

    def assigned(self, timeout_s: float = 0.0) -> frozenset[int] | None: ...

    def commit(self, at: Positions, note: str) -> bool: ...

    def has(self, partition: int) -> bool: ...

    def close(self) -> None: ...


class PartitionHost(Host):
    """Serves the clients of one partition, whose state moves with it."""

    def __init__(
        self,
        config: Config,
        moves: PartitionState,
        names: Collection[str],
        clients_max: int,
        clock: Callable[[], float],
        contract_by: float | None,
    ) -> None:
        """`config`: with the folder of the partition; the rest as of `Host`."""
        self._moves = moves
        self._confirmed_failures = 0
        """clients that were left out when the partition was this host's for certain"""
        super().__init__(config, names, clients_max, None, clock, contract_by, warns_of_none=False)

    @property
    def source(self) -> SiteSource:
        """What takes the readings in."""
        assert self._source is not None
        return self._source

    @property
    def is_confirmed(self) -> bool:
        """Whether the partition was still this host's after each client that is left out was."""
        return len(self.failures()) <= self._confirmed_failures

    def step(self, timeout_s: float = 0.0) -> bool:
        """See `Host.step`. Raises `PartitionLost` where another host has the partition."""
        did_something = super().step(timeout_s)
        if not self.is_confirmed:
            # What a host after this one has published is unknown here, which looks as if the files
            # of a client were old ones.
            try:
                self._moves.confirm()
            except LogUnavailable:
                # As with an outage of other logs: tried again.
                return True
            self._confirmed_failures = len(self.failures())
        return did_something

    def rest_longer(self, partitions: int) -> None:
        """Rest so long after a turn that the turns of all so many partitions together take the
        share of a core that those of one host take."""
        self._turn.rest_ratio = (REST_RATIO + 1.0) * partitions - 1.0

    def _make_source(
        self, config: Config, clients_max: int, clock: Callable[[], float]
    ) -> SiteSource:
        return SiteSource(config, self._names, clients_max, clock, self._moves)

    def _make_shared(self, config: Config) -> SharedFiles:
        return SharedFiles(config, self._moves.watch, self._commit, self._moves.ledgers)

    def _commit(self, checkpoints: CheckpointFile) -> None:
        self._moves.commit(checkpoints, self.source.site)

    def _note_stored(self, clients: Iterable[HostedClient]) -> None:
        for client in clients:
            if client.stored_end is not None:
                self._moves.stored(client.name, client.stored_end)

    def _shared_by(self, client: str) -> OfHost:
        self._moves.prepare(client)
        return (
            super()
            ._shared_by(client)
            ._replace(
                noise_key=partial(self._moves.noise_key, client),
                note_charge=self._moves.charge_notes(client),
            )
        )

    def _begun_fields(self) -> dict[str, int]:
        return {"partition": self._moves.partition}

    def _has_key(self, client: str) -> bool:
        # It is made from the site's key when the client is opened.
        return True

    def _check_any_left(self) -> None:
        """Nothing: those of other partitions may go on."""


class _Owned:
    """A partition that this host has."""

    def __init__(self, host: PartitionHost, moves: PartitionState) -> None:
        self.host = host
        self.moves = moves


class GroupHost:
    """Serves the clients of the partitions that its group gives it."""

    def __init__(
        self,
        config: Config,
        names: Collection[str] = (),
        clients_max: int = 1000,
        metrics: HostMetrics | None = None,
        clock: Callable[[], float] = time.time,
        contract_by: float | None = None,
        *,
        make_group: Callable[[Config], Group] | None = None,
        open_changelog: Callable[[Config, int], Changelog] | None = None,
    ) -> None:
        """`clients_max`: most clients of one partition, whichever host has it; the rest as of
        `Host`. `make_group`, `open_changelog`: those on Kafka by default.

        Raises `SettingsError` for settings with which clients cannot move.
        """
        _check_settings(config)
        assert config.host.noise_key_file is not None
        self._config = config
        self._names = names
        self._clients_max = clients_max
        self._metrics = metrics
        self._clock = clock
        self._contract_by = contract_by
        self._make_group = make_group or kafka_group
        self._open_changelog = open_changelog or kafka_changelog
        self._site_key = read_site_key(config)
        self._group: Group | None = None
        self._topic: SiteTopic | None = None
        self._opened = ExitStack()
        self._owned: dict[int, _Owned] = {}
        self._counts: Counter[str] = Counter()
        """records by what became of them: see `SiteIntake`"""
        self._moved: Counter[str] = Counter()
        """partitions that were gained, and lost, since the start"""
        self._tried_next: dict[int, float] = {}
        """partition -> moment at which it is tried again, by the monotonic clock"""
        self._retry_s = RETRY_FIRST_S
        self._retry_at = -math.inf
        self._shows_next = -math.inf
        self._lag_asked_at = -math.inf
        self._progress_next = -math.inf
        self._takeover_s = 0.0

    @property
    def clients(self) -> dict[str, HostedClient]:
        """The clients by name, those that are left out too."""
        clients = {}
        for owned in self._owned.values():
            clients.update(owned.host.clients)
        return clients

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that this host has."""
        return frozenset(self._owned)

    def totals(self) -> dict[str, int]:
        """Sums of `TOTALS` over the clients that are here, since each was first started."""
        sums = dict.fromkeys(TOTALS, 0)
        for owned in self._owned.values():
            for name, total in owned.host.totals().items():
                sums[name] += total
        return sums

    def failures(self) -> dict[str, ShoalError]:
        """Why each client that is left out is."""
        failures = {}
        for owned in self._owned.values():
            failures.update(owned.host.failures())
        return failures

    def step(self, timeout_s: float = 0.0) -> bool:
        """Follow the group, and let the clients of each partition step.

        Returns whether there was anything to do; waits `timeout_s` seconds otherwise. Raises
        `InvalidState` once every client is left out, and as `Host` does.
        """
        is_waiting = not self._follow(0.0 if self._owned else timeout_s)
        did_something = False
        for partition, owned in list(self._owned.items()):
            try:
                did_something |= owned.host.step(timeout_s / len(self._owned))
            except PartitionLost as lost:
                self._give_up(partition, str(lost), stores=False)
        failures = self.failures()
        is_confirmed = all(owned.host.is_confirmed for owned in self._owned.values())
        if failures and len(failures) == len(self.clients) and is_confirmed:
            raise left_out(failures, len(failures), self._config.server.client_names)
        self._show()
        return did_something or is_waiting

    def close(self) -> None:
        """Store what clients have learnt, and leave the group, whose other hosts go on."""
        with ExitStack() as stack:
            stack.callback(self._opened.close)
            if self._group is not None:
                # Last: a member that has left is no owner.
                stack.callback(self._group.close)
            for owned in self._owned.values():
                stack.callback(owned.moves.close)
                stack.callback(owned.host.close)

    def _follow(self, timeout_s: float) -> bool:
        """Have the partitions that the group gives this host; False while some are to come."""
        now = time.monotonic()
        if now < self._retry_at:
            time.sleep(min(timeout_s, self._retry_at - now))
            return False
        try:
            group = self._joined()
            assigned = group.assigned(timeout_s)
            if assigned is None:
                return False
            for partition in self._owned.keys() - assigned:
                self._give_up(partition, "the group gives it to another host", stores=True)
            missing = sorted(assigned - self._owned.keys())
            for partition in missing:
                if now >= self._tried_next.get(partition, -math.inf):
                    # One a step: those that are here go on meanwhile.
                    self._take(group, partition)
                    break
            self._show_progress(group, now)
        except LogUnavailable as outage:
            log_event("retrying", logging.WARNING, error=str(outage), retry_s=self._retry_s)
            self._retry_at = now + self._retry_s
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
            return False
        self._retry_s = RETRY_FIRST_S
        return assigned == self._owned.keys()

    def _joined(self) -> Group:
        """The group, joined once the topics are there."""
        if self._group is None:
            if self._topic is None:
                self._opened.enter_context(_folder_of_one_host(self._config))
                self._topic = _ensure_topics(self._config)
            self._group = self._make_group(self._config)
        return self._group

    def _take(self, group: Group, partition: int) -> None:
        """Have a partition: fence the host before, and restore its clients. Raises as the log
        does."""
        assert self._topic is not None
        self._tried_next[partition] = time.monotonic() + TAKE_EVERY_S
        if not group.has(partition):
            # The group is being divided anew.
            return
        began = time.monotonic()
        config = config_of_partition(self._config, partition)
        shutil.rmtree(config.client.folder, ignore_errors=True)
        with ExitStack() as opened:
            changelog = self._open_changelog(self._config, partition)
            opened.callback(changelog.close)
            moves = PartitionState(config, partition, self._topic, changelog, self._site_key)
            opened.callback(moves.close)
            moves.restore()
            host = PartitionHost(
                config, moves, self._names, self._clients_max, self._clock, self._contract_by
            )
            host.source.counts = self._counts
            opened.pop_all()
        self._owned[partition] = _Owned(host, moves)
        del self._tried_next[partition]
        self._moved["gained"] += 1
        self._takeover_s = time.monotonic() - began
        self._share_rest()
        log_event(
            "partition_gained",
            partition=partition,
            clients=moves.clients,
            seconds=round(self._takeover_s, 3),
        )

    def _give_up(self, partition: int, reason: str, *, stores: bool) -> None:
        """Close the clients of a partition. `stores`: with what they have learnt, as long as no
        other host has fenced this one."""
        owned = self._owned.pop(partition)
        clients = len(owned.host.clients)
        with ExitStack() as closed:
            closed.callback(
                shutil.rmtree,
                config_of_partition(self._config, partition).client.folder,
                ignore_errors=True,
            )
            closed.callback(owned.moves.close)
            closed.callback(owned.host.close if stores else owned.host.close_files)
        if not stores:
            self._tried_next[partition] = time.monotonic() + FENCED_S
        self._moved["lost"] += 1
        self._share_rest()
        log_event(
            "partition_lost", logging.WARNING, partition=partition, clients=clients, reason=reason
        )

    def _share_rest(self) -> None:
        for owned in self._owned.values():
            owned.host.rest_longer(len(self._owned))

    def _show_progress(self, group: Group, now: float) -> None:
        if now < self._progress_next:
            return
        self._progress_next = now + SHOW_PROGRESS_S
        at = {}
        for partition, owned in self._owned.items():
            if owned.moves.position is not None:
                at[partition] = owned.moves.position
        if at:
            group.commit(at, "")

    def _show(self) -> None:
        now = time.monotonic()
        if self._metrics is None or now < self._shows_next:
            return
        clients = self.clients
        lags = None
        waiting = None
        if now >= self._lag_asked_at + LAG_EVERY_S:
            self._lag_asked_at = now
            lags = {name: client.lag_records() for name, client in clients.items()}
            waiting = sum(owned.host.source.lag_records() for owned in self._owned.values())
        refused = sum(len(owned.host.refused) for owned in self._owned.values())
        self._metrics.show(clients, refused, lags)
        self._metrics.show_site(self._counts, waiting)
        self._metrics.show_partitions(len(self._owned), self._moved, self._takeover_s)
        shown_at = time.monotonic()
        self._shows_next = shown_at + max(SHOW_EVERY_S, SHOW_RATIO * (shown_at - now))


def read_site_key(config: Config) -> bytes:
    """The 32 secret bytes of the site from which noise keys are derived. Raises `SettingsError`."""
    path = config.host.noise_key_file
    assert path is not None
    try:
        key = read_secret(
            path,
            SITE_KEY_BYTES,
            kind="noise key of the site",
            risk="remove the noise of all its clients",
            remedy="begin with a new key and a new topic of readings",
        )
    except OSError as error:
        raise SettingsError(
            f"[host] noise_key_file {path} cannot be read ({error.strerror}): each host of the"
            " group needs the same file"
        ) from None
    if len(key) != SITE_KEY_BYTES:
        raise SettingsError(
            f"[host] noise_key_file {path} does not have {SITE_KEY_BYTES} bytes; make one with"
            " `head -c 32 /dev/urandom`, and give each host of the group the same"
        )
    return key


def config_of_partition(config: Config, partition: int) -> Config:
    """The configuration with the folder of a partition's clients."""
    folder = partition_folder(config.client.folder, partition)
    client = config.client.model_copy(update={"folder": folder})
    return config.model_copy(update={"client": client})


def _check_settings(config: Config) -> None:
    if config.client.label:
        raise SettingsError(
            "[client] label keeps labels in a client's folder, which does not move from host to"
            " host: set label = false, or leave out group of [host]"
        )
    if config.readings.folder is not None:
        raise SettingsError(
            "[readings] folder is where the ledgers of several federations are, and that of a"
            " client of a group moves from host to host: leave it out"
        )
    if site_file(config).exists():
        raise SettingsError(
            f"{config.client.folder} has clients that stay on their host: give a host of a group a"
            " folder of its own, and a new topic of readings"
        )


def _folder_of_one_host(config: Config) -> Checkpoint:
    """The lock on the folder of this host, without what an earlier process has left there: a
    working copy, of which the changelog knows all that counts. Raises as a checkpoint does."""
    folder = config.client.folder
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = Checkpoint(folder / "group.db", host_owner(config))
    for left in folder.glob(PARTITION_FOLDERS):
        shutil.rmtree(left, ignore_errors=True)
    return lock


def _ensure_topics(config: Config) -> SiteTopic:
    """The topics of readings and of the changelog, of as many partitions. Raises `SettingsError`
    where the site's brokers are those of the federation, and as the log does."""
    # Here and below: kafka-python is an extra, which only hosts of a group need.
    from shoal.transports.kafka.changelog import changelog_settings  # noqa: PLC0415 - kafka extra

    with closing(open_log(config.host)) as log:
        check_site_apart(config, log)
        log.ensure(config.host.topic)
        partitions = len(log.bounds(config.host.topic))
        topic = changelog_topic(config)
        log.ensure(topic, changelog_settings(partitions))
        return SiteTopic(log.identity(config.host.topic), log.identity(topic))


def changelog_topic(config: Config) -> str:
    """The topic by which the clients of a group's hosts move."""
    return f"{config.host.topic}.clients"


def _brokers(config: Config) -> tuple[str, KafkaSettings]:
    transport, place = parse_address(config.host.address)
    settings = transport_part(config.host, transport)
    assert isinstance(settings, KafkaSettings), "HostSettings refuses other transports"
    return place, settings


def kafka_group(config: Config) -> Group:
    """A member of the group of a site's hosts. Raises `SettingsError` where the brokers are too
    old, and as the log does."""
    from shoal.transports.kafka.exactly_once import (  # noqa: PLC0415 - kafka extra
        check_transactions,
    )
    from shoal.transports.kafka.group import GroupMember  # noqa: PLC0415 - kafka extra

    place, settings = _brokers(config)
    check_transactions(place, settings)
    host = config.host
    return GroupMember(place, settings, host.group, host.topic, host.member, host.session_s)


def kafka_changelog(config: Config, partition: int) -> Changelog:
    """The changelog of a partition, opened, by which the host before is fenced."""
    from shoal.transports.kafka.changelog import PartitionChangelog  # noqa: PLC0415 - kafka extra

    place, settings = _brokers(config)
    changelog = PartitionChangelog(place, settings, changelog_topic(config), partition)
    try:
        changelog.open()
    except BaseException:
        changelog.close()
        raise
    return changelog
