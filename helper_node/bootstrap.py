"""Opens what a helper runs on: its folder and the federation's log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

from shoal.config.settings import Config
from shoal.errors import SettingsError
from shoal.helper_node.metrics import HelperMetrics
from shoal.helper_node.node import HelperNode, helper_name
from shoal.protocol.topics import ensure_topics
from shoal.runtime.checkpoint import (
    Checkpoint,
)
from shoal.runtime.logs import open_federation_log

CHECKPOINT: Final = "helper.db"


@contextmanager
def open_helper(
    config: Config,
    secret: bytes,
    folder: Path,
    metrics: HelperMetrics | None = None,
    rounds: dict[str, int] | None = None,
) -> Iterator[HelperNode]:
    """Open a helper: its folder and the log. `resumed` resumes it and closes all.

    Its newest rounds are copied to `rounds` then. Raises `SettingsError` for a key that the
    contract does not have, and as the checkpoint and the log do.
    """
    name = helper_name(config.resolved, secret)
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(
                f"folder {folder} cannot be made: {error.strerror}; name another one"
            ) from None
        owner = f"helper {name} of {config.contract.federation}"
        checkpoint = stack.enter_context(Checkpoint(folder / CHECKPOINT, owner))
        log = stack.enter_context(closing(open_federation_log(config)))
        ensure_topics(log, config.contract, config.log)
        node = HelperNode(config.resolved, secret, log, checkpoint, metrics)
        try:
            yield node
        finally:
            if rounds is not None:
                rounds.update(node.rounds)
