"""Serves the live page from a process that may have been installed without it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shoal.config.sections import ServerSettings
from shoal.errors import MissingExtra
from shoal.server_node.report.status import StatusBoard
from shoal.telemetry.events import log_event

if TYPE_CHECKING:
    from shoal.server_node.outputs.web import WebServer


def find_page_server() -> Callable[..., WebServer]:
    """`configured_server`, which makes the server of the page. Raises `MissingExtra`."""
    try:
        from shoal.server_node.outputs.web import (  # noqa: PLC0415 - the page is an extra
            configured_server,
        )
    except ModuleNotFoundError:
        raise MissingExtra("The live page", "server") from None
    return configured_server


@contextmanager
def page_served(
    web: WebServer, settings: ServerSettings, *, or_any_port: bool = False
) -> Iterator[None]:
    """Serves the page and the metrics from a thread of its own while the context is open, and logs
    the address.

    `or_any_port`, and what it raises: as `WebServer.start`.
    """
    web.start(or_any_port=or_any_port)
    log_event("page_served", address=web.address, needs_token=settings.token_file is not None)
    if web.is_open:
        log_event("page_open", logging.WARNING, host=settings.host)
    try:
        yield
    finally:
        web.stop()


def totals(board: StatusBoard) -> dict[str, dict[str, int]]:
    """name -> sizes of the newest snapshot, of each model that has one."""
    sizes: dict[str, dict[str, int]] = {}
    for name, model in board.status.models.items():
        snapshot = model.snapshot
        if snapshot is not None:
            sizes[name] = {
                "version": snapshot.version,
                "clusters": snapshot.clusters,
                "nodes": snapshot.nodes,
            }
    return sizes
