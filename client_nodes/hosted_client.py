"""One client of a host: a `ClientNode` that is opened, stepped, and opened again after outages."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import ExitStack

from shoal.client_nodes.bootstrap import open_client
from shoal.client_nodes.monitoring import TOTALS
from shoal.client_nodes.node import ClientNode
from shoal.config.settings import Config
from shoal.errors import ContractMissing, LogError, ShoalError
from shoal.protocol.reading_faults import Rejected
from shoal.runtime.service import RETRY_FIRST_S, RETRY_MAX_S, resumed
from shoal.telemetry.events import events_of_client, log_event
from shoal.transports.base import Log


class HostedClient:
    """One client of a host: opened at its first step, and opened again after an outage.

    An error of one client is no error of the host: one that can pass is tried again later, one
    that cannot leaves the client out until the host is started again.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        clock: Callable[[], float],
        contract_by: float | None,
        of_site: Callable[[], Log] | None = None,
    ) -> None:
        """`contract_by`: see `Host`; `of_site`: opens the log of its readings, where the
        host has those of all its clients in one file."""
        self.name = name
        self.failure: ShoalError | None = None
        """why this client is left out; None: it is not"""
        self.totals = dict.fromkeys(TOTALS, 0)
        """its totals since it was first started, as of its newest step"""
        self.totals_before: dict[str, int] | None = None
        """its totals when this host opened it first; None before that"""
        self._config = config
        self._clock = clock
        self._contract_by = contract_by
        self._of_site = of_site
        self._opened = ExitStack()
        self._node: ClientNode | None = None
        self._retry_s = RETRY_FIRST_S
        self._retry_at = -math.inf

    @property
    def is_open(self) -> bool:
        """Whether it can step now."""
        return self._node is not None

    @property
    def waits(self) -> bool:
        """Whether it waits for what an outage has taken, or for the contract of the server."""
        return self.failure is None and self._retry_at > -math.inf

    def step(self) -> bool:
        """One step of the client, which reads a batch at most; True if it did something.

        Opens it first where needed. Raises nothing that `ClientNode` raises on purpose.
        """
        if self.failure is not None or time.monotonic() < self._retry_at:
            return False
        with events_of_client(self.name):
            try:
                did_something = self._stepped()
            except ShoalError as error:
                self._fail(error)
                return False
        if did_something:
            self._retry_s = RETRY_FIRST_S
        return did_something

    def lag_records(self) -> int:
        """Records in its readings log that it has not read yet; 0 while it is not open."""
        if self._node is None:
            return 0
        with events_of_client(self.name):
            try:
                return self._node.lag_records()
            except ShoalError as error:
                self._fail(error)
                return 0

    def rejected(self) -> list[Rejected]:
        """Readings that it has rejected since it was first started; none while it is not open."""
        return [] if self._node is None else self._node.rejected

    def close(self) -> None:
        """Close its logs and its checkpoint. The next one on the same files goes on from there."""
        self._node = None
        opened = self._opened
        self._opened = ExitStack()
        opened.close()

    def _stepped(self) -> bool:
        opens = self._node is None
        if self._node is None:
            needs_contract = self._contract_by is not None
            self._node = self._opened.enter_context(
                resumed(
                    open_client(
                        self._config,
                        self.name,
                        clock=self._clock,
                        needs_contract=needs_contract,
                        of_site=None if self._of_site is None else self._of_site(),
                    )
                )
            )
            self._retry_at = -math.inf
            if self.totals_before is None:
                self.totals_before = self._node.totals
        did_something = self._node.step() or opens
        self.totals = self._node.totals
        return did_something

    def _fail(self, error: ShoalError) -> None:
        self.close()
        contract_by = math.inf if self._contract_by is None else self._contract_by
        if isinstance(error, ContractMissing) and time.monotonic() >= contract_by:
            error = LogError(str(error))
        if not error.retriable:
            self.failure = error
            log_event("client_left_out", logging.ERROR, error=str(error))
            return
        log_event("retrying", logging.WARNING, error=str(error), retry_s=self._retry_s)
        self._retry_at = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
