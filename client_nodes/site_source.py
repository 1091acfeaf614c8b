"""The readings of a site for its host: the file that has them, and the log that they come from.

An outage of that log costs nothing but time: clients go on with what was taken in, and the log is
opened again later.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack

from shoal.client_nodes.partition_state import PartitionState
from shoal.client_nodes.site_intake import Outcomes, SiteIntake, open_site_intake
from shoal.config.settings import Config
from shoal.errors import ShoalError
from shoal.runtime.logs import site_file
from shoal.runtime.service import RETRY_FIRST_S, RETRY_MAX_S
from shoal.runtime.site_readings import SiteReadings
from shoal.telemetry.events import log_event
from shoal.transports.base import Log


class SiteSource:
    """Takes in readings step by step, opened at the first one and after outages."""

    def __init__(
        self,
        config: Config,
        named: Collection[str],
        clients_max: int,
        clock: Callable[[], float] = time.time,
        moves: PartitionState | None = None,
    ) -> None:
        """`named`, `clients_max`, `moves`: see `SiteIntake`."""
        self.counts: Counter[str] = Counter()
        """records by what became of them: see `SiteIntake`"""
        self.refused: set[str] = set()
        """clients beyond `clients_max`"""
        self._config = config
        self._named = named
        self._clients_max = clients_max
        self._clock = clock
        self._moves = moves
        self._site: SiteReadings | None = None
        self._intake: SiteIntake | None = None
        self._opened = ExitStack()
        """what the intake has open; the file is closed by itself"""
        self._retry_s = RETRY_FIRST_S
        self._retry_at = -math.inf

    @property
    def names(self) -> list[str]:
        """The clients that have readings, in the order in which they have come."""
        return [] if self._site is None else self._site.names

    @property
    def clients(self) -> int:
        """The number of clients that have readings."""
        return 0 if self._site is None else len(self._site)

    @property
    def waits(self) -> bool:
        """Whether it waits for the end of an outage."""
        return self._retry_at > -math.inf

    @property
    def is_behind(self) -> bool:
        """Whether readings that its clients had before they came here are still to be read."""
        return self._moves is not None and self._moves.is_behind

    @property
    def site(self) -> SiteReadings:
        """The open file with the readings."""
        return self._opened_site()

    def step(self) -> bool:
        """Take in what there is, for a short time; False where there was nothing.

        Raises what no later try can mend.
        """
        if time.monotonic() < self._retry_at:
            return False
        try:
            took_in = self._opened_intake().step()
        except ShoalError as error:
            self._close_intake()
            if not error.retriable:
                raise
            log_event("retrying", logging.WARNING, error=str(error), retry_s=self._retry_s)
            self._retry_at = time.monotonic() + self._retry_s
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
            return False
        self._retry_at = -math.inf
        if took_in:
            self._retry_s = RETRY_FIRST_S
        return took_in

    @property
    def identity(self) -> str:
        """The identity of the file with the readings."""
        return self._opened_site().identity

    def log_of(self, client: str) -> Log:
        """The readings log of a client that has readings."""
        return self._opened_site().log_of(client)

    def lag_records(self) -> int:
        """Records of the site's log that are not read yet; 0 while it is not open."""
        if self._intake is None:
            return 0
        try:
            return self._intake.lag_records()
        except ShoalError:
            # The next step meets it as well, and says so.
            return 0

    def close(self) -> None:
        """Close the log and the file; a step opens them again."""
        with ExitStack() as stack:
            if self._site is not None:
                stack.callback(self._site.close)
            self._site = None
            stack.callback(self._close_intake)

    def _opened_site(self) -> SiteReadings:
        if self._site is None and self._moves is not None:
            self._site = self._moves.open_site()
        if self._site is None:
            file = site_file(self._config)
            self._site = SiteReadings(file, self._config.client.readings_bytes_max)
        return self._site

    def _opened_intake(self) -> SiteIntake:
        if self._intake is None:
            self._intake = self._opened.enter_context(
                open_site_intake(
                    self._config,
                    self._opened_site(),
                    self._named,
                    self._clients_max,
                    self._clock,
                    outcomes=Outcomes(self.counts, self.refused),
                    moves=self._moves,
                )
            )
        return self._intake

    def _close_intake(self) -> None:
        self._intake = None
        opened = self._opened
        # Before it is closed: if that raises, nothing is closed twice.
        self._opened = ExitStack()
        opened.close()
