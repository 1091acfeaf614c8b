"""The server's HTTP interface: the live page, snapshots, predictions, metrics and health."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from server_node.status import StatusBoard
from server_node.web.app import PublishName, create_app
from server_node.web.server import WebServer
from shoal.algorithms.registry import load_algorithm
from shoal.protocol.messages import Snapshot

__all__ = ["WebServer", "create_app", "page_server", "predict"]


def page_server(
    board: StatusBoard,
    registry: CollectorRegistry,
    host: str = "127.0.0.1",
    port: int = 0,
    publish_name: PublishName | None = None,
) -> WebServer:
    """A web server, not started yet: it serves the status on `board` and the metrics in `registry`.

    `publish_name` publishes the names that people give to clusters on the page; None: it takes none.
    """
    return WebServer(create_app(board, registry, predict, publish_name), host, port)


def predict(snapshot: Snapshot, rows: NDArray[np.float64]) -> NDArray[np.int64]:
    """rows (n, d) in unit coordinates -> (n,) clusters by the snapshot's own algorithm, -1 where there is none."""
    return load_algorithm(snapshot.algorithm).predict(snapshot.arrays, rows)
