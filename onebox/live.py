"""`shoal run` without files: messages of a broker through a whole federation in one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final

from shoal.client_nodes.host import LOOK_EVERY_S, Host, left_out
from shoal.client_nodes.monitoring import TOTALS
from shoal.config.settings import Config
from shoal.errors import SettingsError, ShoalError
from shoal.producers.producer_command import source_types
from shoal.producers.source_type import MessageSource, MessageStream, ProducerTask
from shoal.protocol.reading_faults import Rejected
from shoal.runtime.logs import open_federation_log
from shoal.runtime.service import resumed, run
from shoal.server_node.bootstrap import StatusUpdater, open_server
from shoal.server_node.lease import LeaseHolder, LeaseRenewal
from shoal.server_node.node import ServerNode
from shoal.server_node.report.status import StatusBoard
from shoal.telemetry.metrics import ServerMetrics

REST_S: Final = 1.0
"""seconds without any work, after the time in which new clients begin and all publish what they
have learnt, by which the messages that have come are in the models"""


def source_described(config: Config) -> MessageSource:
    """The one source of messages that the federation file describes. Raises `SettingsError`."""
    of_messages = [source for source in source_types() if isinstance(source, MessageSource)]
    described = [source for source in of_messages if source.is_described(config)]
    names = [f"[{source.name}]" for source in described or of_messages]
    if not described:
        raise SettingsError(
            "name the files to read, or say in the federation file where messages come from: it"
            f" has no {', '.join(names[:-1])} or {names[-1]}"
        )
    if len(described) > 1:
        raise SettingsError(
            f"{' and '.join(names)} are sources, and `shoal run` reads one: start `shoal server`,"
            " `shoal host` and a `shoal producer` for each instead"
        )
    return described[0]


def opened_stream(config: Config, options: Mapping[str, Any]) -> MessageStream:
    """The messages that the federation file describes.

    Raises `SettingsError` for a file that describes none, or that does not suit one process.
    """
    source = source_described(config)
    if config.readings.address:
        raise SettingsError(
            "readings are on a broker ([readings]): start `shoal producer`, `shoal client` and"
            " `shoal server` as processes of their own"
        )
    chosen = {**options, source.name: True}
    if config.contract.privacy.privacy_unit.is_user and not source.gives_users(config, chosen):
        raise SettingsError(
            'unit = "user" of [privacy] needs a user id with every message: name its field with'
            f" user_id of [{source.name}]"
        )
    task = ProducerTask(config, config.readings_folder, chosen, bool(options["as_json"]))
    return source.stream(task)


class LiveFederation:
    """The server and the clients of a federation in one process; see `Steppable`.

    Every client that has readings is served, new ones as they come.
    """

    def __init__(self, server: ServerNode, host: Host) -> None:
        self.server = server
        self.host = host
        self._rests_since: float | None = None

    def has_rested(self, seconds: float) -> bool:
        """Whether there was nothing to do for so long, and all updates are in the models."""
        if self._rests_since is None or time.monotonic() < self._rests_since + seconds:
            return False
        return self.server.up_to_date

    def step(self, timeout_s: float = 0.0) -> bool:
        """A step of every node. Raises what the server raises, and `InvalidState` once every
        client is left out."""
        did_something = self.host.step()
        # In this order, so that the server steps in any case.
        did_something = self.server.step() or did_something
        if did_something:
            self._rests_since = None
            return True
        if self._rests_since is None:
            self._rests_since = time.monotonic()
        if timeout_s:
            time.sleep(timeout_s)
        return False


class SourceThread:
    """Stores messages as readings in a thread of its own, so that a broker that is away or slow
    keeps no node waiting."""

    def __init__(self, stream: MessageStream, until_idle_s: float | None) -> None:
        """`until_idle_s`: end when no message has come for so long; None: never."""
        self._stream = stream
        self._until_idle_s = until_idle_s
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="source")

    @property
    def ended(self) -> bool:
        """Whether no more messages are read."""
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raises what has ended the source."""
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def running(self) -> Iterator[None]:
        """Read messages while the context is open."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def _run(self) -> None:
        try:
            run(self._stream.build, self._stop, self._until_idle_s)
        except ShoalError as error:
            self._failure = error
        except BaseException as error:
            # No end of the source in order: the process ends with it too.
            self._failure = error
            raise


class LiveRun:
    """A live federation, from its source to its snapshots."""

    def __init__(self, config: Config, stream: MessageStream, board: StatusBoard) -> None:
        """The board gets the status of the server."""
        # Labels stay in the folders of the clients.
        client = config.client.model_copy(update={"label": True})
        self.config = config.model_copy(update={"client": client})
        self.metrics = ServerMetrics()
        self.stream = stream
        self._updater = StatusUpdater(board)
        self._host: Host | None = None
        self.totals: Mapping[str, int] = dict.fromkeys(TOTALS, 0)
        """sums of `TOTALS` over the clients, since each was first started"""
        self.clients = 0
        """number of clients that were served"""
        self.rejected: list[Rejected] = []
        """readings that the clients have rejected since each was first started"""

    def until(
        self, stop: threading.Event, until_idle_s: float | None, show: Callable[[int], None]
    ) -> None:
        """Run until `stop` is set, or until no message came for `until_idle_s` seconds and all are
        in the models.

        `show` gets the number of readings stored, before every step. Raises `ShoalError`.
        """
        source = SourceThread(self.stream, until_idle_s)
        lease = LeaseHolder(self.config)
        renewal = LeaseRenewal(lease, lambda: open_federation_log(self.config, as_server=True))

        @contextmanager
        def build() -> Iterator[LiveFederation]:
            opened = open_server(self.config, metrics=self.metrics, lease=lease, renewal=renewal)
            with ExitStack() as stack:
                # The server first: clients compare their contract with the one that it publishes.
                server = stack.enter_context(resumed(opened))
                stack.enter_context(self._updater.until_closed(server))
                host = stack.enter_context(closing(Host(self.config, warns_of_none=False)))
                self._host = host
                yield LiveFederation(server, host)
                self.rejected = host.rejected()

        def on_step(federation: LiveFederation) -> None:
            renewal.check()
            source.check()
            self._updater.update(federation.server)
            self._count(federation.host)
            show(self.stream.position())
            rest_s = max(self.config.client.publish_s, LOOK_EVERY_S) + REST_S
            if source.ended and federation.has_rested(rest_s):
                stop.set()

        with source.running():
            run(build, stop, poll_s=0.1, on_step=on_step)
        source.check()
        if self._host is None:
            return
        self._count(self._host)
        failures = self._host.failures()
        if failures:
            raise left_out(failures, self.clients, self.config.server.client_names)

    def _count(self, host: Host) -> None:
        self.totals = host.totals()
        self.clients = len(host.clients)
