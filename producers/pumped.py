"""Source types whose rows are numbered: their common options, and the loop that pumps a `Source` into readings logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import click

from producers.bookmark import Bookmark, open_bookmark
from producers.pacing import LONGEST_WAIT_S, Pacing, rate_of, speed_of
from producers.progress import Display, display_on
from producers.publisher import client_folder
from producers.pump import Pump
from producers.report import ProducerTotals
from producers.source import Source
from producers.source_type import ProducerTask, SourceType
from shoal.config.contract import Contract
from shoal.errors import SettingsError
from shoal.protocol.topics import readings_settings
from shoal.runtime.readings_log import open_readings
from shoal.runtime.service import stopped_by_signals
from shoal.telemetry.events import log_event
from shoal.transports.base import Log

IDLE_S = 0.25
"""longest wait before a stop is noticed and progress is shown"""
BATCH_ROWS = (500, 8000)
"""fewest and most rows of all clients that are stored together: every store syncs the disk for each client"""
BATCH_NUMBERS = 2**20
"""values of the features in a batch, so that wide rows take no more memory"""
CLIENTS = click.Option(
    ["--clients"], default=1, show_default=True, help="Number of clients, named client-1, client-2, ..."
)
SEED = click.Option(
    ["--seed"], default=0, show_default=True, type=click.IntRange(min=0), help="Seed of everything random."
)
PUMP_PARAMETERS: tuple[click.Parameter, ...] = (
    click.Option(
        ["--speed"], help="60x: sixty times as fast as it happened; max. [default: max for files, 1x for --synthetic]"
    ),
    click.Option(["--rate"], help="Readings per second over all clients, instead of a speed: 100/s."),
    click.Option(
        ["--longest-wait"],
        default=LONGEST_WAIT_S,
        show_default=True,
        help="Longest wait in seconds for the next reading; longer gaps in time are shortened.",
    ),
    click.Option(["--live"], is_flag=True, help="Give readings the time at which they are fed, not the source's."),
    click.Option(
        ["--limit"], type=click.IntRange(min=0), help="End after so many readings, counted from the source's beginning."
    ),
    click.Option(["--again"], is_flag=True, help="Publish all once more, though an earlier run has published it."),
)


class PumpedSource(SourceType):
    """A source type of numbered rows. Its `parameters` should include `PUMP_PARAMETERS`."""

    default_speed = "max"
    empty = "the source has no readings"
    """what a run says that found nothing to publish"""

    def open(self, contract: Contract, options: Mapping[str, Any]) -> Source:
        """The source that the options describe, at its first row. Raises `SettingsError` and `InvalidData`."""
        raise NotImplementedError

    def run(self, task: ProducerTask) -> ProducerTotals:
        """See `SourceType.run`. A run that was stopped or killed continues where it was."""
        options, contract = task.options, task.config.contract
        source = self.open(contract, options)
        pacing = self._pacing(options)
        bookmark = open_bookmark(task.folder, source.identity)
        if options["again"]:
            bookmark.start_again()
        pump = _pump(source, task, pacing, bookmark)
        log_event("started", federation=contract.federation, contract=contract.digest)
        _run(pump, display_on(sys.stderr, time.monotonic, task.as_json))
        empty = "" if pump.position or not pump.finished or options["limit"] == 0 else self.empty
        return ProducerTotals(
            pump.finished, pump.published, pump.already_there, pump.position, source.faults, source.identity, empty
        )

    def _pacing(self, options: Mapping[str, Any]) -> Pacing:
        wall = time.time if options["live"] else None
        if options["rate"] is not None:
            if options["speed"] is not None:
                raise SettingsError("--speed means nothing with --rate; leave it out")
            return Pacing(rate=rate_of(options["rate"]), wall=wall)
        speed = speed_of(options["speed"] or self.default_speed)
        return Pacing(speed=speed, longest_wait_s=options["longest_wait"], wall=wall)


def _pump(source: Source, task: ProducerTask, pacing: Pacing, bookmark: Bookmark) -> Pump:
    def open_log(client: str) -> Log:
        client_folder(task.folder, client)
        return open_readings(task.config, client, task.folder)

    try:
        return Pump(
            source,
            open_log,
            clock=time.monotonic,
            pacing=pacing,
            bookmark=bookmark,
            limit=task.options["limit"],
            batch_rows_max=min(max(BATCH_ROWS[0], BATCH_NUMBERS // task.config.contract.width), BATCH_ROWS[1]),
            topic_settings=readings_settings(task.config.client),
        )
    except SettingsError:
        bookmark.close()
        raise


def _run(pump: Pump, display: Display) -> None:
    """The main loop, until the source ends or a signal asks for an end."""
    with stopped_by_signals() as stop, closing(pump), closing(display):
        while not (pump.finished or stop.is_set()):
            if not pump.step():
                stop.wait(min(pump.wait_s, IDLE_S))
            display.show(pump.position, pump.total)
