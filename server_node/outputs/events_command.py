"""`shoal events`: lists the cluster events of a federation, or forwards them to sinks by alert
rules.

With `--client` the same for the site events of one client, on the site that has its folder.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click

from shoal.cli.options import CLIENT_NAME, config_option, log_json_option, until_idle_option
from shoal.config.settings import Config, load_config
from shoal.errors import MessageRejected, SettingsError
from shoal.protocol.events import ClusterEventMessage, SiteEvent
from shoal.protocol.topics import LABELS, SITE_EVENTS, ensure_label_topics, ensure_topics
from shoal.runtime.checkpoint import Checkpoint, open_replaceable
from shoal.runtime.logs import open_client_log
from shoal.runtime.service import run, stopped_by_signals
from shoal.server_node.outputs.alert_rules import Event, load_rules
from shoal.server_node.outputs.forwarding import Forwarder, Topic
from shoal.server_node.outputs.sinks.base import Sinks
from shoal.server_node.report.lineage.events import DatedEvent, brief_events
from shoal.telemetry.events import log_event, start_logging
from shoal.text import counted
from shoal.transports import open_log_to_read
from shoal.transports.base import Log, Record, beginning

IDS_MAX = 10_000
"""newest events of which a list remembers that it has shown them"""
client_option = click.option(
    "--client",
    type=CLIENT_NAME,
    metavar="NAME",
    help="The site events of this client, from its folder: novel readings in a row, changes and "
    "dwells of states, and features that are stuck or drift.",
)


@click.group()
def events() -> None:
    """Cluster events: clusters that are born, part, merge, are quiet, return or are gone, and
    shares that move."""


@events.command("list")
@config_option
@client_option
@click.option("--model", help="Only events of this model.")
@click.option("--follow", is_flag=True, help="Go on with new events until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per event.")
def list_(file: Path, client: str | None, model: str | None, follow: bool, as_json: bool) -> None:
    """List the events that the log still has, oldest first, each once.

    Clusters that there were for less than a minute are left out, but with --follow, which cannot
    know yet, and with --json.
    """
    config = load_config(file)
    if model is not None and config.contract.model(model) is None:
        names = ", ".join(known.name for known in config.contract.models)
        raise SettingsError(f"--model {model}: no such model in {file}; there are {names}")
    with _events_log(config, client) as (log, topic), stopped_by_signals() as stop:
        wanted = (
            (record, event)
            for record, event in _each_event(log, topic, follow, stop)
            if model in (None, event.model)
        )
        listed = False
        if follow or as_json:
            for record, event in wanted:
                click.echo(record.value if as_json else _line(event))
                listed = True
        else:
            listed = _list_lasting(_by_time([event for _, event in wanted]))
        if not listed:
            click.echo(f"No events: {_why_none(config, log, client, topic, model)}.", err=True)


def _each_event(
    log: Log, topic: Topic, follow: bool, stop: threading.Event
) -> Iterator[tuple[Record, Event]]:
    """The events in the log, each once, with their records; with `follow` also those to come."""
    positions = beginning(log, topic.name)
    seen: dict[str, None] = {}
    while not stop.is_set():
        records, positions = log.read(topic.name, positions, timeout_s=0.5 if follow else 0.0)
        for record in records:
            event = _decoded(topic, record)
            # A server that was killed publishes what it is not sure of once more.
            if event is None or event.id in seen:
                continue
            seen[event.id] = None
            if len(seen) > IDS_MAX:
                # A dictionary keeps the order in which keys came, so the first one is the oldest.
                del seen[next(iter(seen))]
            yield record, event
        if not records and not follow:
            return


def _by_time(events: Sequence[Event]) -> list[Event]:
    """Site events in the order of their times, those without a time first; cluster events in the
    order in which they were found."""
    # Of a batch of readings the log has the events of one kind after those of another.
    return sorted(events, key=lambda event: (event.at or 0.0) * isinstance(event, SiteEvent))


def _list_lasting(events: Sequence[Event]) -> bool:
    """Print a line for each event but for those of clusters that there were but briefly, and how
    many these are. False where there is no event at all."""
    left_out: set[str] = set()
    of_model: dict[str, list[ClusterEventMessage]] = {}
    for event in events:
        if isinstance(event, ClusterEventMessage):
            of_model.setdefault(event.model, []).append(event)
    for of_one in of_model.values():
        dated = [DatedEvent(event.found_at, event.kind, event.cluster) for event in of_one]
        brief = zip(of_one, brief_events(dated), strict=True)
        left_out |= {event.id for event, is_brief in brief if is_brief}
    for event in events:
        if event.id not in left_out:
            click.echo(_line(event))
    if left_out:
        click.echo(
            f"{counted(len(left_out), 'event')} of clusters that there were for less than a minute"
            " left out; --json has all.",
            err=True,
        )
    return bool(events)


@events.command()
@config_option
@client_option
@until_idle_option("event")
@log_json_option
def forward(file: Path, client: str | None, until_idle: float | None, as_json: bool) -> None:
    """Forward events to the sinks in [events.NAME] sections: all of them, or those that match the
    rules in [events].

    With --client those that this client has found in its own readings, to the sinks of the
    federation file at its site.

    Each event is delivered at least once to each sink, in order. What a sink does not take while it
    is away is delivered when it is back; the position is kept in [events] folder.
    """
    config = load_config(file)
    rules = load_rules(config.events.rules)
    start_logging("events", as_json)
    forwarded = 0

    @contextmanager
    def build() -> Iterator[Forwarder]:
        nonlocal forwarded
        with (
            _checkpoint(config, client) as checkpoint,
            _events_log(config, client) as (log, topic),
            Sinks(config.sinks, config.contract.federation) as sinks,
        ):
            forwarder = Forwarder(topic, log, checkpoint, rules, sinks)
            forwarder.resume()
            try:
                yield forwarder
            finally:
                forwarded += forwarder.forwarded

    # A mistake in the settings is reported before anything starts.
    Sinks(config.sinks, config.contract.federation)
    log_event("started", federation=config.contract.federation, contract=config.contract.digest)
    with stopped_by_signals() as stop:
        run(build, stop, until_idle)
    log_event("stopped", forwarded=forwarded)
    if as_json:
        click.echo(json.dumps({"forwarded": forwarded}))


def _why_none(config: Config, log: Log, client: str | None, topic: Topic, model: str | None) -> str:
    """The likely reason for an empty list."""

    def has_any(name: str) -> bool:
        return any(end > 0 for _, end in log.bounds(name).values())

    if has_any(topic.name):
        if model is None:
            return "the log no longer has them"
        return f"all that there are are of other models than {model}"
    if client is not None:
        return _why_no_site_events(client, has_labels=has_any(LABELS))
    if not has_any(config.contract.updates_topic):
        return "no client has published an update"
    if not has_any(config.contract.snapshots_topic):
        return "the server has published no snapshot; does it run?"
    return "no cluster is known yet, or none has come, gone or changed since"


def _why_no_site_events(client: str, *, has_labels: bool) -> str:
    if not has_labels:
        return (
            f"{client} has labelled no reading: it needs label = true of [client], and a snapshot"
        )
    return (
        f"among the labelled readings of {client} was no streak of novel ones, no rare change and"
        " no feature that is stuck or drifts"
    )


def _checkpoint(config: Config, client: str | None) -> Checkpoint:
    """Each client's events have a folder of their own in that of the forwarder."""
    owner = f"event forwarder of {config.contract.federation}"
    folder = config.events.folder
    if client is not None:
        owner = f"{owner}, client {client}"
        folder = folder / "clients" / client
    # Events that come again have their `id`; a forwarder that does not start tells of none.
    return open_replaceable(folder / "checkpoint.db", owner)


