"""A host: one process that serves the clients of a site.

A client of a host is the same `ClientNode` as in a process of its own: what it publishes is the
same to the bit. Its noise key, ledger and notes of releases stay its own, so a host changes no
guarantee. Where each client has a readings log, all its files are its own, and it can move between
a host and a process. Where the readings of all come in one log, clients share a file of readings,
one of checkpoints, one of ledgers and one connection to the federation's log (`SharedFiles`), and
step together.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from shoal.client_nodes.asleep import Asleep
from shoal.client_nodes.bootstrap import CHECKPOINT, NOISE_KEY, RESTORED, OfHost
from shoal.client_nodes.hosted_client import HostedClient
from shoal.client_nodes.monitoring import TOTALS
from shoal.client_nodes.shared_files import SharedFiles
from shoal.client_nodes.silence import why_kept_open
from shoal.client_nodes.site_source import SiteSource
from shoal.config.base import DAY_S, check_client_name
from shoal.config.settings import Config
from shoal.errors import InvalidState, LogUnavailable, SettingsError, ShoalError
from shoal.files import allow_files
from shoal.protocol.reading_faults import Rejected
from shoal.runtime.service import RETRY_FIRST_S, RETRY_MAX_S
from shoal.telemetry.events import log_event

if TYPE_CHECKING:
    from shoal.client_nodes.host_metrics import HostMetrics

READINGS_FILE: Final = "readings.db"
"""file of the readings log in the folder of a client"""
LOOK_EVERY_S: Final = 5.0
"""interval at which a host looks for clients that are new"""
SHOW_EVERY_S: Final = 1.0
"""interval at which metrics are made, where they are served"""
SHOW_RATIO: Final = 20.0
"""least interval over the time that it takes to make them: a twentieth of a core at most"""
LAG_EVERY_S: Final = 10.0
"""interval at which the lag of every client is asked for, which takes longer than the rest"""
SLICE_S: Final = 1.0
"""time after which a step ends between two clients: the host is seen to be alive, and stops when
it is asked to, however many clients there are to open"""
REST_RATIO: Final = 4.0
"""least rest after a turn of all clients in which none has left anything to do, over the time that
the turn took: many clients take a fifth of a core, and read in their next turn what has come"""
REST_MAX_S: Final = 5.0
"""longest rest where clients have logs of their own, or act without readings, as in rounds"""
SHARED_REST_MAX_S: Final = 60.0
"""longest rest where readings alone make clients act"""
STORE_EVERY_S: Final = 300.0
"""most seconds of learning that clients which share their files repeat after a kill. A store takes
as long as to learn a hundred readings; what is published is stored in any case, and all is stored
at an end in order"""
TAKE_IN_RATIO: Final = 10.0
"""least time between two looks into the log of a site that find records, over the time that the
first one takes: the readings of a client that come together are stored as cheaply as one"""
TAKE_IN_REST_MAX_S: Final = 5.0
"""longest such time"""
FILES_EACH: Final = 12
"""most open files of one client: its log, its checkpoint and the federation's log have three each,
and a ledger is opened beside them while it is written"""
FILES_SPARE: Final = 64
"""open files of the process itself"""


class Closable(Protocol):
    """What can be closed."""

    def close(self) -> None: ...


class _Turn:
    """A turn of all clients, after which they rest, unless one has left something to do."""

    def __init__(self, rest_max_s: float) -> None:
        self.rest_ratio = REST_RATIO
        """least rest over the time of a turn"""
        self.rests_until = -math.inf
        """the moment at which the next turn begins, by the monotonic clock"""
        self.left_over = False
        """whether a client has left something to do"""
        self.is_first = True
        """whether there were no clients yet that have had their turn"""
        self._rest_max_s = rest_max_s
        self._took_s = 0.0

    def add(self, began: float, *, ends: bool) -> None:
        """Add steps that began at this moment and have ended now; `ends`: the turn with them."""
        now = time.monotonic()
        self._took_s += now - began
        if not ends:
            return
        if not self.left_over:
            self.rests_until = now + min(self.rest_ratio * self._took_s, self._rest_max_s)
        self._took_s = 0.0
        self.left_over = False


class Host:
    """Serves the clients of one site in turn, a step each.

    A client reads a batch a step, so one with many readings does not keep the others waiting.
    """

    def __init__(
        self,
        config: Config,
        names: Collection[str] = (),
        clients_max: int = 1000,
        metrics: HostMetrics | None = None,
        clock: Callable[[], float] = time.time,
        contract_by: float | None = None,
        *,
        warns_of_none: bool = True,
    ) -> None:
        """`names`: the clients to serve; none: all that the site has, new ones as they come.

        `contract_by`: when a new client no longer waits for the federation's contract, monotonic;
        None: it does not wait. `warns_of_none`: whether it is logged that there is no client.
        Raises `SettingsError` for a name that no client can have, for more names than
        `clients_max`, for no names where readings are on a broker, and where the process may not
        open files enough.
        """
        self._config = config
        self._names = sorted({check_client_name(name) for name in names})
        if len(self._names) > clients_max:
            raise SettingsError(
                f"{len(self._names)} clients are named, and this host serves {clients_max} at most:"
                " raise --clients-max, or start another host"
            )
        self._source = None
        self._shared = None
        if config.host.client:
            self._source = self._make_source(config, clients_max, clock)
            self._shared = self._make_shared(config)
        if config.readings.address and not self._names:
            raise SettingsError(
                "readings are on a broker, which does not tell a host what clients there are: name"
                " each one with --name"
            )
        self._clients_max = clients_max
        self._metrics = metrics
        self._clock = clock
        self._contract_by = contract_by
        self._clients: dict[str, HostedClient] = {}
        # What the host before has noted of each client; None before it is read.
        self._notes: dict[str, Asleep] | None = None
        self._refused: set[str] = set()
        """clients that have come when `clients_max` were there"""
        self._site_clients = 0
        """clients whose readings had come when clients were looked for"""
        self._said_none = not warns_of_none
        """whether it was logged that there is no client, or need not be"""
        self._looked_at = -math.inf
        self._shows_next = -math.inf
        """the moment at which metrics are made again"""
        self._lag_asked_at = -math.inf
        self._next = 0
        """place of the client whose turn is next"""
        self._turn = _Turn(_rest_max_s(config))
        self._has_news = False
        """whether readings have been taken in since the turn began"""
        self._takes_in_next = -math.inf
        """the moment of the next look into the log of the site, by the monotonic clock"""
        self._retry_s = RETRY_FIRST_S
        self._retry_at = -math.inf
        self._idle_s = _idle_s(config)
        if self._shared is None:
            _allow_files(clients_max)

    def _make_source(
        self, config: Config, clients_max: int, clock: Callable[[], float]
    ) -> SiteSource:
        return SiteSource(config, self._names, clients_max, clock)

    def _make_shared(self, config: Config) -> SharedFiles:
        return SharedFiles(config)

    @property
    def clients(self) -> dict[str, HostedClient]:
        """The clients by name, those that are left out too."""
        return dict(self._clients)

    @property
    def refused(self) -> frozenset[str]:
        """Names of clients that are beyond `clients_max`."""
        if self._source is not None:
            return frozenset(self._refused | self._source.refused)
        return frozenset(self._refused)

    def step(self, timeout_s: float = 0.0) -> bool:
        """A step of every client in turn, as many as come in `SLICE_S`.

        Returns whether there was anything to do, which an outage keeps true; waits `timeout_s`
        seconds otherwise. With a `timeout_s` clients rest after their turn, longer where it took
        long. Raises `InvalidState` once every client is left out.
        """
        now = time.monotonic()
        # Without a timeout clients do not rest; after a failure the host waits in any case.
        rests_until = max(self._turn.rests_until, self._retry_at) if timeout_s else self._retry_at
        # A turn of all begins with all that has come.
        begins_turn = self._next == 0 and now >= rests_until
        did_something = self._take_in(waits=bool(timeout_s) and not begins_turn)
        self._look_for_clients()
        # Clients that have come from another host go on once their readings are there again.
        is_behind = self._source is not None and self._source.is_behind
        if now >= rests_until and not is_behind:
            did_something |= self._take_turns()
        self._check_any_left()
        self._show_metrics()
        if timeout_s and not did_something:
            time.sleep(timeout_s)
        elif now < rests_until:
            time.sleep(min(timeout_s, rests_until - now))
        # Readings that have come while clients rest are still to be learnt, and those that have
        # come since the newest look are still to be taken in.
        waits = self._has_news or self._retry_at > -math.inf
        waits |= bool(timeout_s) and time.monotonic() < self._takes_in_next
        waits |= is_behind or (self._source is not None and self._source.waits)
        return did_something or waits or any(client.waits for client in self._clients.values())

    def _take_in(self, *, waits: bool) -> bool:
        """Take in what the log of the site has. With `waits` not before some time has passed since
        the newest look that found something. False where there was nothing."""
        began = time.monotonic()
        if self._source is None or (waits and began < self._takes_in_next):
            return False
        if not self._source.step():
            return False
        self._has_news = True
        now = time.monotonic()
        self._takes_in_next = now + min(TAKE_IN_RATIO * (now - began), TAKE_IN_REST_MAX_S)
        return True

    def _take_turns(self) -> bool:
        """Let the next clients step, for `SLICE_S` at most; False where nothing is to be done.

        At the end of a turn of all, clients rest, unless one has left something to do.
        """
        began = time.monotonic()
        if self._next == 0:
            self._has_news = False
        if self._shared is None:
            did_something = self._step_clients([])
        else:
            did_something = self._step_together(self._shared)
        self._turn.add(began, ends=self._next == 0)
        if self._next == 0 and self._clients and self._turn.is_first:
            self._turn.is_first = False
            self._say_begun()
        # Where others have not been asked yet, the next step comes without a rest.
        return did_something or self._next > 0

    def _say_begun(self) -> None:
        """Log that each client has had its first turn, and how many had something to do: one line
        for what may be thousands."""
        is_open = 0
        away = 0
        for client in self._clients.values():
            is_open += client.is_open
            away += client.is_away
        log_event(
            "clients_begun",
            clients=len(self._clients),
            open=is_open,
            away=away,
            **self._begun_fields(),
        )

    def _begun_fields(self) -> dict[str, int]:
        """Further fields of that line."""
        return {}

    def _step_clients(self, stepped: list[HostedClient]) -> bool:
        """Let clients step, from where the step before has ended up to the last one at most.

        Were each to begin at the first client, one that ends early would never come to the last.
        `stepped` gets them. Returns whether one did something.
        """
        clients = list(self._clients.values())
        did_something = False
        began = time.monotonic()
        for client in clients[self._next :]:
            self._next = (self._next + 1) % len(clients)
            acted = client.step()
            stepped.append(client)
            did_something |= acted
            # Where clients do not share their readings, one that did something may have more to do.
            self._turn.left_over |= acted and (self._shared is None or client.has_more)
            if self._idle_s and self._shared is None:
                client.put_away_if_silent(self._idle_s)
            if time.monotonic() > began + SLICE_S:
                break
        return did_something

    def _step_together(self, shared: SharedFiles) -> bool:
        """The same in one transaction, after which all publish what they have saved."""
        stepped: list[HostedClient] = []
        try:
            with shared.together(self._clients):
                did_something = self._step_clients(stepped)
                self._note_stored(stepped)
            with shared.marking():
                for client in stepped:
                    client.mark_stored()
            with shared.publishing():
                published = [client for client in stepped if client.publish()]
            if shared.has_failed:
                raise LogUnavailable("the federation's log has failed, and is opened again")
            if published:
                # So that a host after a kill opens only clients with something to do: what it
                # finds in an outbox may not be published.
                with shared.together(()):
                    for client in published:
                        client.delete_published()
        except ShoalError as error:
            self._lose_shared(shared, error)
            return False
        self._retry_s = RETRY_FIRST_S
        self._retry_at = -math.inf
        if self._idle_s:
            for client in stepped:
                client.put_away_if_silent(self._idle_s)
        return did_something

    def _lose_shared(self, shared: SharedFiles, error: ShoalError) -> None:
        """Close all that clients share after an error, and them, to be opened again later.

        Raises the error where no later try can mend it.
        """
        for client in self._clients.values():
            client.lose(error)
        shared.close()
        if not error.retriable:
            raise error
        log_event("retrying", logging.WARNING, error=str(error), retry_s=self._retry_s)
        self._retry_at = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    def close(self) -> None:
        """Close every client. The next host, or processes of their own, go on from their files."""
        if self._shared is not None:
            self._store_all(self._shared)
        self.close_files()

    def close_files(self) -> None:
        """Close every client as it was stored last."""
        with ExitStack() as stack:
            if self._source is not None:
                # The last of all, as clients read from it.
                stack.callback(self._source.close)
            if self._shared is not None:
                stack.callback(self._shared.close)
            for client in self._clients.values():
                stack.callback(client.close)

    def _store_all(self, shared: SharedFiles) -> None:
        """Store what clients have learnt, so that the next host needs not learn it again. Where
        that fails it does."""
        clients = [client for client in self._clients.values() if client.is_open]
        if not self._clients:
            return
        try:
            with shared.together(()):
                for client in clients:
                    client.store_unstored()
                self._note_stored(clients)
            with shared.marking():
                for client in clients:
                    client.mark_stored()
            with shared.publishing():
                for client in clients:
                    client.publish()
            self._note_sleeping(shared)
        except ShoalError as error:
            log_event("not_stored", logging.WARNING, error=str(error))

    def _note_stored(self, clients: Iterable[HostedClient]) -> None:
        """Clients have stored their states, which are in the file once the transaction has ended.
        Nothing to note where they stay on their host."""

    def _note_sleeping(self, shared: SharedFiles) -> None:
        """Note which clients the next host needs not open at once. Raises as the files do."""
        # Before the first step of a client nothing has changed.
        if self._source is None or self._notes is None:
            return
        # Those that have not stepped since the start are as they were.
        notes = dict(self._notes)
        for name, client in self._clients.items():
            note = client.note()
            if note is not None:
                notes[name] = note
        with shared.together(()):
            shared.sleep_notes(self._source.identity).save(notes)

    def failures(self) -> dict[str, ShoalError]:
        """Why each client that is left out is."""
        failures = {}
        for name, client in self._clients.items():
            if client.failure is not None:
                failures[name] = client.failure
        return failures

    def totals(self) -> dict[str, int]:
        """Sums of `TOTALS` over the clients, since each was first started."""
        sums = dict.fromkeys(TOTALS, 0)
        for client in self._clients.values():
            for name in TOTALS:
                sums[name] += client.totals[name]
        return sums

    def rejected(self) -> list[Rejected]:
        """Readings that the clients that are open have rejected since each was first started, the
        most first. They stay on the site."""
        found = []
        for name, client in self._clients.items():
            for rejected in client.rejected():
                found.append(rejected._replace(first=f"{rejected.first} of {name}"))
        return sorted(found, key=lambda rejected: -rejected.readings)

    def _look_for_clients(self) -> None:
        now = time.monotonic()
        has_new = self._source is not None and self._source.clients > self._site_clients
        if now < self._looked_at + LOOK_EVERY_S and not has_new:
            return
        self._looked_at = now
        for name in self._client_names():
            if name in self._clients or name in self._refused:
                continue
            if len(self._clients) >= self._clients_max:
                self._refused.add(name)
                log_event(
                    "client_refused",
                    logging.WARNING,
                    client=name,
                    clients_max=self._clients_max,
                )
                continue
            of_host = None if self._shared is None else partial(self._shared_by, name)
            self._clients[name] = HostedClient(
                self._config, name, self._clock, self._contract_by, of_host, self._note_of
            )
        if not self._clients and not self._said_none:
            self._said_none = True
            log_event("no_clients", logging.WARNING, place=_place_of_readings(self._config))

    def _note_of(self, client: str) -> Asleep | None:
        """What the host before has noted of a client; None where that has to look for itself."""
        if self._shared is None or self._source is None or why_kept_open(self._config):
            return None
        if self._notes is None:
            self._notes = self._shared.sleep_notes(self._source.identity).load()
        note = self._notes.pop(client, None)
        # One that comes from a backup must say so at the start.
        if (self._config.client.folder / client / RESTORED).exists():
            return None
        readings = self._source.site.client(client)
        if note is None or note.end != readings.next:
            states = self._shared.stored_states()
            note = states.note_of(client, readings.identity, self._clock())
        # Without its noise key it must be opened, which says so.
        return note if self._has_key(client) else None

    def _has_key(self, client: str) -> bool:
        return (self._config.client.folder / client / NOISE_KEY).exists()

    def _shared_by(self, client: str) -> OfHost:
        assert self._source is not None
        assert self._shared is not None
        shared = self._shared
        return OfHost(
            self._source.log_of(client),
            shared.checkpoints,
            shared.log,
            shared.decode,
            STORE_EVERY_S,
            ledgers=shared.ledgers,
        )

    def _client_names(self) -> Sequence[str]:
        """The clients to serve, as far as they are known, those that come first first."""
        if self._source is None:
            return self._names or _clients_of(self._config)
        names = self._source.names
        self._site_clients = len(names)
        if not self._names:
            return names
        return [name for name in names if name in self._names]

    def _check_any_left(self) -> None:
        failures = self.failures()
        if failures and len(failures) == len(self._clients):
            raise left_out(failures, len(self._clients), self._config.server.client_names)

    def _show_metrics(self) -> None:
        now = time.monotonic()
        if self._metrics is None or now < self._shows_next:
            return
        lags = None
        if now >= self._lag_asked_at + LAG_EVERY_S:
            self._lag_asked_at = now
            lags = {name: client.lag_records() for name, client in self._clients.items()}
        self._metrics.show(self._clients, len(self.refused), lags)
        if self._source is not None:
            waiting = None if lags is None else self._source.lag_records()
            self._metrics.show_site(self._source.counts, waiting)
        shown_at = time.monotonic()
        self._shows_next = shown_at + max(SHOW_EVERY_S, SHOW_RATIO * (shown_at - now))


def left_out(
    failures: Mapping[str, ShoalError], clients: int, client_names: Mapping[str, str]
) -> InvalidState:
    """The error of a host that has left clients out, with the first of them. `client_names`: those
    that owners gave."""
    name, error = next(iter(failures.items()))
    if name in client_names:
        # With the name that its folder has.
        name = f"{client_names[name]} ({name})"
    return InvalidState(f"{len(failures)} of {clients} clients were left out; {name}: {error}")


def served_none(config: Config) -> SettingsError:
    """The error of a host that has ended without a single client."""
    place = _place_of_readings(config)
    if config.host.client:
        return SettingsError(
            f"no client was served: no record of {place} names a client that this host serves."
            " Check address and topic of [host], and that records have the client as their key"
        )
    return SettingsError(
        f"no client was served: no folder in {place} has a readings log ({READINGS_FILE}). Start a"
        " producer with the same file, check [client] folder, or name clients with --name"
    )


def _place_of_readings(config: Config) -> str:
    """The folder or topic in which a host looks for clients."""
    if config.host.client:
        return f"{config.host.address} topic {config.host.topic}"
    return str(config.readings_folder)


AnyHost = TypeVar("AnyHost", bound=Closable)


@contextmanager
def open_host(host: AnyHost) -> Iterator[AnyHost]:
    """The host, closed at the end."""
    try:
        yield host
    finally:
        host.close()


def _rest_max_s(config: Config) -> float:
    """The longest rest of the clients of a host."""
    if config.host.client and not why_kept_open(config):
        return SHARED_REST_MAX_S
    return REST_MAX_S


def _idle_s(config: Config) -> float:
    """Seconds of silence after which a client is put away; 0: never. Logs why it may not be."""
    idle_days = config.host.idle_days
    why = why_kept_open(config) if idle_days else ""
    if why:
        log_event("clients_kept_open", logging.WARNING, idle_days=idle_days, reason=why)
        return 0.0
    return idle_days * DAY_S


def _clients_of(config: Config) -> list[str]:
    """The clients of a site: those that were started first, then the others, each by name."""
    started = _folders_with(config.client.folder, CHECKPOINT)
    fed = _folders_with(config.readings_folder, READINGS_FILE)
    # A client that has learnt must not be refused because of one that has not begun.
    return sorted(started) + sorted(fed - started)


def _folders_with(folder: Path, file: str) -> set[str]:
    """Names of the folders below this one that have the file, and that a client can have."""
    if not folder.is_dir():
        return set()
    names = set()
    for entry in os.scandir(folder):
        # The file is not opened: closing it would release the locks that SQLite has on it in this
        # process.
        if not entry.name.startswith(".") and Path(entry.path, file).exists():
            names.add(entry.name)
    return {name for name in names if _can_be_client(name)}


def _can_be_client(name: str) -> bool:
    try:
        check_client_name(name)
    except SettingsError:
        return False
    return True


def _allow_files(clients_max: int) -> None:
    """Let the process open the files of so many clients. Raises `SettingsError` if it may not."""
    needed = FILES_EACH * clients_max + FILES_SPARE
    allowed = allow_files(needed)
    if allowed < needed:
        raise SettingsError(
            f"{clients_max} clients need {needed} open files, and this process may have {allowed}:"
            " raise the limit (`ulimit -Hn`, LimitNOFILE of systemd), or lower --clients-max"
        )
