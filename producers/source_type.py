"""Source types: the options, settings and runs of one kind of source. `shoal producer` is made of
the installed ones.

A source type is an object that the entry-point group `shoal.sources` names. One whose readings are
numbered, so that they can be paced and resumed, derives from `PumpedSource`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, NamedTuple

import click

from shoal.cli.options import CLIENT_NAME
from shoal.config.contract import Contract
from shoal.config.extension_settings import ReadMessage, SourceSettings
from shoal.config.settings import Config
from shoal.errors import SettingsError
from shoal.producers.pacing import LONGEST_WAIT_S, Pacing, rate_of, speed_of
from shoal.producers.progress import Display, display_on
from shoal.producers.publisher import Bookmark, open_bookmark
from shoal.producers.pump import Pump
from shoal.producers.reading_watch import ReadingWatch
from shoal.producers.repeats import SourceFiles, refuse_repeats
from shoal.producers.source import Source
from shoal.protocol.reading_faults import CAUSES, Clipped, Rejected, clipping_text
from shoal.protocol.topics import readings_settings
from shoal.runtime.client_folders import client_folder
from shoal.runtime.logs import open_readings
from shoal.runtime.service import Steppable, run, stopped_by_signals
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, Record

FAULTS = {
    "ragged": "rows had more or fewer cells than the header; passed on without values",
    "header": "rows repeated the header; passed on without values",
    "unreadable": "rows could not be read; passed on without values",
    "unclosed": "rows had a quote that is never closed; passed on without values",
    "no_time": "rows had no readable time; passed on without one",
    "oversized": "messages were longer than payload_bytes_max",
    "not_text": "messages were no UTF-8 text",
    "not_json": "messages were no JSON object",
    "not_line_protocol": "lines were no line protocol of InfluxDB",
    "not_newer": "readings were not newer than the newest of their client; stored before, or late",
    "of_a_schema": "messages were in the form of a schema registry, which needs schema_registry in"
    " [kafka]",
    "unknown_schema": "messages were of a schema that the schema registry does not have",
    "not_of_schema": "messages were not as their schema says",
    "timeless": "messages had no readable time",
    "ahead": "messages had a time in the future",
    "unknown_topic": "messages were of a topic that was not subscribed to",
    "retained": "messages were retained by the broker, of unknown age",
    "missing": "values were missing in their message",
    "not_a_number": "values were no numbers",
    "undeclared": "values were none of those that the contract declares; taken for missing",
    "infinite": "values were infinite",
    "bad_quality": "values were of bad quality; taken for missing",
    "late": "messages came too late for their reading",
    "repeated": "messages came a second time",
    "nameless": "messages did not name their client",
    "crowded": "messages were of more clients than one producer feeds",
    "incomplete": "readings lacked a value and were dropped",
    "filled": "readings were filled up with last values",
    "with_gaps": "readings lacked a value and are learnt for the others",
}
"""kind of fault of a row, a message or a reading -> its description"""


class ProducerTotals(NamedTuple):
    """Totals of a producer's run."""

    finished: bool
    """whether the source ended and all of it is stored"""
    published: Mapping[str, int]
    """readings stored, by client"""
    already_there: int
    """readings that an earlier run had stored"""
    position: int
    """readings of the source that are stored, by this run and earlier ones"""
    faults: Mapping[str, int]
    source: str
    """identity of the source"""
    empty: str = ""
    """reason for which there was nothing to publish; empty where there was something"""
    rejected: Sequence[Rejected] = ()
    """readings that this run has stored and that clients will reject"""
    clipped: Sequence[Clipped] = ()
    """features of which a large share of the readings that this run has stored is beyond bounds"""

    @property
    def unusable(self) -> bool:
        """Whether this run has stored readings and clients will reject all of them."""
        return (
            0
            < sum(self.published.values())
            == sum(rejection.readings for rejection in self.rejected)
        )


def report(totals: ProducerTotals, seconds: float, as_json: bool) -> None:
    """Print the totals of a run that took `seconds`."""
    published = sum(totals.published.values())
    rate = published / seconds if seconds > 0 else 0.0
    if as_json:
        figures = {"seconds": round(seconds, 3), "per_second": round(rate, 1)}
        faults = dict(totals.faults)
        clients = dict(sorted(totals.published.items()))
        rejected = [kind._asdict() for kind in totals.rejected]
        shown = {
            "published": published,
            "clients": clients,
            "faults": faults,
            "rejected": rejected,
            "clipped": [kind._asdict() for kind in totals.clipped],
        }
        # What people read of a total replaces its raw form, such as a Counter.
        printed = totals._asdict() | shown | figures
        click.echo(json.dumps(printed))
        return
    end = "to the end of the source" if totals.finished else "stopped before the end"
    click.echo(
        f"{published:,} readings published to {len(totals.published)} clients, {rate:,.0f} per"
        f" second; {end}"
    )
    if totals.empty:
        click.echo(totals.empty)
    elif totals.finished and not published:
        click.echo(
            "nothing was new: an earlier run has published everything (--again publishes it once"
            " more)"
        )
    for fault, number in totals.faults.items():
        click.echo(f"{number:,} {FAULTS[fault]}")
    for line in watch_lines(totals.rejected, totals.clipped):
        click.echo(line)


