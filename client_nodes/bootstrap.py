"""Opens what a client runs on: the readings log, noise key and checkpoint in its folder, and the federation's log."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from client_nodes.node import ClientNode
from client_nodes.resources import ClientResources
from shoal.config.base import check_client_name
from shoal.config.contract import Contract
from shoal.config.privacy import privacy_mode
from shoal.config.settings import Config
from shoal.errors import InvalidState
from shoal.privacy import load_or_create_key
from shoal.privacy.ledger import LEDGER, Ledger
from shoal.protocol.signatures import client_file, read_keys
from shoal.protocol.topics import ensure_topics
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.readings_log import check_separate, open_client_log
from shoal.runtime.signed_snapshots import open_federation_log

if TYPE_CHECKING:
    from shoal.telemetry.metrics import ClientMetrics

NOISE_KEY: Final = "noise.key"
"""file of the noise key in the client's folder"""


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
    folder = config.client.folder / check_client_name(client)
    template = config.client.signing_key_file
    signing_key = None if template is None else read_keys(client_file(template, client))[0]
    with ExitStack() as stack:
        is_new = not (folder / NOISE_KEY).exists()
        checkpoint, noise_key = _open_checkpoint_and_key(stack, folder, checkpoint_owner(config, client))
        readings = stack.enter_context(closing(open_client_log(config, client)))
        log = stack.enter_context(closing(open_federation_log(config)))
        check_separate(readings, log)
        ensure_topics(log, config.contract, config.log, config.client.publish_labels)
        ledger = _open_ledger(stack, config.contract, folder, checkpoint_owner(config, client), noise_key)
        resources = ClientResources(readings, checkpoint, noise_key, signing_key, is_new, ledger)
        node = ClientNode(
            config.contract, client, config.client, resources, log, metrics, clock, config.log.update_bytes_max
        )
        node.resume()
        yield node


def checkpoint_owner(config: Config, client: str) -> str:
    """The owner that the checkpoint of a client names."""
    return f"client {client} of {config.contract.federation}"


def _open_checkpoint_and_key(stack: ExitStack, folder: Path, owner: str) -> tuple[Checkpoint, bytes]:
    """Both are needed or both are new.

    The checkpoint is created first, so an empty one without a key is left by a kill, and a used one without a key is
    a loss.
    """
    path, key = folder / "checkpoint.db", folder / NOISE_KEY
    if key.exists() and not path.exists():
        raise InvalidState(_incomplete(key, path))
    checkpoint = stack.enter_context(Checkpoint(path, owner))
    if not key.exists() and checkpoint.load() is not None:
        raise InvalidState(_incomplete(path, key))
    return checkpoint, load_or_create_key(key)


def _open_ledger(stack: ExitStack, contract: Contract, folder: Path, owner: str, key: bytes) -> Ledger | None:
    """The ledger, in a mode with a guarantee. Raises `InvalidState`."""
    if not privacy_mode(contract).formal:
        return None
    fingerprint = hashlib.sha256(b"ledger" + key).hexdigest()[:16]
    return stack.enter_context(Ledger(folder / LEDGER, owner, fingerprint))


def _incomplete(present: Path, missing: Path) -> str:
    return (
        f"{present} is present but {missing.name} is missing: restore it, or start under a new client name. "
        "Without it the same readings would be noised and learnt a second time"
    )
