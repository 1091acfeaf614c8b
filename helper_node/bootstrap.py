"""Opens what a helper runs on: its folder and the federation's log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from shoal.config.settings import Config
from shoal.helper_node.metrics import HelperMetrics
from shoal.helper_node.node import HelperNode, helper_name
from shoal.privacy.masks import helper_public
from shoal.protocol.topics import ensure_topics
from shoal.runtime.helper_state import open_helper_state
from shoal.runtime.logs import open_federation_log


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
    contract does not have, `InvalidState` for a folder without the state that was made with the
    key, and as the checkpoint and the log do.
    """
    # First: a key that belongs to no helper of the contract needs other words.
    helper_name(config.resolved, secret)
    with ExitStack() as stack:
        checkpoint = stack.enter_context(open_helper_state(folder, helper_public(secret)))
        log = stack.enter_context(closing(open_federation_log(config)))
        ensure_topics(log, config.contract, config.log)
        node = HelperNode(config.resolved, secret, log, checkpoint, metrics)
        try:
            yield node
        finally:
            if rounds is not None:
                rounds.update(node.rounds)
