"""A host: one process that serves the clients of a site, each with a folder of its own.

A client of a host is the same `ClientNode`, on the same files, as in a process of its own: what it
publishes is the same to the bit, and it can move between the two while neither runs it. Its noise
key, ledger and notes of releases stay its own, so a host changes no guarantee.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit, setrlimit
from typing import TYPE_CHECKING, Final

from shoal.client_nodes.bootstrap import CHECKPOINT
from shoal.client_nodes.hosted_client import HostedClient
from shoal.client_nodes.monitoring import TOTALS
from shoal.client_nodes.silence import why_kept_open
from shoal.client_nodes.site_source import SiteSource
from shoal.config.base import DAY_S, check_client_name
from shoal.config.settings import Config
from shoal.errors import InvalidState, SettingsError, ShoalError
from shoal.protocol.reading_faults import Rejected
from shoal.telemetry.events import log_event

if TYPE_CHECKING:
    from shoal.client_nodes.host_metrics import HostMetrics

READINGS_FILE: Final = "readings.db"
"""file of the readings log in the folder of a client"""
LOOK_EVERY_S: Final = 5.0
"""interval at which a host looks for clients that are new"""
SHOW_EVERY_S: Final = 1.0
"""interval at which metrics are made, where they are served"""
LAG_EVERY_S: Final = 10.0
"""interval at which the lag of every client is asked for, which takes longer than the rest"""
SLICE_S: Final = 1.0
"""time after which a step ends between two clients: the host is seen to be alive, and stops when
it is asked to, however many clients there are to open"""
REST_RATIO: Final = 4.0
"""least rest after a turn of all clients in which none had anything to do, over the time that the
turn took: to ask many clients takes a fifth of a core at most"""
REST_MAX_S: Final = 5.0
FILES_EACH: Final = 12
"""most open files of one client: its log, its checkpoint and the federation's log have three each,
and a ledger is opened beside them while it is written"""
FILES_SPARE: Final = 64
"""open files of the process itself"""


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
        if config.host.client:
            self._source = SiteSource(config, self._names, clients_max, clock)
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
        self._refused: set[str] = set()
        """clients that have come when `clients_max` were there"""
        self._site_clients = 0
        """clients whose readings had come when clients were looked for"""
        self._said_none = not warns_of_none
        """whether it was logged that there is no client, or need not be"""
        self._looked_at = -math.inf
        self._shown_at = -math.inf
        self._lag_asked_at = -math.inf
        self._next = 0
        """place of the client whose turn is next"""
        self._idle_s = _idle_s(config)
        _allow_files(clients_max)

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
        seconds otherwise, and longer where it takes long to ask all clients. Raises
        `InvalidState` once every client is left out.
        """
        did_something = self._source is not None and self._source.step()
        self._look_for_clients()
        clients = list(self._clients.values())
        began = time.monotonic()
        for _ in range(len(clients)):
            # From where the step before has ended: were each to begin at the first client, one that
            # ends early would never come to the last.
            client = clients[self._next % len(clients)]
            self._next = (self._next + 1) % len(clients)
            did_something |= client.step()
            if self._idle_s:
                client.put_away_if_silent(self._idle_s)
            if time.monotonic() > began + SLICE_S:
                # The others have not been asked: the next step comes without a rest.
                did_something = True
                break
        self._check_any_left()
        self._show_metrics()
        if timeout_s and not did_something:
            rest_s = REST_RATIO * (time.monotonic() - began)
            time.sleep(max(timeout_s, min(rest_s, REST_MAX_S)))
        waits = self._source is not None and self._source.waits
        return did_something or waits or any(client.waits for client in clients)

    def close(self) -> None:
        """Close every client. The next host, or processes of their own, go on from their files."""
        with ExitStack() as stack:
            if self._source is not None:
                # The last of all, as clients read from it.
                stack.callback(self._source.close)
            for client in self._clients.values():
                stack.callback(client.close)

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
        has_new = self._source is not None and len(self._source.names) > self._site_clients
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
            of_site = None if self._source is None else partial(self._source.log_of, name)
            self._clients[name] = HostedClient(
                self._config, name, self._clock, self._contract_by, of_site
            )
        if not self._clients and not self._said_none:
            self._said_none = True
            log_event("no_clients", logging.WARNING, place=_place_of_readings(self._config))

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
            raise left_out(failures, len(self._clients))

    def _show_metrics(self) -> None:
        now = time.monotonic()
        if self._metrics is None or now < self._shown_at + SHOW_EVERY_S:
            return
        self._shown_at = now
        lags = None
        if now >= self._lag_asked_at + LAG_EVERY_S:
            self._lag_asked_at = now
            lags = {name: client.lag_records() for name, client in self._clients.items()}
        self._metrics.show(self._clients, len(self.refused), lags)
        if self._source is not None:
            waiting = None if lags is None else self._source.lag_records()
            self._metrics.show_site(self._source.counts, waiting)


def left_out(failures: dict[str, ShoalError], clients: int) -> InvalidState:
    """The error of a host that has left clients out, with the first of them."""
    name, error = next(iter(failures.items()))
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


@contextmanager
def open_host(host: Host) -> Iterator[Host]:
    """The host, closed at the end."""
    try:
        yield host
    finally:
        host.close()


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
    soft, hard = getrlimit(RLIMIT_NOFILE)
    if soft == RLIM_INFINITY or soft >= needed:
        return
    if hard != RLIM_INFINITY and hard < needed:
        raise SettingsError(
            f"{clients_max} clients need {needed} open files, and this process may have {hard}:"
            " raise the limit (`ulimit -Hn`, LimitNOFILE of systemd), or lower --clients-max"
        )
    setrlimit(RLIMIT_NOFILE, (needed, hard))
