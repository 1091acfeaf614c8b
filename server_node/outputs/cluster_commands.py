"""`shoal name`, `confirm` and `mute`: requests about one cluster, by its lasting identity."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import click

from shoal.cli.options import MOMENT, config_option, json_option
from shoal.server_node.ingest.request_publishing import (
    alerts_request,
    publish_requests,
    request_name,
)
from shoal.server_node.outputs.command_parts import opened_log, print_result

HOUR_S = 3600

cluster_model_option = click.option(
    "--model", metavar="NAME", help="The model of the cluster. [default: the first one of the file]"
)


@click.command()
@config_option
@cluster_model_option
@json_option
@click.argument("cluster", type=click.IntRange(min=0))
@click.argument("name")
def name(file: Path, model: str | None, as_json: bool, cluster: int, name: str) -> None:
    """Give the cluster with the identity CLUSTER the name NAME; an empty NAME takes it away.

    The request goes into the federation's log, where a running server reads it at once and one that
    is started later reads it then. A cluster that is not known is reported in the server's log and
    in the rejected topic.
    """
    with opened_log(file) as (config, log):
        chosen = model or next(iter(config.resolved.models))
        request_name(config, log, chosen, cluster, name)
    print_result(
        as_json,
        {"model": chosen, "cluster": cluster, "name": name},
        f"name requested for cluster {cluster} of {chosen}: {name!r}",
    )


@click.command()
@config_option
@cluster_model_option
@click.option("--undo", is_flag=True, help="It raises alerts again.")
@json_option
@click.argument("cluster", type=click.IntRange(min=0))
def confirm(file: Path, model: str | None, undo: bool, as_json: bool, cluster: int) -> None:
    """Confirm the cluster with the identity CLUSTER as normal: it raises no more alerts.

    Its events are still published, and marked as muted; `shoal events forward` and the metrics of
    alerts leave them out. That stays with the identity of the cluster, as a name does.
    """
    _request_alerts(file, model, cluster, "alert" if undo else "confirm", 0.0, as_json)


@click.command()
@config_option
@cluster_model_option
@click.option("--until", type=MOMENT, help="No alerts until this time (UTC).")
@click.option(
    "--hours",
    type=click.FloatRange(min=0, max=87_600, min_open=True),
    help="No alerts for this many hours.",
)
@click.option("--undo", is_flag=True, help="It raises alerts again.")
@json_option
@click.argument("cluster", type=click.IntRange(min=0))
def mute(
    file: Path,
    model: str | None,
    until: datetime | None,
    hours: float | None,
    undo: bool,
    as_json: bool,
    cluster: int,
) -> None:
    """Raise no alerts for the cluster with the identity CLUSTER for a time; `shoal confirm` for
    good."""
    if [until is not None, hours is not None, undo].count(True) != 1:
        raise click.UsageError("give one of --until TIME, --hours NUMBER and --undo")
    if undo:
        _request_alerts(file, model, cluster, "alert", 0.0, as_json)
        return
    if until is not None:
        end = until.replace(tzinfo=UTC).timestamp()
    else:
        end = time.time() + HOUR_S * (hours or 0)
    if end <= time.time():
        raise click.UsageError(f"--until {until}: has passed; times are UTC")
    _request_alerts(file, model, cluster, "mute", end, as_json)


def _request_alerts(
    file: Path, model: str | None, cluster: int, action: str, until: float, as_json: bool
) -> None:
    with opened_log(file) as (config, log):
        chosen = model or next(iter(config.resolved.models))
        request = alerts_request(config.resolved, chosen, cluster, action, until)
        publish_requests(config, log, [request])
    print_result(
        as_json,
        {"model": chosen, "cluster": cluster, "action": action, "until": until},
        f"{action} requested for cluster {cluster} of {chosen}",
    )
