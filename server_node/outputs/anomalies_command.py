"""`shoal anomalies`: what was unusual in a span of time, as text or JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

import click

from shoal.cli.options import MOMENT, chosen_model, config_option, model_option
from shoal.config.contract import without_unit
from shoal.config.settings import load_config
from shoal.protocol.events import duration
from shoal.protocol.published_contract import contract_in
from shoal.protocol.topics import ensure_topics
from shoal.runtime.logs import open_federation_log
from shoal.server_node.history.anomalies import (
    CHANCE,
    EARLIER_MIN,
    Anomalies,
    Anomaly,
    ApartState,
    ClientAnomaly,
    FeatureAnomaly,
    HourAnomaly,
    ShareScale,
    StateAnomaly,
    UnseenChange,
    find_anomalies,
    listed,
    unseen_changes,
    whole_span,
)
from shoal.server_node.history.changes import utc_text
from shoal.server_node.history.logged import LoggedHistory
from shoal.server_node.outputs.command_parts import chance_text, percent_text, unix_seconds
from shoal.server_node.outputs.encoding import as_json, plain
from shoal.server_node.outputs.history_views import anomalies_view

DIGITS: Final = 3
UNSEEN_MAX: Final = 6
"""clients of whom it is said what change of their state was not to be seen"""


def lines_of(anomalies: Anomalies, chance: float = CHANCE) -> list[str]:
    """What was unusual as text, a line for each whose chance is below `chance`."""
    earlier = len(anomalies.earlier)
    lines = [f"{anomalies.model}: {anomalies.span.text()}, {anomalies.readings:,} readings (UTC)"]
    if earlier < EARLIER_MIN:
        return [
            *lines,
            f"There are {earlier} earlier spans like it: with fewer than {EARLIER_MIN} nothing is"
            " known of chance.",
        ]
    lines.append(
        f"beside {earlier} earlier spans at this time, back to"
        f" {utc_text(anomalies.earlier[-1].first)}"
    )
    parts = {
        "Clients": _lines(anomalies.clients, _client_line, chance),
        "Features": _lines(anomalies.features, _feature_line, chance),
        "States": _lines(anomalies.states, _state_line, chance),
        "Hours": _lines(anomalies.hours, _hour_line, chance),
    }
    for title, of_kind in parts.items():
        lines += [title, *of_kind] if of_kind else []
    if not anomalies.has_clients:
        lines.append("There are too many pairs of client and cluster to keep them in the history.")
    more = "else " if any(parts.values()) else ""
    lines.append(
        f"Nothing {more}has a chance below {percent_text(chance)}: {anomalies.compared} figures"
        " were compared with those of the earlier spans (Student's t), and a chance is that of any"
        " of them."
    )
    lines += [_apart_line(state) for state in anomalies.apart]
    lines += _unseen_lines(unseen_changes(anomalies, chance))
    if anomalies.figures:
        lines.append(
            f"States of clients and features: of bins of six hours, {anomalies.wide.text()}."
        )
    return lines


def _apart_line(state: ApartState) -> str:
    """Which earlier spans a state was compared with, and why with no more."""
    compared = "It is compared with no earlier span"
    if state.earlier:
        spans = "span" if state.earlier == 1 else "spans"
        compared = f"It is compared with {state.earlier} earlier {spans}, of the time since then"
    return (
        f"Readings of {state.title} are told apart from those of other clusters since"
        f" {utc_text(state.since)} alone. {compared}."
    )


def _lines(found: Sequence[Anomaly], line: Callable[[Anomaly], str], chance: float) -> list[str]:
    return [f"  {line(anomaly)}" for anomaly in listed(found, chance)]


def _unseen_lines(unseen: Sequence[UnseenChange]) -> list[str]:
    """The smallest change of the state of a client that is seen."""
    if not unseen:
        return []
    clients = []
    for change in unseen[:UNSEEN_MAX]:
        if change.least > change.readings:
            clients.append(f"{change.client}: none of its {change.readings:,} readings would be")
        else:
            clients.append(f"{change.client}: from {change.least:,} of {change.readings:,} on")
    if len(unseen) > UNSEEN_MAX:
        clients.append(f"{len(unseen) - UNSEEN_MAX:,} other clients: from fewer on")
    return [
        "Readings of a client in another state than usual are listed where they are many enough:"
        f" {'; '.join(clients)}. Fewer cannot be told from how much its earlier spans vary."
    ]


def _client_line(client: ClientAnomaly) -> str:
    if not client.title:
        figures = f"{client.observed:,.0f} readings, expected {client.expected:,.0f}"
        return f"{client.client}: {figures}, {chance_text(client.chance)}"
    return f"{client.client}: {client.title}, {_shares(client)}"


def _feature_line(feature: FeatureAnomaly) -> str:
    unit = f" {feature.unit}" if feature.unit else ""
    figures = f"{feature.observed:.{DIGITS}g}{unit}, expected {feature.expected:.{DIGITS}g}{unit}"
    name = without_unit(feature.feature, feature.unit)
    return f"{name} in {feature.title}: {figures}, {chance_text(feature.chance)}"


def _state_line(state: StateAnomaly) -> str:
    return f"{state.title}: {_shares(state)}"


def _hour_line(hour: HourAnomaly) -> str:
    return f"{utc_text(hour.start)} ({duration(hour.seconds)}): {hour.title}, {_shares(hour)}"


def _shares(anomaly: ClientAnomaly | StateAnomaly | HourAnomaly) -> str:
    shares = f"{100 * anomaly.observed:.1f} %, expected {100 * anomaly.expected:.1f} %"
    return f"{shares}, {chance_text(anomaly.chance)}"


@click.command()
@config_option
@model_option
@click.option(
    "--from",
    "first",
    type=MOMENT,
    help="Start of the span (UTC). [default: a day before its end]",
)
@click.option("--to", "end", type=MOMENT, help="End of the span (UTC). [default: now]")
@click.option(
    "--chance",
    type=click.FloatRange(0, 1),
    default=CHANCE,
    show_default=True,
    help="Show what has a chance below this.",
)
@click.option("--json", "json_", is_flag=True, help="Print JSON, as /v1/anomalies has it.")
def anomalies(
    file: Path,
    model: str | None,
    first: datetime | None,
    end: datetime | None,
    chance: float,
    json_: bool,
) -> None:
    """Show what was unusual in a span of time: clients, features, states and hours, the least
    likely first.

    Each figure (the share of a state, the readings of a client, the mean of a feature within a
    state) is compared with the same of earlier spans at the same time of the day, of days of the
    same kinds or of earlier weeks.
    """
    config = load_config(file)
    chosen = chosen_model(model, config.resolved.models, file)
    with closing(open_federation_log(config, read_only=True)) as log:
        ensure_topics(log, config.contract, config.log)
        agreed = contract_in(log, config.resolved)
        source = LoggedHistory(log, agreed, chosen)
        span = whole_span(source, chosen, unix_seconds(first), unix_seconds(end))
        scale = ShareScale.of(agreed.models[chosen])
        found = find_anomalies(source, agreed.contract, chosen, span, scale)
    if json_:
        click.echo(as_json(plain(anomalies_view(found, chance))))
    else:
        click.echo("\n".join(lines_of(_titled(found, config.server.client_names), chance)))


def _titled(anomalies: Anomalies, names: Mapping[str, str]) -> Anomalies:
    """The same with the names that the owners of clients gave them."""
    clients = [
        replace(anomaly, client=names.get(anomaly.client, anomaly.client))
        for anomaly in anomalies.clients
    ]
    figures = [
        figure._replace(client=names.get(figure.client, figure.client))
        for figure in anomalies.figures
    ]
    return replace(anomalies, clients=clients, figures=figures)