def watch_lines(rejected: Sequence[Rejected], clipped: Sequence[Clipped]) -> list[str]:
    """Rejected and clipped readings, for people: names, numbers and places only."""
    lines = [f"Clients reject {kind.text()}: {CAUSES[kind.reason]}" for kind in rejected]
    if clipped:
        lines.append(f"Warning: {clipping_text(clipped)}")
    return lines


PATH = click.Path(path_type=Path)


class ProducerTask(NamedTuple):
    """The task of a run of `shoal producer`."""

    config: Config
    folder: Path
    """folder of the clients' folders"""
    options: Mapping[str, Any]
    """the command line, by parameter name"""
    as_json: bool
    """whether progress is logged as events"""


class SourceType:
    """One kind of source of readings."""

    name: str
    """name of its entry point, of its option, and of its section in the federation file"""
    parameters: Sequence[click.Parameter] = ()
    """parameters that it adds to the command line; one of several source types is one object"""
    settings: type[SourceSettings] | None = None
    """section of the source in the federation file, if it has one"""
    shows_events = False
    """whether people see its events; False when they see its progress"""

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"--{self.name}"

    def is_chosen(self, options: Mapping[str, Any]) -> bool:
        """Whether the command line asks for this source, by the option of its name."""
        return bool(options.get(self.name))

    def client_name(self, options: Mapping[str, Any]) -> str | None:
        """The one client it feeds; None when there may be several."""
        return None

    def gives_users(self, config: Config, options: Mapping[str, Any]) -> bool:
        """Whether its readings have user ids; else nothing is learnt where users are protected."""
        return False

    def message_reader(self, config: Config, field: str) -> Callable[[Record, float], ReadMessage]:
        """A function that reads a record, at a time in seconds since 1970, as a message of the
        client that `field` of the message names; an empty one names none.

        For a host that takes in messages of all clients from one log. Raises `SettingsError`.
        """
        raise SettingsError(f"the source {self.name} reads no messages of a topic")

    def federation_file(self, options: Mapping[str, Any]) -> str:
        """A federation file (TOML) that fits the source.

        Raises `SettingsError` for a source that can write none.
        """
        raise SettingsError(f"--print-federation means nothing with {self.label}; leave it out")

    def run(self, task: ProducerTask) -> ProducerTotals:
        """Feed readings until the source ends, or a signal to stop. Raises `ShoalError`."""
        raise NotImplementedError


IDLE_S = 0.25
"""longest wait before a stop is noticed and progress is shown"""
BATCH_READINGS = (500, 8000)
"""fewest and most readings stored together: every store syncs the disk for each client"""
BATCH_NUMBERS = 2**20
"""values of the features in a batch, so that readings of many features take no more memory"""


class MessageStream(NamedTuple):
    """Messages of a broker on their way into readings logs."""

    build: Callable[[], AbstractContextManager[Steppable]]
    """opens what stores them, as its bookmark or checkpoint has it"""
    position: Callable[[], int]
    """readings that are stored, by this process and earlier ones"""
    totals: Callable[[bool], ProducerTotals]
    """totals so far; the argument: whether the stream has ended"""


class MessageSource(SourceType):
    """A source type of messages that a broker sends, without an end."""

    shows_events = True

    def is_described(self, config: Config) -> bool:
        """Whether the federation file says where its messages come from."""
        raise NotImplementedError

    def stream(self, task: ProducerTask) -> MessageStream:
        """The messages that the task asks for. Raises `SettingsError` and `MissingExtra`."""
        raise NotImplementedError

    def run(self, task: ProducerTask) -> ProducerTotals:
        """See `SourceType.run`. It waits while a broker or a disk is unavailable."""
        stream = self.stream(task)
        contract = task.config.contract
        log_event(
            "started",
            federation=contract.federation,
            contract=contract.digest,
            client=self.client_name(task.options),
        )
        with (
            stopped_by_signals() as stop,
            closing(display_on(sys.stderr, time.monotonic, task.as_json)) as display,
        ):
            run(
                stream.build,
                stop,
                task.options["until_idle"],
                on_step=lambda _: display.show(stream.position(), None),
            )
            ended = not stop.is_set()
        return stream.totals(ended)


