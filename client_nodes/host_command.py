"""`shoal host`: the clients of a site in one process."""

from __future__ import annotations

import gc
import json
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from shoal.cli.options import (
    CLIENT_NAME,
    config_option,
    log_json_option,
    until_idle_option,
    verbose_option,
)
from shoal.client_nodes.client_command import SERVER_START_S
from shoal.client_nodes.host import Host, left_out, open_host, served_none
from shoal.config.sections import is_loopback
from shoal.config.settings import Config, load_config
from shoal.runtime.service import Heartbeat, run, start_kernels, stopped_by_signals
from shoal.telemetry.events import log_event, start_logging
from shoal.telemetry.export import exported_signals, exporting, leave_the_machine
from shoal.telemetry.resource import Telemetry
from shoal.transports import check_installed

if TYPE_CHECKING:
    from shoal.client_nodes.group_host import GroupHost
    from shoal.client_nodes.host_metrics import HostMetrics

GARBAGE_THRESHOLDS: Final = (20_000, 20, 50)
"""thresholds of Python's search for garbage: what a host keeps of thousands of clients is no
garbage, and to search it as often as by default takes a tenth of the time of a reading"""


@click.command()
@config_option
@click.option(
    "--name",
    "names",
    multiple=True,
    type=CLIENT_NAME,
    metavar="NAME",
    help="A client to serve; may be repeated. [default: all clients of the site, new ones too]",
)
@click.option(
    "--clients-max",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    help="Most clients that are served; any beyond are refused.",
)
@until_idle_option("reading")
@click.option(
    "--no-wait",
    is_flag=True,
    help="Begin new clients though no server has published its contract yet.",
)
@log_json_option
@verbose_option
def host(
    file: Path,
    names: tuple[str, ...],
    clients_max: int,
    until_idle: float | None,
    no_wait: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    """Run the clients of a site in one process, each as `shoal client` would run it.

    Without --name it serves every client that has a readings log in the folder of the site, as
    `shoal producer` makes them, and begins new ones within seconds. With `client` in [host] the
    readings of all clients come in one log, whose records name them. Each client has its own
    folder, noise key, ledger and checkpoint, the same as in a process of its own, so that a client
    with a log of its own may be moved between the two. An error of one client leaves the others
    alone. Stop the host with Ctrl-C or SIGTERM, or kill it: started again, every client continues
    where it was.
    """
    config = load_config(file)
    contract = config.resolved
    check_installed(config.log)
    if config.readings.address:
        check_installed(config.readings)
    if config.host.client:
        check_installed(config.host)
    start_logging("host", as_json, logging.DEBUG if verbose else logging.INFO)
    log_event("started", federation=config.contract.federation, contract=contract.digest)
    log_event("privacy", statement=contract.mode.describe().text())
    # As a client has them: a host may run beside sensors on a small machine.
    start_kernels(prefer_numpy=True)
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    heartbeat = Heartbeat()
    longest_s = math.inf if until_idle is None else max(until_idle, SERVER_START_S)
    contract_by = None if no_wait else time.monotonic() + longest_s
    with stopped_by_signals() as stop, _shown_metrics(config, heartbeat) as metrics:
        served = _host_of(config)(config, names, clients_max, metrics, contract_by=contract_by)
        run(
            lambda: open_host(served),
            stop,
            until_idle,
            on_step=lambda _: heartbeat.beat(),
        )
    totals = served.totals()
    # The numbers that may leave the site: those of readings and of updates alone.
    shareable = {"readings": totals["read"], "updates": totals["updates"]}
    log_event("stopped", clients=len(served.clients), **shareable)
    if as_json:
        click.echo(json.dumps({"clients": len(served.clients), **shareable}))
    # One that was stopped while it waited for its first device has done what it was asked to.
    if not served.clients and not stop.is_set():
        raise served_none(config)
    failures = served.failures()
    if failures:
        raise left_out(failures, len(served.clients), config.server.client_names)


def _host_of(config: Config) -> type[Host | GroupHost]:
    if not config.host.group:
        return Host
    # A host that is alone with its readings needs nothing of how partitions move.
    from shoal.client_nodes.group_host import GroupHost  # noqa: PLC0415 - groups only

    return GroupHost


@contextmanager
def _shown_metrics(config: Config, heartbeat: Heartbeat) -> Iterator[HostMetrics | None]:
    """Metrics that are served over HTTP, or exported; None where they are neither."""
    settings = config.client
    is_exported = "metrics" in exported_signals()
    if not settings.metrics_port and not is_exported:
        yield None
        return
    # Only a host that shows metrics loads the libraries for it.
    from shoal.client_nodes.host_metrics import HostMetrics  # noqa: PLC0415 - for metrics alone

    stays_here = is_loopback(settings.metrics_host) and not leave_the_machine()
    on_site = settings.metrics_on_site or stays_here
    metrics = HostMetrics(on_site, config.server.client_names)
    if settings.metrics_port:
        from shoal.runtime.health import serve  # noqa: PLC0415 - loaded only with a metrics_port

        serve(settings.metrics_host, settings.metrics_port, metrics.registry, heartbeat)
        address = f"http://{settings.metrics_host}:{settings.metrics_port}/metrics"
        log_event("metrics_served", address=address)
    resource = {"shoal.federation": config.contract.federation}
    with exporting("host", Telemetry(metrics.registry, resource)):
        yield metrics
