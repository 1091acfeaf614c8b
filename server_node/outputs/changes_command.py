"""`shoal changes`: what has changed in a model's clusters between two spans of time, as text, JSON
or a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from shoal.cli.options import MOMENT, chosen_model, config_option, model_option, note_written
from shoal.config.contract import Contract, without_unit
from shoal.config.resolved import ResolvedContract
from shoal.config.settings import load_config
from shoal.errors import MessageRejected, SettingsError
from shoal.files import atomic_file
from shoal.protocol.events import ClusterEventMessage, duration
from shoal.protocol.published_contract import contract_in
from shoal.protocol.topics import ensure_topics
from shoal.runtime.logs import open_federation_log
from shoal.server_node.history.changes import (
    CHANCE,
    Begun,
    ByClient,
    Changes,
    Ended,
    Moved,
    PastEvent,
    ShareMoved,
    find_changes,
    spans_of,
)
from shoal.server_node.history.logged import LoggedHistory
from shoal.server_node.history.series import BINS_MIN
from shoal.server_node.outputs.command_parts import chance_text, percent_text, unix_seconds
from shoal.server_node.outputs.encoding import as_json, plain
from shoal.server_node.outputs.figures import (
    FORMATS,
    QUIET,
    heading,
    saved,
    without_frame,
    wrapped,
)
from shoal.server_node.outputs.history_views import changes_view
from shoal.transports.base import Log, beginning


def lines_of(changes: Changes, chance: float = CHANCE) -> list[str]:
    """The changes as text, a line for each; of what has moved that whose chance is below
    `chance`."""
    before, after, _ = changes.spans
    moved = [_moved_line(move) for move in changes.moved if move.chance < chance]
    shares = [_share_line(share) for share in changes.shares if share.chance < chance]
    lines = [
        f"{changes.model}: {after.text()}, {changes.readings[1]:,} readings",
        f"beside {before.text()}, {changes.readings[0]:,} readings (UTC)",
    ]
    parts: Mapping[str, list[str]] = {
        "New": [_begun_line(cluster) for cluster in changes.new],
        "Gone": [_ended_line(cluster) for cluster in changes.gone],
        "Moved": moved,
        "Share moved": shares,
    }
    for title, part in parts.items():
        if part:
            lines.append(title)
            lines += [f"  {line}" for line in part]
    return [*lines, _last_line(changes, chance, any(parts.values()))]


def _last_line(changes: Changes, chance: float, something: bool) -> str:
    # Chance is estimated from the variance between bins, of which a few show nothing.
    if min(changes.bins) < BINS_MIN:
        return (
            f"The spans have {changes.bins[0]} and {changes.bins[1]} bins of"
            f" {duration(changes.spans.width_s)}: with fewer than {BINS_MIN} nothing is known of"
            " chance, so no movement is shown."
        )
    return (
        f"Nothing {'else ' * something}has moved with a chance below {percent_text(chance)}:"
        f" {changes.compared} means and shares of clusters were compared, and a chance is that of"
        " any of them."
    )


def _begun_line(begun: Begun) -> str:
    line = begun.title
    if begun.kind == "parted":
        line += f", parted from {begun.other or 'another cluster'}"
    line += f": {100 * begun.share:.1f} % of the readings"
    if begun.clients:
        shares = [f"{client} {100 * share:.0f} %" for client, share in begun.clients]
        line += f"; from {', '.join(shares)}"
    return line


def _ended_line(ended: Ended) -> str:
    ends = {
        "merged": f"merged into {ended.other or 'another cluster'}",
        "gone": "gone",
        "quiet": "no readings fall to it",
    }
    return f"{ended.title}: {ends[ended.kind]}; it had {100 * ended.share:.1f} %"


def _moved_line(move: Moved) -> str:
    feature = f"{move.title}: {without_unit(move.feature, move.unit)}"
    if move.values is not None and move.values[0] != move.values[1]:
        return f"{feature} {' to '.join(move.values)}, {chance_text(move.chance)}"
    # Two digits of the difference: more of the means would be noise.
    places = 0
    if move.by:
        places = max(0, 1 - math.floor(math.log10(abs(move.by))))
    by = f"{move.by:+.{places}f} {move.unit}".rstrip()
    means = f"{move.before:.{places}f} to {move.after:.{places}f}"
    return f"{feature} {by} ({means}), {chance_text(move.chance)}"


def _share_line(share: ShareMoved) -> str:
    points = f"{100 * share.by:+.1f} points"
    if share.clients:
        by_client = [f"{client} {100 * by:+.1f}" for client, by in share.clients]
        points += f"; {', '.join(by_client)}"
    shares = f"{100 * share.before:.1f} to {100 * share.after:.1f} %"
    return f"{share.title}: {shares} ({points}), {chance_text(share.chance)}"


ROWS_MAX: Final = 12
"""clusters, and moved features, in one picture: the others are in the text of `shoal changes`"""
LINE_CHARS: Final = 62
BEFORE = "#93a1b3"
AFTER = "#2f6fde"
STILL = "#c5ccd6"
"""colours of the earlier span, of the later one, and of what has not moved"""


def draw_changes(changes: Changes, contract: Contract, chance: float, path: Path) -> None:
    """Draw to `path`, whose suffix is the format. Raises as `saved` does."""
    saved(
        path,
        lambda figure_type: changes_figure(figure_type, changes, contract, chance),
        changes.spans.after.text(),
    )


def changes_figure(figure_type: Any, changes: Changes, contract: Contract, chance: float) -> Any:
    """A figure of matplotlib: shares of clusters, features that have moved, and all changes in
    words."""
    shares = _shares(changes, chance)
    moved = [move for move in changes.moved if move.chance < chance][:ROWS_MAX]
    rows = max(3, len(shares), len(moved))
    words = [line for sentence in lines_of(changes, chance) for line in _broken(sentence)]
    figure = figure_type(
        figsize=(13, max(1.6 + 0.42 * rows, 1.4 + 0.2 * len(words))), layout="constrained"
    )
    heading(figure, f"{contract.federation}, {changes.model}: what has changed")
    left, middle, right = figure.subplots(1, 3, width_ratios=(3, 3, 4))
    _draw_shares(left, shares)
    _draw_moved(middle, moved, contract)
    right.axis("off")
    right.text(0, 1, "\n".join(words), va="top", fontsize=8.5, transform=right.transAxes)
    return figure


def _broken(line: str) -> Sequence[str]:
    indent = "  " if line.startswith("  ") else ""
    first, *others = wrapped(line.strip(), LINE_CHARS).splitlines()
    return [indent + first, *(f"{indent}   {other}" for other in others)]


Share = tuple[str, float, float, bool]
"""title, share before and after, and whether it has changed"""


def _shares(changes: Changes, chance: float) -> list[Share]:
    """The largest clusters of the later span, and those that are new or gone."""
    begun: list[Share] = [(cluster.title, 0.0, cluster.share, True) for cluster in changes.new]
    ended: list[Share] = [(cluster.title, cluster.share, 0.0, True) for cluster in changes.gone]
    apart = {cluster.cluster for cluster in changes.new} | {
        cluster.cluster for cluster in changes.gone
    }
    stayed: list[Share] = [
        (share.title, share.before, share.after, share.chance < chance)
        for share in changes.shares
        if share.cluster not in apart
    ]
    return sorted([*begun, *ended, *stayed], key=lambda share: -max(share[1:3]))[:ROWS_MAX]


def _draw_shares(chart: Any, shares: Sequence[Share]) -> None:
    chart.set_title("share of the readings, %: then (grey) and now", fontsize=10, loc="left")
    for place, (_, before, after, changed) in enumerate(shares):
        _dumbbell(chart, place, 100 * before, 100 * after, AFTER if changed else STILL)
    _rows(chart, [title for title, *_ in shares], "no readings of known clusters")
    chart.set_xlim(left=0)


def _draw_moved(chart: Any, moved: Sequence[Moved], contract: Contract) -> None:
    chart.set_title("means that have moved, between the bounds", fontsize=10, loc="left")
    features = {feature.name: feature for feature in contract.features}
    for place, move in enumerate(moved):
        feature = features[move.feature]
        width = feature.high - feature.low
        before = (move.before - feature.low) / width
        after = (move.after - feature.low) / width
        if move.values is None:
            words = f"{move.by:+.3g} {move.unit}".rstrip()
        else:
            words = " to ".join(dict.fromkeys(move.values))
        around = False
        if feature.kind == "circular":
            before = before % 1.0
            after = after % 1.0
            # The shorter way, which is the one that the mean has moved.
            around = abs(after - before) > 0.5
        _dumbbell(chart, place, before, after, AFTER, around=around)
        chart.text(max(before, after) + 0.03, place, words, va="center", fontsize=8)
    _rows(
        chart, [f"{without_unit(move.feature, move.unit)}\n{move.title}" for move in moved], "none"
    )
    chart.set(xlim=(0, 1.25), xticks=[])


def _dumbbell(
    chart: Any, place: int, before: float, after: float, colour: str, around: bool = False
) -> None:
    """`around`: the way leads over the ends of a circle, 0 and 1."""
    low, high = sorted((before, after))
    lines = [(low, high)]
    if around:
        lines = [(0.0, low), (high, 1.0)]
    for ends in lines:
        chart.plot(
            ends, [place, place], color=colour, linewidth=3, solid_capstyle="round", zorder=1
        )
    chart.scatter([before], [place], color=BEFORE, s=36, zorder=2)
    chart.scatter([after], [place], color=colour, s=46, zorder=3)


def _rows(chart: Any, titles: Sequence[str], empty: str) -> None:
    without_frame(chart)
    labels = ["\n".join(wrapped(line, 30) for line in title.splitlines()) for title in titles]
    chart.set(yticks=range(len(titles)), yticklabels=labels)
    chart.tick_params(labelsize=8)
    chart.set_ylim(max(3, len(titles)) - 0.5, -0.5)
    if not titles:
        chart.text(0.02, 0.9, empty, transform=chart.transAxes, color=QUIET, fontsize=9)


Asked = tuple[float | None, float | None]
NOT_ASKED: Final[Asked] = (None, None)


def logged_changes(
    log: Log,
    contract: ResolvedContract,
    model: str,
    after: Asked = NOT_ASKED,
    before: Asked = NOT_ASKED,
) -> Changes:
    """The changes between two spans, as `spans_of` takes them; the log has the topics. Raises
    `SettingsError`."""
    source = LoggedHistory(log, contract_in(log, contract), model)
    agreed = contract.contract
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
                # Others may write to the topic; what is no event has no place in the history.
                continue
            if event.model == model:
                # By the readings: a log that was read late has later times. And when it was found:
                # before, the readings of a new cluster were counted to others.
                yield PastEvent(event.found_at, event.kind, event.cluster, event.other)


@click.command()
@config_option
@model_option
@click.option(
    "--from",
    "first",
    type=MOMENT,
    help="Start of the later span (UTC). [default: the middle of the history]",
)
@click.option("--to", "end", type=MOMENT, help="End of the later span (UTC). [default: now]")
@click.option(
    "--before-from",
    type=MOMENT,
    help="Start of the earlier span (UTC). [default: as long before its end as the later span is]",
)
@click.option(
    "--before-to",
    type=MOMENT,
    help="End of the earlier span (UTC). [default: the start of the later one]",
)
@click.option(
    "--chance",
    type=click.FloatRange(0, 1),
    default=CHANCE,
    show_default=True,
    help="Show what has moved if its chance is below this.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", *FORMATS]),
    default="text",
    show_default=True,
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file. [default: standard output]",
)
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

    New, gone, parted and merged clusters; features whose mean in a cluster has moved, in units, and
    shares of clusters that have, with the chance of so large a difference where nothing has
    changed; by which client. Without options the two halves of the history are compared. Pictures
    need the extra `plot`, and --out.
    """
    config = load_config(file)
    contract = config.contract
    chosen = chosen_model(model, config.resolved.models, file)
    if form in FORMATS and out is None:
        raise SettingsError(f"a picture needs --out FILE.{form}")
    with closing(open_federation_log(config, read_only=True)) as log:
        ensure_topics(log, contract, config.log)
        after = (unix_seconds(first), unix_seconds(end))
        before = (unix_seconds(before_from), unix_seconds(before_to))
        found = logged_changes(log, config.resolved, chosen, after, before)
    if form in FORMATS and out is not None:
        draw_changes(_titled(found, config.server.client_names), contract, chance, out)
    elif form == "json":
        _write(_json_text(found, chance), out)
    else:
        titled = _titled(found, config.server.client_names)
        _write("\n".join(lines_of(titled, chance)), out)
    chances = [difference.chance for difference in found.moved] + [
        difference.chance for difference in found.shares
    ]
    moved = sum(known_chance < chance for known_chance in chances)
    note_written(out, len(found.new) + len(found.gone) + moved, "change")


def _titled(found: Changes, names: Mapping[str, str]) -> Changes:
    """The same with the names that the owners of clients gave them."""
    new = [replace(begun, clients=_titles(begun.clients, names)) for begun in found.new]
    shares = [replace(share, clients=_titles(share.clients, names)) for share in found.shares]
    return replace(found, new=new, shares=shares)


def _titles(clients: ByClient, names: Mapping[str, str]) -> ByClient:
    return [(names.get(client, client), share) for client, share in clients]


def _json_text(found: Changes, chance: float) -> str:
    return as_json(plain(changes_view(found, chance)))


def _write(text: str, out: Path | None) -> None:
    if out is None:
        click.echo(text)
        return
    try:
        with atomic_file(out, replace=True) as path:
            path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{out}: cannot be written: {error.strerror}") from None
