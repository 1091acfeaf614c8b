"""A client's own folder: its readings log, its noise key, its checkpoint. What is in it never leaves it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from client_nodes.node import ClientNode
from client_nodes.resources import ClientResources
from shoal.config.contract import client_name
from shoal.config.settings import Config
from shoal.errors import InvalidState
from shoal.privacy import load_or_create_key
from shoal.protocol.signatures import client_file, read_keys
from shoal.protocol.topics import ensure_topics
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.readings_log import check_apart, open_premises
from shoal.transports import open_log

if TYPE_CHECKING:
    from shoal.telemetry.metrics import ClientMetrics


@contextmanager
def open_client(
    config: Config,
    client: str,
    metrics: ClientMetrics | None = None,
    clock: Callable[[], float] = time.time,
) -> Iterator[ClientNode]:
    """The client, resumed from the checkpoint in its folder; closed at the end.

    Raises `InvalidState` when only one of checkpoint and noise key is there, and as `ClientNode.resume` does.
    """
    folder = config.client.folder / client_name(client)
    template = config.client.signing_key_file
    signing_key = None if template is None else read_keys(client_file(template, client))[0]
    with ExitStack() as stack:
        checkpoint, key = _memory(stack, folder, f"client {client} of {config.contract.federation}")
        readings = stack.enter_context(closing(open_premises(config, client)))
        log = stack.enter_context(closing(open_log(config.log)))
        check_apart(readings, log)
        ensure_topics(log, config.contract, config.log)
        premises = ClientResources(readings, checkpoint, key, signing_key)
        record = config.log.update_bytes_max
        node = ClientNode(config.contract, client, config.client, premises, log, metrics, clock, record)
        node.resume()
        yield node


def _memory(stack: ExitStack, folder: Path, owner: str) -> tuple[Checkpoint, bytes]:
    """Checkpoint and key belong together. The checkpoint is made first, so a kill between them is told from a loss."""
    path, key = folder / "checkpoint.db", folder / "noise.key"
    if key.exists() and not path.exists():
        raise InvalidState(_lost(key, path))
    checkpoint = stack.enter_context(Checkpoint(path, owner))
    if not key.exists() and checkpoint.load() is not None:
        raise InvalidState(_lost(path, key))
    return checkpoint, load_or_create_key(key)


def _lost(here: Path, gone: Path) -> str:
    return (
        f"{here} is here but {gone.name} is gone: restore it, or begin under a new client name. "
        "Going on without it would noise and count the same readings a second time"
    )