CLIENTS = click.Option(
    ["--clients"], type=int, help="Number of clients, named client-1, client-2, ... [default: 1]"
)
NAME = click.Option(
    ["--name"],
    type=CLIENT_NAME,
    metavar="CLIENT",
    help="With --mqtt, --kafka or --influx: the client that all messages are of, or the only one"
    " to feed.",
)
UNTIL_IDLE = click.Option(
    ["--until-idle"],
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="With --kafka, --mqtt or --influx: end when no message has arrived for this long.",
)
SEED = click.Option(
    ["--seed"],
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Seed of everything random.",
)
AGAIN = click.Option(
    ["--again"], is_flag=True, help="Publish all once more, though an earlier run has published it."
)
PUMP_PARAMETERS: tuple[click.Parameter, ...] = (
    click.Option(
        ["--speed"],
        help="60x: sixty times as fast as it happened; max. [default: max for files, 1x for"
        " --synthetic]",
    ),
    click.Option(
        ["--rate"], help="Readings per second over all clients, instead of a speed: 100/s."
    ),
    click.Option(
        ["--longest-wait"],
        default=LONGEST_WAIT_S,
        show_default=True,
        help="Longest wait in seconds for the next reading; longer gaps in time are shortened.",
    ),
    click.Option(
        ["--live"],
        is_flag=True,
        help="Give readings the time at which they are fed, not the source's.",
    ),
    click.Option(
        ["--limit"],
        type=click.IntRange(min=0),
        help="End after this many readings, counted from the source's beginning.",
    ),
    AGAIN,
)


class PumpedSource(SourceType):
    """A source type of numbered readings. Its `parameters` should include `PUMP_PARAMETERS`."""

    default_speed = "max"
    empty = "the source has no readings"
    """message of a run that found nothing to publish"""

    def open(self, contract: Contract, options: Mapping[str, Any]) -> Source:
        """The source that the options describe, at its first reading.

        Raises `SettingsError` and `InvalidData`.
        """
        raise NotImplementedError

    def sentences(self, source: Source) -> Sequence[str]:
        """How it was understood, for people; without a value of a reading."""
        return ()

    def places(self, source: Source, numbers: Sequence[int]) -> Mapping[int, str]:
        """Places, for people, of those readings with these numbers that can be found again."""
        return {}

    def texts(self, source: Source) -> Mapping[str, str]:
        """client -> what the source calls it, of those that the source has met."""
        return {}

    def source_files(self, source: Source) -> SourceFiles | None:
        """Its files, if it reads files: what a client has of them already is not fed to it again
        unasked."""
        return None

    def run(self, task: ProducerTask) -> ProducerTotals:
        """See `SourceType.run`. A run that was stopped or killed continues where it was."""
        options = task.options
        contract = task.config.contract
        source = self.open(contract, options)
        pacing = self._pacing(options)
        files = self.source_files(source)
        if files is not None and not options["again"]:
            # Before anything is opened: a file that was fed already would count twice in the model.
            refuse_repeats(files, task.folder, ask=not task.as_json)
        bookmark = open_bookmark(task.folder, source.identity)
        if options["again"]:
            bookmark.start_again()
        pump = _pump(source, task, pacing, bookmark, lambda: self.texts(source), files)
        pump.watch = watch = ReadingWatch(contract)
        # After all that may be refused, so that a run that is refused has not started.
        log_event("started", federation=contract.federation, contract=contract.digest)
        if not task.as_json:
            for sentence in self.sentences(source):
                click.echo(sentence, err=True)
        _run(pump, display_on(sys.stderr, time.monotonic, task.as_json))
        empty = ""
        # Not for a limit of 0, which asks for nothing.
        if pump.finished and not pump.position and options["limit"] != 0:
            empty = self.empty
        return ProducerTotals(
            pump.finished,
            pump.published,
            pump.already_there,
            pump.position,
            source.faults,
            source.identity,
            empty,
            watch.faults.rejected(self.places(source, watch.faults.first_numbers)),
            watch.clipped(lambda numbers: self.places(source, numbers), self.texts(source)),
        )

    def _pacing(self, options: Mapping[str, Any]) -> Pacing:
        wall = time.time if options["live"] else None
        if options["rate"] is not None:
            if options["speed"] is not None:
                # Refused and not ignored: a user who gave both expects both to hold.
                raise SettingsError("--speed means nothing with --rate; leave it out")
            return Pacing(rate=rate_of(options["rate"]), wall=wall)
        speed = speed_of(options["speed"] or self.default_speed)
        return Pacing(speed=speed, longest_wait_s=options["longest_wait"], wall=wall)


def _pump(
    source: Source,
    task: ProducerTask,
    pacing: Pacing,
    bookmark: Bookmark,
    texts: Callable[[], Mapping[str, str]],
    files: SourceFiles | None,
) -> Pump:
    def open_log(client: str) -> Log:
        text = texts().get(client, client)
        own = client_folder(task.folder, client, text)
        if files is not None:
            files.keep(own)
        if text != client and not task.as_json:
            click.echo(f"client {text!r} has the name {client}", err=True)
        return open_readings(task.config, client, task.folder)

    try:
        return Pump(
            source,
            open_log,
            clock=time.monotonic,
            pacing=pacing,
            bookmark=bookmark,
            limit=task.options["limit"],
            batch_readings_max=min(
                # Fewer readings of many features, so that a batch takes about the same memory.
                max(BATCH_READINGS[0], BATCH_NUMBERS // task.config.contract.width),
                BATCH_READINGS[1],
            ),
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
                # In short pieces, so that the display goes on between readings that are far apart.
                stop.wait(min(pump.wait_s, IDLE_S))
            display.show(pump.position, pump.total)
