"""`shoal events`: list the cluster events of a federation, or forward them by webhook or MQTT."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click

from server_node.forwarding.forwarder import Forwarder
from server_node.forwarding.rules import load_rules
from server_node.forwarding.sinks import Sinks
from shoal.config.settings import Config, load_config
from shoal.errors import MessageRejected, SettingsError
from shoal.protocol.cluster_events import ClusterEventMessage
from shoal.protocol.topics import ensure_topics
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.service import run, stopped_by_signals
from shoal.telemetry.events import log_event, start_logging
from shoal.transports import open_log
from shoal.transports.base import Log, Record, beginning

CONFIG = click.option(
    "--config", "file", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The federation file."
)


@click.group()
def events() -> None:
    """Cluster events: births, partings, merges, silences, returns, ends and moved shares of clusters."""


@events.command("list")
@CONFIG
@click.option("--model", help="Only events of this model.")
@click.option("--follow", is_flag=True, help="Go on with new events until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per event.")
def list_(file: Path, model: str | None, follow: bool, as_json: bool) -> None:
    """List the events that the log still has, oldest first."""
    config = load_config(file)
    topic = config.contract.events_topic
    if model is not None and config.contract.model(model) is None:
        names = ", ".join(one.name for one in config.contract.models)
        raise SettingsError(f"--model {model}: no such model in {file}; there are {names}")
    with closing(open_log(config.log)) as log, stopped_by_signals() as stop:
        ensure_topics(log, config.contract, config.log)
        positions = beginning(log, topic)
        while not stop.is_set():
            records, positions = log.read(topic, positions, timeout_s=0.5 if follow else 0.0)
            for record in records:
                if (event := _decoded(record)) is not None and model in (None, event.model):
                    click.echo(record.value if as_json else _line(event))
            if not records and not follow:
                return


@events.command()
@CONFIG
@click.option(
    "--until-idle", type=click.FloatRange(min=0), metavar="SECONDS", help="End when no event came for so long."
)
@click.option("--json", "as_json", is_flag=True, help="Log JSON lines, and print the total at the end.")
def forward(file: Path, until_idle: float | None, as_json: bool) -> None:
    """Forward events to the sinks of [events]: all of them, or those that match its rules.

    Each event is delivered at least once to each sink, in order. What a sink does not take while it is away is
    delivered when it is back; the position is kept in [events] folder.
    """
    config = load_config(file)
    rules = load_rules(config.events.rules)
    start_logging("events", as_json)
    forwarded = 0

    @contextmanager
    def build() -> Iterator[Forwarder]:
        nonlocal forwarded
        with _opened(config) as (log, checkpoint), Sinks(config.events, config.contract.federation) as sinks:
            node = Forwarder(config.contract, log, checkpoint, rules, sinks)
            node.resume()
            try:
                yield node
            finally:
                forwarded += node.forwarded

    Sinks(config.events, config.contract.federation)  # a mistake in the settings is reported before anything starts
    log_event("started", federation=config.contract.federation, contract=config.contract.digest)
    with stopped_by_signals() as stop:
        run(build, stop, until_idle)
    log_event("stopped", forwarded=forwarded)
    if as_json:
        click.echo(json.dumps({"forwarded": forwarded}))


@contextmanager
def _opened(config: Config) -> Iterator[tuple[Log, Checkpoint]]:
    owner = f"event forwarder of {config.contract.federation}"
    with Checkpoint(config.events.folder / "checkpoint.db", owner) as checkpoint, closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        yield log, checkpoint


def _decoded(record: Record) -> ClusterEventMessage | None:
    try:
        return ClusterEventMessage.decode(record.value)
    except MessageRejected as wrong:
        log_event("event_rejected", logging.WARNING, reason=wrong.reason)
        return None


def _line(event: ClusterEventMessage) -> str:
    moment = datetime.fromtimestamp(event.at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"{moment} {event.model} {event.text or event.kind}"
