"""Reading on from a position: over a gap that retention has left, if that was allowed, and never in silence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from shoal.errors import OffsetGone
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, Positions, Record


def read_next(
    log: Log,
    topic: str,
    at: Positions,
    limit: int,
    timeout_s: float,
    accept_gap: bool,
    on_gap: Callable[[], None] = lambda: None,
) -> tuple[Sequence[Record], Positions]:
    """See `Log.read`. Records that are gone end the reading with `OffsetGone`, or are stepped over and counted."""
    while True:
        try:
            return log.read(topic, at, limit, timeout_s)
        except OffsetGone as gone:
            if not accept_gap:
                raise
            lost = gone.first - gone.asked
            log_event("gap_accepted", logging.WARNING, topic=topic, partition=gone.partition, records_lost=lost)
            at = {**at, gone.partition: gone.first}
            on_gap()
