"""Reads the next records of a topic, and skips a gap that retention has left if the settings allow it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from shoal.errors import OffsetOutOfRange
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, Positions, Record


def read_next(
    log: Log,
    topic: str,
    at: Positions,
    limit: int,
    timeout_s: float,
    accept_gap: bool,
    on_gap: Callable[[int], None] = lambda _: None,
) -> tuple[Sequence[Record], Positions]:
    """See `Log.read`. If records are gone, raise `OffsetOutOfRange`, or skip the gap, log it, and call `on_gap`.

    `on_gap` gets the number of records that are gone.
    """
    while True:
        try:
            return log.read(topic, at, limit, timeout_s)
        except OffsetOutOfRange as gone:
            if not accept_gap:
                raise
            lost = gone.first - gone.asked
            log_event("gap_accepted", logging.WARNING, topic=topic, partition=gone.partition, records_lost=lost)
            at = {**at, gone.partition: gone.first}
            on_gap(lost)
