"""`shoal changes`: what has changed in a model's clusters between two spans of time, as text, JSON or a picture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from server_node.clusters.figures import FORMATS
from server_node.clusters.history.changes import CHANCE, Changes, PastEvent, find_changes, spans_of
from server_node.clusters.history.changes_report import draw_changes, lines_of
from server_node.clusters.history.store import decode_record
from shoal.cli.options import MOMENT, chosen_model, config_option, model_option
from shoal.config.contract import Contract
from shoal.config.resolved import ResolvedContract
from shoal.config.settings import load_config
from shoal.errors import MessageRejected, SettingsError
from shoal.files import atomic_file
from shoal.protocol.events import ClusterEventMessage
from shoal.protocol.history import HistoryBin, HistoryNames, HistoryPlaces
from shoal.protocol.published_contract import contract_in
from shoal.protocol.topics import ensure_topics
from shoal.runtime.logs import open_federation_log
from shoal.transports.base import Log, beginning, latest


class LoggedHistory:
    """The history of one model as its topic has it. A `HistorySource`."""

    def __init__(self, log: Log, contract: ResolvedContract, model: str) -> None:
        """The log has the topic. Raises as the log does."""
        self._bins: dict[int, list[HistoryBin]] = {}
        self._places: dict[int, list[HistoryPlaces]] = {}
        self._names: HistoryNames | None = None
        for record in latest(log, contract.contract.history_topic).values():
            found = decode_record(record, contract)
            message = None if found is None else found.message
            if message is None or message.model != model:
                continue
            if isinstance(message, HistoryBin):
                self._bins.setdefault(message.width_s, []).append(message)
            elif isinstance(message, HistoryPlaces):
                self._places.setdefault(message.width_s, []).append(message)
            else:
                self._names = message

    def extent(self, model: str, width_s: int) -> tuple[int, int] | None:
        """The starts of the oldest and the newest bin of this width; None if there is none."""
        starts = [one.start for one in self._bins.get(width_s, ())]
        return (min(starts), max(starts)) if starts else None

    def each_bin(self, model: str, width_s: int, first: float, last: float) -> Iterator[HistoryBin]:
        """The bins of this width that start from `first` to `last`, oldest first."""
        within = (one for one in self._bins.get(width_s, ()) if first <= one.start <= last)
        yield from sorted(within, key=lambda one: one.start)

    def places(self, model: str, width_s: int, first: float, last: float) -> Iterator[HistoryPlaces]:
        """Those that hold places."""
        within = (one for one in self._places.get(width_s, ()) if first <= one.start <= last)
        yield from sorted(within, key=lambda one: one.start)

    def names(self, model: str) -> HistoryNames | None:
        """The clients and clusters that the bins name by number."""
        return self._names


Asked = tuple[float | None, float | None]
NOT_ASKED: Final[Asked] = (None, None)


def logged_changes(
    log: Log, contract: ResolvedContract, model: str, after: Asked = NOT_ASKED, before: Asked = NOT_ASKED
) -> Changes:
    """The changes between two spans, as `spans_of` takes them; the log has the topics. Raises `SettingsError`."""
    source, agreed = LoggedHistory(log, contract_in(log, contract), model), contract.contract
    spans = spans_of(source, model, after, before)
    return find_changes(source, agreed, model, spans, past_events(log, agreed, model))


def past_events(log: Log, contract: Contract, model: str) -> Iterator[PastEvent]:
    """The events of a model's clusters that the log still has, oldest first."""
    positions = beginning(log, contract.events_topic)
    while True:
        records, positions = log.read(contract.events_topic, positions)
        if not records:
            return
        for record in records:
            try:
                event = ClusterEventMessage.decode(record.value)
            except MessageRejected:
                continue
            if event.model == model:
                at = event.at if event.reading_at is None else event.reading_at
                yield PastEvent(at, event.kind, event.cluster, event.other)


@click.command()
@config_option
@model_option
@click.option(
    "--from", "first", type=MOMENT, help="Start of the later span (UTC). [default: the middle of the history]"
)
@click.option("--to", "end", type=MOMENT, help="End of the later span (UTC). [default: now]")
@click.option(
    "--before-from",
    type=MOMENT,
    help="Start of the earlier span (UTC). [default: as long before its end as the later span is]",
)
@click.option("--before-to", type=MOMENT, help="End of the earlier span (UTC). [default: the start of the later one]")
@click.option(
    "--chance",
    type=click.FloatRange(0, 1),
    default=CHANCE,
    show_default=True,
    help="Show what has moved if its chance is below this.",
)
@click.option("--format", "form", type=click.Choice(["text", "json", *FORMATS]), default="text", show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The file. [default: standard output]")
def changes(  # noqa: PLR0913, PLR0917 - one argument for each option
    file: Path,
    model: str | None,
    first: datetime | None,
    end: datetime | None,
    before_from: datetime | None,
    before_to: datetime | None,
    chance: float,
    form: str,
    out: Path | None,
) -> None:
    """Show what has changed in the clusters of a model between two spans of time.

    New, gone, parted and merged clusters; features whose mean in a cluster has moved, in units, and shares of clusters
    that have, with the chance of so large a difference where nothing has changed; by which client. Without options the
    two halves of the history are compared. Pictures need the extra `plot`, and --out.
    """
    config = load_config(file)
    contract = config.contract
    chosen = chosen_model(model, config.resolved.models, file)
    if form in FORMATS and out is None:
        raise SettingsError(f"a picture needs --out FILE.{form}")
    with closing(open_federation_log(config)) as log:
        ensure_topics(log, contract, config.log)
        after, before = (_seconds(first), _seconds(end)), (_seconds(before_from), _seconds(before_to))
        found = logged_changes(log, config.resolved, chosen, after, before)
    if form in FORMATS and out is not None:
        draw_changes(found, contract, chance, out)
        return
    _write(_json_text(found, chance) if form == "json" else "\n".join(lines_of(found, chance)), out)


def _json_text(found: Changes, chance: float) -> str:
    return json.dumps(found.json(chance), ensure_ascii=False, allow_nan=False)


def _write(text: str, out: Path | None) -> None:
    if out is None:
        click.echo(text)
        return
    try:
        with atomic_file(out, replace=True) as path:
            path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{out}: cannot be written: {error.strerror}") from None


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.replace(tzinfo=UTC).timestamp()
