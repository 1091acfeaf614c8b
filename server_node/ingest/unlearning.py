"""Unlearning a client: the models forget it, and the log is read from its start once more without it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from server_node.ingest.outcome import IngestOutcome, Report
from server_node.ingest.requests import ServerParts
from shoal.runtime.checkpoint import pairs_of
from shoal.transports.base import Positions


class Unlearned(NamedTuple):
    """Continuation of a step after its requests to unlearn clients."""

    positions: Positions
    """positions to read on from: those that the step came to, or the start of the log"""
    hidden: bool
    """whether the log is read once more and is not read as far as before yet, so that no snapshot may be published"""
    reports: Sequence[Report]


class Unlearning:
    """Rewinds the server to the start of the log when a client is to be unlearned, and tells when it is done.

    Models in rounds keep what they know of the others; to them every update that is read again is a repeated one. No
    snapshot is published until the log has been read as far as before, so that readers never see half a model.
    """

    def __init__(self, server: ServerParts) -> None:
        self._server = server
        self._until: Positions = {}
        """partition -> how far the log had been read; empty while nothing is read again"""

    def after(self, ingested: Sequence[IngestOutcome], positions: Positions, first: Positions) -> Unlearned:
        """Continue a step that came to `positions` of a log that begins at `first`."""
        requests = [(one.model, one.request.unlearn) for one in ingested if one.request and one.request.unlearn]
        reports: list[Report] = []
        if requests:
            positions = self._unlearn(requests, positions, first, reports)
        if self._until and all(positions.get(partition, 0) >= end for partition, end in self._until.items()):
            self._until = {}
            reports.append(Report("unlearning_done"))
        return Unlearned(positions, bool(self._until), reports)

    def _unlearn(
        self, requests: Sequence[tuple[str, str]], positions: Positions, first: Positions, reports: list[Report]
    ) -> Positions:
        """Have the models forget the clients; where to read on."""
        whole_log = any(self._server.models[model].needs_whole_log for model, _ in requests)
        if whole_log and any(first.values()):
            for model, client in requests:
                reports.append(Report("unlearning_refused", logging.WARNING, {"model": model, "client": client}))
            return positions
        for model, client in requests:
            reports.append(Report("unlearning_started", logging.INFO, {"model": model, "client": client}))
            self._server.models[model].unlearn(client, positions)
        if not whole_log:
            return positions
        self._server.reassembly.clear()
        self._server.quarantine.begin_again()
        self._server.taken.begin_again()
        self._until = {partition: max(at, self._until.get(partition, 0)) for partition, at in positions.items()}
        return first

    def state(self) -> list[list[int]]:
        """Plain values for `restore`."""
        return pairs_of(self._until)

    def restore(self, state: Any) -> None:
        """Become the saved one."""
        self._until = dict(state)
