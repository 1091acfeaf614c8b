"""Opens a server: its checkpoint, the log, its lease, and the status board that its page reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from shoal.config.changes import ContractChange, changed_text
from shoal.config.resolved import ResolvedContract
from shoal.config.settings import Config
from shoal.errors import LogUnavailable, SettingsError, ShoalError
from shoal.protocol.published_contract import CONTRACT_KEY, published_contracts, with_earlier
from shoal.protocol.signatures import read_keys
from shoal.protocol.topics import ensure_topics
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.logs import open_federation_log
from shoal.runtime.service import resumed
from shoal.server_node.history.store import HISTORY_FILE, HistoryStore
from shoal.server_node.lease import LeaseHolder, LeaseRenewal
from shoal.server_node.node import ServerNode
from shoal.server_node.regions.hierarchy import UpstreamState
from shoal.server_node.report.status import ModelStatus, ServerStatus, StatusBoard
from shoal.telemetry.metrics import ServerMetrics
from shoal.transports.base import Log, latest

if TYPE_CHECKING:
    from shoal.helper_node.node import HelperNode

STATUS_PER_S = 5.0
"""how often the status is renewed: it is put together from all models, which takes longer than a
short step, and a person sees no more often"""
HELPERS_MIN = 2
"""helpers of a federation whose server is one: it would know every mask, and only with another one
must two parties work together"""


@contextmanager
def open_server(
    config: Config,
    rebuild: bool = False,
    metrics: ServerMetrics | None = None,
    clock: Callable[[], float] = time.time,
    lease: LeaseHolder | None = None,
    renewal: LeaseRenewal | None = None,
    *,
    upstream: UpstreamState | None = None,
    accept_changes: bool = False,
) -> Iterator[ServerNode]:
    """Open a server: its folder, the log, and the contract with those before it.

    `resumed` resumes it and closes all.

    `lease`: acquire the lease of the federation first, so that no other server serves it, and
    release it at the end; `renewal`: renew it meanwhile; `upstream`: the upstream federation, if
    there is one; `accept_changes`: go on under another contract than the federation's so far, where
    it can follow that one.
    Raises `SettingsError` for another one without that, or that cannot follow; `LeaseHeld`,
    `LeaseUncertain`, and as `Checkpoint` and `open_log` do.
    """
    # What is entered last is left first: the lease is renewed until the history is closed, and is
    # released while the log is still open.
    with ExitStack() as stack:
        path = config.server.folder / "checkpoint.db"
        checkpoint = stack.enter_context(
            Checkpoint(path, f"server of {config.contract.federation}")
        )
        log = stack.enter_context(closing(open_federation_log(config, as_server=True)))
        # The lease is in a topic of the log, so it ensures the topics itself.
        if lease is None:
            ensure_topics(log, config.contract, config.log)
        else:
            stack.enter_context(lease.held(log, checkpoint.identity))
        if upstream is not None:
            ensure_topics(log, config.contract, config.log, upstream=True)
        if renewal is not None:
            stack.enter_context(renewal.running())
        contract = _checked_contract(config, log, checkpoint, upstream, accept_changes)
        history = HistoryStore(contract, config.server.folder / HISTORY_FILE)
        stack.enter_context(closing(history))
        yield ServerNode(
            contract,
            config.server,
            log,
            checkpoint,
            rebuild,
            metrics,
            clock,
            config.log.update_bytes_max,
            history=history,
            upstream=upstream,
            server_keys=config.log.server_keys,
        )


def _checked_contract(
    config: Config, log: Log, checkpoint: Checkpoint, upstream: UpstreamState | None, accept: bool
) -> ResolvedContract:
    """The contract, with those that the federation had before.

    Raises `SettingsError` for one that cannot follow them, or that no operator has accepted; and
    as the log does.
    """
    agreed = config.contract
    record = latest(log, agreed.snapshots_topic).get(CONTRACT_KEY)
    chain = published_contracts(record, agreed.federation)
    if chain and chain[-1].digest != agreed.digest:
        change = ContractChange(chain[-1], agreed)
        refused = change.refused(chain[:-1])
        if upstream is not None:
            refused.append(
                "[upstream]: the contract of a region is never changed; start a region of another "
                "name"
            )
        # A server that was killed once it had accepted the contract has not published it yet.
        state = checkpoint.load()
        was_accepted = state is not None and state.get("contract") == agreed.digest
        if refused or not (accept or was_accepted):
            raise SettingsError(changed_text(change, refused))
    return with_earlier(config.resolved, record)


class OwnHelper:
    """The helper that runs within the server, if `[server] helper_key_file` names its key."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._node: HelperNode | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Open it, and close it at the end.

        Raises `SettingsError` where it would be the only one: then the server alone could take
        every mask away.
        """
        file = self._config.server.helper_key_file
        if file is None:
            yield
            return
        # It needs an extra, in this mode only.
        from shoal.helper_node.bootstrap import open_helper  # noqa: PLC0415 - an extra

        if len(self._config.contract.privacy.helpers) < HELPERS_MIN:
            raise SettingsError(
                "[server] helper_key_file: the server must not be the only helper, because it "
                "could take the mask of every client away; add a helper that another party runs "
                "to [[privacy.helpers]]"
            )
        key = read_keys(file)[0]
        folder = self._config.server.folder / "helper"
        with resumed(open_helper(self._config, key, folder)) as self._node:
            yield

    def step(self) -> bool:
        """Answer what is asked; whether there was anything. Raises as `HelperNode.step`."""
        return self._node is not None and self._node.step()


class HasStatus(Protocol):
    """A node that people see the status of."""

    def status(self) -> ServerStatus:
        """Its status now. Raises as its log does."""
        ...


AnyNode = TypeVar("AnyNode", bound=HasStatus)


class StatusUpdater:
    """Puts the status of a node on a board a few times per second.

    `clock` is monotonic, seconds.
    """

    def __init__(
        self,
        board: StatusBoard,
        clock: Callable[[], float] = time.monotonic,
        is_failing: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_failing()`: whether the log cannot be written, beside what the node notices."""
        self._board = board
        self._is_failing = is_failing
        self._clock = clock
        self._due = clock()

    def update(self, node: HasStatus) -> None:
        """Renew the status if it is time to; called before each step."""
        now = self._clock()
        if now >= self._due:
            status = node.status()
            # A server without work writes nothing but its lease: a full disk shows there only.
            if self._is_failing():
                status = replace(status, ready=False, unavailable=True)
            self._board.post(status)
            self._due = now + 1 / STATUS_PER_S

    @contextmanager
    def showing_failures(self) -> Iterator[None]:
        """Show a log or a disk that fails inside, until the next status of a node."""
        try:
            yield
        except LogUnavailable:
            self._board.post(replace(self._board.status, ready=False, unavailable=True))
            raise

    @contextmanager
    def until_closed(self, node: AnyNode) -> Iterator[AnyNode]:
        """Show the newest status as one that is not ready at the end: the node no longer reads."""
        try:
            yield node
            # Where the log is away, the status before stays.
            with suppress(ShoalError):
                self._board.post(node.status())
        finally:
            self._board.post(replace(self._board.status, ready=False))


def initial_status(config: Config, now: float, who: str = "server") -> ServerStatus:
    """The status before the first step of `who`; `now` in seconds since 1970."""
    contract = config.resolved
    models: dict[str, ModelStatus] = {}
    for name, model in contract.models.items():
        models[name] = ModelStatus(
            name, model.declared.algorithm, waiting_for=f"The {who} is opening the log."
        )
    return ServerStatus(contract, now, now, models=models)