@contextmanager
def _events_log(config: Config, client: str | None) -> Iterator[tuple[Log, Topic]]:
    """The log that has the events of the federation, or of one client, to be read, and its topic.

    Raises `SettingsError`.
    """
    if client is None:
        with closing(open_log_to_read(config.log)) as log:
            ensure_topics(log, config.contract, config.log)
            yield log, Topic(config.contract.events_topic, ClusterEventMessage.decode)
        return
    if not (config.client.folder / client / "readings.db").exists():
        raise SettingsError(
            f"{config.client.folder / client} has no readings; check --client and [client] folder"
        )
    with closing(open_client_log(config, client, read_only=True)) as log:
        ensure_label_topics(log)
        yield log, Topic(SITE_EVENTS, SiteEvent.decode)


def _decoded(topic: Topic, record: Record) -> Event | None:
    try:
        return topic.decode(record.value)
    except MessageRejected as rejected:
        log_event("event_rejected", logging.WARNING, reason=rejected.reason)
        return None


def _line(event: Event) -> str:
    if not isinstance(event, ClusterEventMessage):
        moment = "no time" if event.at is None else _utc(event.at)
        return " ".join(part for part in (moment, event.model, event.text or event.kind) if part)
    # By the readings, as on the page: a file of last year is learnt within seconds.
    line = f"{_utc(event.happened_at)} {event.model} {event.text or event.kind}"
    if event.happened_at == event.found_at:
        return line
    found = f"found {_utc(event.found_at)}"
    if event.last_reading_at is not None:
        found = f"until {_utc(event.last_reading_at)}, {found}"
    return f"{line} ({found})"


def _utc(moment: float) -> str:
    text = datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
    return text.replace("+00:00", "Z")
