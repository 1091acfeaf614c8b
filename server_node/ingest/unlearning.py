"""Unlearning a client: the models forget it, and the log is read from its start once more without it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from server_node.ingest.outcome import IngestOutcome
from server_node.ingest.requests import ServerParts
from shoal.config.contract import Contract
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, Positions, beginning


class Unlearning:
    """Rewinds the server to the start of the log when a client is to be unlearned, and tells when it is done.

    Models in rounds keep what they know of the others; to them every update that is read again is a repeated one. No
    snapshot is published until the log has been read as far as before, so that readers never see half a model.
    """

    def __init__(self, contract: Contract, log: Log, server: ServerParts) -> None:
        self._topic, self._log, self._server = contract.updates_topic, log, server
        self._until: Positions = {}
        """partition -> how far the log had been read; empty while nothing is read again"""

    def after(self, ingested: Sequence[IngestOutcome], positions: Positions) -> Positions:
        """Where to read on after a step that came to `positions`: there, or at the start of the log.

        Raises as the log does.
        """
        requests = [(one.model, one.request.unlearn) for one in ingested if one.request and one.request.unlearn]
        if not requests:
            return positions
        first = beginning(self._log, self._topic)
        if any(self._server.models[model].needs_whole_log for model, _ in requests) and any(first.values()):
            for model, client in requests:
                log_event("unlearning_refused", logging.WARNING, model=model, client=client)
            return positions
        for model, client in requests:
            log_event("unlearning_started", model=model, client=client)
            self._server.models[model].unlearn(client, positions)
        if not any(self._server.models[model].needs_whole_log for model, _ in requests):
            return positions
        self._server.reassembly.clear()
        self._server.quarantine.begin_again()
        self._until = {partition: max(at, self._until.get(partition, 0)) for partition, at in positions.items()}
        return first

    def reads_again(self, positions: Positions) -> bool:
        """Whether the log is read once more and `positions` are not as far as before yet."""
        if self._until and all(positions.get(partition, 0) >= end for partition, end in self._until.items()):
            log_event("unlearning_done")
            self._until = {}
        return bool(self._until)

    def state(self) -> list[list[int]]:
        """Plain values for `restore`."""
        return [[partition, offset] for partition, offset in sorted(self._until.items())]

    def restore(self, state: Any) -> None:
        """Become the saved one."""
        self._until = dict(state)
