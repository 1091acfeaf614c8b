"""The server's own folder and what it needs to run: its checkpoint, the log, the board that people look at."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

from server_node.lease import LeaseHolder
from server_node.node import ServerNode
from server_node.status import ModelStatus, ServerStatus, StatusBoard
from shoal.config.privacy_terms import privacy_terms_of
from shoal.config.settings import Config
from shoal.privacy import expected_statement
from shoal.protocol.topics import ensure_topics
from shoal.runtime.checkpoint import Checkpoint
from shoal.telemetry.metrics import ServerMetrics
from shoal.transports import open_log

STATUS_PER_S = 5.0


@contextmanager
def open_server(
    config: Config,
    rebuild: bool = False,
    metrics: ServerMetrics | None = None,
    clock: Callable[[], float] = time.time,
    claiming: LeaseHolder | None = None,
) -> Iterator[ServerNode]:
    """The server as its folder remembers it, let go of at the end. Raises `InvalidState`, `LogUnavailable`, ...

    `claiming`: hold the federation's claim, so that no other server answers beside this one.
    """
    with ExitStack() as stack:
        path = config.server.folder / "checkpoint.db"
        checkpoint = stack.enter_context(Checkpoint(path, f"server of {config.contract.federation}"))
        log = stack.enter_context(closing(open_log(config.log)))
        if claiming is None:
            ensure_topics(log, config.contract, config.log)
        else:  # which sees to the topics first
            stack.enter_context(claiming.held(log, checkpoint.identity))
        node = ServerNode(config.contract, config.server, log, checkpoint, rebuild, metrics, clock)
        node.resume()
        yield node


class Watched:
    """A server that keeps its claim, and whose picture hangs on a board, renewed a few times per second."""

    def __init__(
        self,
        node: ServerNode,
        board: StatusBoard,
        clock: Callable[[], float] = time.monotonic,
        claiming: LeaseHolder | None = None,
    ) -> None:
        self._node = node
        self._claiming = claiming
        self._board = board
        self._clock = clock
        self._renewed_at = clock()
        board.set(node.status())

    def step(self, timeout_s: float = 0.0) -> bool:
        """See `ServerNode.step`; raises `LeaseHeld` besides."""
        if self._claiming is not None:
            self._claiming.keep()
        done = self._node.step(timeout_s)
        now = self._clock()
        if now >= self._renewed_at + 1 / STATUS_PER_S:
            self._board.set(self._node.status())
            self._renewed_at = now
        return done

    def leave(self) -> None:
        """The picture stays, and says that the server is not reading just now."""
        self._board.set(replace(self._board.status, ready=False))


def initial_status(config: Config, now: float) -> ServerStatus:
    """Before the first step."""
    models = {
        model.name: ModelStatus(model.name, model.algorithm, waiting_for="The server is opening the log.")
        for model in config.contract.models
    }
    return ServerStatus(
        config.contract, now, now, models=models, privacy=expected_statement(privacy_terms_of(config.contract))
    )
