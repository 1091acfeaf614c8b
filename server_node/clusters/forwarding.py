"""`shoal events`: lists the cluster events of a federation, or forwards them to sinks by alert
rules.

With `--client` the same for the site events of one client, on the site that has its folder. Each
event is delivered at least once. Alert rules are a TOML file of `[[rule]]` tables.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import click
from pydantic import Field, field_validator

from shoal.cli.options import CLIENT_NAME, config_option, log_json_option, until_idle_option
from shoal.config.base import Settings, parse_table, read_toml
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState, LogUnavailable, MessageRejected, SettingsError
from shoal.protocol.events import EVENT_KINDS, SITE_EVENT_KINDS, ClusterEventMessage, SiteEvent
from shoal.protocol.topics import LABELS, SITE_EVENTS, ensure_label_topics, ensure_topics
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.logs import open_client_log
from shoal.runtime.service import run, stopped_by_signals
from shoal.server_node.clusters.sinks import Sink, Sinks
from shoal.telemetry.events import log_event, start_logging
from shoal.transports import open_log
from shoal.transports.base import Log, Positions, Record, beginning, read_next

Event = ClusterEventMessage | SiteEvent
ALL_KINDS = (*EVENT_KINDS, *SITE_EVENT_KINDS)


class Topic(NamedTuple):
    """Place from which events are read."""

    name: str
    decode: Callable[[bytes | None], Event]
    """raises `MessageRejected` for what is no such event"""


class Rule(Settings):
    """One rule. An event matches when it meets every condition that the rule gives."""

    name: str = Field(min_length=1, max_length=100, description="what the alert is called")
    events: list[str] = Field(
        default_factory=list, description=f"kinds of event: {', '.join(ALL_KINDS)}; none: all"
    )
    model: str = Field(default="", description="only of this model")
    cluster: str = Field(default="", description="only of the cluster with this name or identity")
    share_min: float = Field(
        default=0.0, ge=0, le=1, description="only with at least this share of recent readings"
    )
    share_max: float = Field(
        default=1.0, ge=0, le=1, description="only with at most this share of recent readings"
    )
    muted: bool = Field(
        default=False, description="also of clusters that are confirmed as normal, or muted"
    )

    @field_validator("events")
    @classmethod
    def _known(cls, events: list[str]) -> list[str]:
        if unknown := sorted(set(events) - set(ALL_KINDS)):
            raise ValueError(f"no event {unknown[0]!r}; there are {', '.join(ALL_KINDS)}")
        return events

    def matches(self, event: Event) -> bool:
        """Whether the event meets every condition."""
        return (
            (not self.events or event.kind in self.events)
            and self.model in ("", event.model)
            and self.cluster in ("", event.name, str(event.cluster))
            and self.share_min <= event.share <= self.share_max
            and (self.muted or not event.muted)
        )


class Rules(Settings):
    """A whole file of rules."""

    rule: list[Rule] = Field(default_factory=list)


EVERYTHING = Rule(name="cluster event")
"""the rule without a file: every event is forwarded, but for those of clusters that raise no alerts
"""


def load_rules(path: Path | None) -> Sequence[Rule]:
    """The rules of a file; without one, `EVERYTHING`. Raises `SettingsError`, naming the place of
    the mistake."""
    if path is None:
        return (EVERYTHING,)
    rules = parse_table(Rules, read_toml(path), str(path)).rule
    if not rules:
        raise SettingsError(f"{path}: no [[rule]] in it; remove the setting to forward every event")
    return rules


Alert = tuple[str, Event]
"""name of the rule, and the event that matches it"""
STATE_VERSION = 2
BATCH_EVENTS_MAX = 100


@dataclass
class _Place:
    """Progress of one sink."""

    positions: Positions
    delivered: int = 0
    """alerts of the batch from these positions on that it has"""


class Forwarder:
    """One step delivers to each sink its next batch of events, and then stores the position behind
    it.

    Each sink has a position of its own, so that one that is away holds no other. A kill between
    delivery and storing delivers a batch again: receivers recognise events by their `id`.
    """

    def __init__(
        self, topic: Topic, log: Log, checkpoint: Checkpoint, rules: Sequence[Rule], sinks: Sinks
    ) -> None:
        self._topic = topic
        self._log = log
        self._checkpoint = checkpoint
        self._rules = rules
        self._sinks = sinks
        self._places: dict[str, _Place] = {}
        """sink -> its progress"""
        self.forwarded = 0
        """alerts delivered since this object was made"""

    def resume(self) -> None:
        """Go on behind the newest event that each sink has; at first, from the beginning. Raises
        `InvalidState`.

        A sink that has come since begins with what the others are to get next.
        """
        state = self._checkpoint.load()
        first = beginning(self._log, self._topic.name)
        if state is None:
            self._places = {name: _Place(dict(first)) for name, _ in self._sinks.items()}
            return
        if state.get("version") != STATE_VERSION or state.get("log") != self._log.identity(
            self._topic.name
        ):
            raise InvalidState(
                "the forwarder's checkpoint is of another log or version; move its folder away to forward all events "
                "that the log still has"
            )
        saved = {
            name: _Place(dict(positions), delivered)
            for name, positions, delivered in state["sinks"]
        }
        newest = dict(
            max(
                (sorted(one.positions.items()) for one in saved.values()),
                default=sorted(first.items()),
            )
        )
        self._places = {
            name: saved.get(name, _Place(dict(newest))) for name, _ in self._sinks.items()
        }

    def step(self, timeout_s: float = 0.0) -> bool:
        """Deliver what has come to each sink.

        Raises `LogUnavailable` when one of them or the log is away; the next step goes on.
        """
        # The error is kept until every sink has had its turn: one that is away must not hold the
        # others.
        away: LogUnavailable | None = None
        worked = False
        for name, sink in self._sinks.items():
            try:
                worked |= self._forward(name, sink)
            except LogUnavailable as error:
                away = error if away is None else away
        if away is not None:
            raise away
        if worked or timeout_s <= 0:
            return worked
        place = next(iter(self._places.values()))  # all are at the end
        records, _ = read_next(
            self._log, self._topic.name, place.positions, 1, timeout_s, accept_gap=True
        )
        return bool(records) and self.step()

    def _forward(self, name: str, sink: Sink) -> bool:
        """Deliver the next batch to one sink; False where there is none."""
        place = self._places[name]
        records, after = read_next(
            self._log, self._topic.name, place.positions, BATCH_EVENTS_MAX, 0.0, accept_gap=True
        )
        if not records:
            return False
        alerts = [alert for record in records for alert in self._alerts_of(record)]
        try:
            self._deliver(name, sink, alerts)
            self._places[name] = _Place(after)
        finally:
            # After an outage it must not get the first ones of the batch again.
            self._store()
        log_event("events_forwarded", sink=name, events=len(records), alerts=len(alerts))
        return True

    def _deliver(self, name: str, sink: Sink, alerts: Sequence[Alert]) -> None:
        place = self._places[name]
        for rule, event in alerts[place.delivered :]:
            if not sink.deliver({"alert": rule, "event": asdict(event)}, event.kind, event.model):
                log_event("alert_rejected", logging.WARNING, sink=name, alert=rule, id=event.id)
            # One by one, so that an outage in the middle of a batch repeats none of the alerts
            # before it.
            place.delivered += 1
            self.forwarded += 1

    def _store(self) -> None:
        sinks = [
            [name, sorted(one.positions.items()), one.delivered]
            for name, one in sorted(self._places.items())
        ]
        log = self._log.identity(self._topic.name)
        self._checkpoint.save({"version": STATE_VERSION, "log": log, "sinks": sinks})

    def _alerts_of(self, record: Record) -> list[Alert]:
        try:
            event = self._topic.decode(record.value)
        except MessageRejected as wrong:
            place = f"{record.topic}/{record.partition}/{record.offset}"
            log_event("event_rejected", logging.WARNING, reason=wrong.reason, origin=place)
            return []
        return [(rule.name, event) for rule in self._rules if rule.matches(event)]


client_option = click.option(
    "--client",
    type=CLIENT_NAME,
    metavar="NAME",
    help="The site events of this client, from its folder: novel readings in a row, and changes and stays of regimes.",
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
    """List the events that the log still has, oldest first."""
    config = load_config(file)
    if model is not None and config.contract.model(model) is None:
        names = ", ".join(one.name for one in config.contract.models)
        raise SettingsError(f"--model {model}: no such model in {file}; there are {names}")
    listed = False
    with _events_log(config, client) as (log, topic), stopped_by_signals() as stop:
        positions = beginning(log, topic.name)
        while not stop.is_set():
            records, positions = log.read(topic.name, positions, timeout_s=0.5 if follow else 0.0)
            for record in records:
                if (event := _decoded(topic, record)) is not None and model in (None, event.model):
                    click.echo(record.value if as_json else _line(event))
                    listed = True
            if not records and not follow:
                break
        if not listed:
            click.echo(f"No events: {_why_none(config, log, client, topic, model)}.", err=True)


def _why_none(config: Config, log: Log, client: str | None, topic: Topic, model: str | None) -> str:
    """The likely reason for an empty list."""

    def has_any(name: str) -> bool:
        return any(end > 0 for _, end in log.bounds(name).values())

    if has_any(topic.name):
        return (
            "the log no longer has them"
            if model is None
            else f"all that there are are of other models than {model}"
        )
    if client is not None:
        if not has_any(LABELS):
            return f"{client} has labelled no reading: it needs label = true of [client], and a snapshot"
        return f"among the labelled readings of {client} was no streak of novel ones and no rare change"
    if not has_any(config.contract.updates_topic):
        return "no client has published an update"
    if not has_any(config.contract.snapshots_topic):
        return "the server has published no snapshot; does it run?"
    return "no cluster is known yet, or none has come, gone or changed since"


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
            node = Forwarder(topic, log, checkpoint, rules, sinks)
            node.resume()
            try:
                yield node
            finally:
                forwarded += node.forwarded

    # a mistake in the settings is reported before anything starts
    Sinks(config.sinks, config.contract.federation)
    log_event("started", federation=config.contract.federation, contract=config.contract.digest)
    with stopped_by_signals() as stop:
        run(build, stop, until_idle)
    log_event("stopped", forwarded=forwarded)
    if as_json:
        click.echo(json.dumps({"forwarded": forwarded}))


def _checkpoint(config: Config, client: str | None) -> Checkpoint:
    """Each client's events have a folder of their own in that of the forwarder."""
    owner = f"event forwarder of {config.contract.federation}"
    folder = config.events.folder
    if client is not None:
        owner = f"{owner}, client {client}"
        folder = folder / "clients" / client
    return Checkpoint(folder / "checkpoint.db", owner)


@contextmanager
def _events_log(config: Config, client: str | None) -> Iterator[tuple[Log, Topic]]:
    """The log that has the events of the federation, or of one client, and its topic. Raises
    `SettingsError`."""
    if client is None:
        with closing(open_log(config.log)) as log:
            ensure_topics(log, config.contract, config.log)
            yield log, Topic(config.contract.events_topic, ClusterEventMessage.decode)
        return
    if not (config.client.folder / client / "readings.db").exists():
        raise SettingsError(
            f"{config.client.folder / client} has no readings; check --client and [client] folder"
        )
    with closing(open_client_log(config, client)) as log:
        ensure_label_topics(log)
        yield log, Topic(SITE_EVENTS, SiteEvent.decode)


def _decoded(topic: Topic, record: Record) -> Event | None:
    try:
        return topic.decode(record.value)
    except MessageRejected as wrong:
        log_event("event_rejected", logging.WARNING, reason=wrong.reason)
        return None


def _line(event: Event) -> str:
    moment = "no time"
    if event.at is not None:
        moment = (
            datetime.fromtimestamp(event.at, UTC)
            .isoformat(timespec="seconds")
            .replace("+00:00", "Z")
        )
    return f"{moment} {event.model} {event.text or event.kind}"
