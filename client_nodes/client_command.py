"""`shoal client`: one client node."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.options import (
    CLIENT_NAME,
    config_option,
    log_json_option,
    until_idle_option,
    verbose_option,
)
from shoal.client_nodes.bootstrap import open_client
from shoal.client_nodes.node import ClientNode
from shoal.config.sections import ClientSettings, is_loopback
from shoal.config.settings import Config, load_config
from shoal.errors import ContractMissing, InvalidData, LogError
from shoal.protocol.reading_faults import Rejected, unusable
from shoal.runtime.service import Heartbeat, resumed, run, start_kernels, stopped_by_signals
from shoal.telemetry.events import log_event, start_logging
from shoal.telemetry.export import exported_signals, exporting, leave_the_machine
from shoal.transports import check_installed

if TYPE_CHECKING:
    from shoal.telemetry.metrics import ClientMetrics


KINDS_NAMED_MAX = 20
"""kinds of rejected readings that the line at the end names, those with the most readings"""
SERVER_START_S = 30.0
"""least wait, seconds, of a new client with --until-idle for a server that is started beside it"""


@click.command()
@config_option
@click.option(
    "--name",
    required=True,
    type=CLIENT_NAME,
    metavar="NAME",
    help="This client's name, always the same.",
)
@until_idle_option("reading")
@click.option(
    "--no-wait",
    is_flag=True,
    help="Go on at a first start though no server has published its contract yet.",
)
@click.option(
    "--after-restore",
    "former",
    type=CLIENT_NAME,
    metavar="FORMER",
    help="Replace the client FORMER, whose folder was restored together with the federation's log"
    " from copies of one moment, by NAME, a new name: its ledger is kept and charged for what it"
    " may have published since. Needs --lost-windows.",
)
@click.option(
    "--lost-windows",
    type=click.IntRange(min=0),
    metavar="N",
    help="The most windows of readings that FORMER can have published since that moment. Those"
    " that the readings left in its log fill are charged at least.",
)
@log_json_option
@verbose_option
def client(
    file: Path,
    name: str,
    until_idle: float | None,
    no_wait: bool,
    former: str | None,
    lost_windows: int | None,
    as_json: bool,
    verbose: bool,
) -> None:
    """Run a client node: make this site's readings private, learn them and publish what was learnt.

    At its first start it waits for the contract that the server publishes, and ends if its own
    differs, before it has published anything.

    The client reads its own log, which a `shoal producer` writes. The log, the noise key and the
    checkpoint are in the folder NAME within [client] folder of the federation file. Stop the client
    with Ctrl-C or SIGTERM, or kill it: started again under the same name it continues where it was;
    no reading is lost, none is learnt twice.
    """
    if (former is None) != (lost_windows is None):
        raise click.UsageError(
            "--after-restore and --lost-windows need each other: nothing on the machine knows how"
            " many windows were published since the copy. Readings since then over window_readings"
            " of [privacy], plus seconds since then over window_s, are the most"
        )
    config = load_config(file)
    contract = config.resolved
    check_installed(config.log)
    if config.readings.address:
        check_installed(config.readings)
    level = logging.DEBUG if verbose else logging.INFO
    start_logging(name, as_json, level, client=name)
    log_event("started", federation=config.contract.federation, contract=contract.digest)
    log_event("privacy", statement=contract.mode.describe().text())
    if former is not None and lost_windows is not None:
        from shoal.client_nodes.after_restore import (  # noqa: PLC0415 - after a loss only
            replace_client,
        )

        replace_client(config, former, name, lost_windows)
    # Compiled kernels take more memory than all the rest of a client.
    start_kernels(prefer_numpy=True)
    totals: dict[str, int] = {}
    rejected: list[Rejected] = []
    heartbeat = Heartbeat()
    longest_s = math.inf if until_idle is None else max(until_idle, SERVER_START_S)
    contract_by = None if no_wait else time.monotonic() + longest_s
    with stopped_by_signals() as stop, _shown_metrics(config, name, heartbeat) as metrics:
        run(
            lambda: _counted(config, name, metrics, heartbeat, totals, rejected, contract_by),
            stop,
            until_idle,
            on_step=lambda _: heartbeat.beat(),
        )
    # The numbers that may leave the site: those of readings and of updates alone.
    shareable = {"readings": totals.get("read", 0), "updates": totals.get("updates", 0)}
    log_event("stopped", **shareable)
    if rejected:
        _log_rejected(rejected)
    if as_json:
        click.echo(json.dumps({"client": name, **shareable}))
    if until_idle is not None and rejected and not totals.get("learned"):
        raise InvalidData(unusable(rejected))


def _log_rejected(rejected: list[Rejected]) -> None:
    kinds = [kind.text() for kind in rejected[:KINDS_NAMED_MAX]]
    if len(rejected) > KINDS_NAMED_MAX:
        kinds.append(f"{len(rejected) - KINDS_NAMED_MAX} kinds more")
    readings = sum(kind.readings for kind in rejected)
    log_event("rejected_in_all", logging.WARNING, readings=readings, kinds="; ".join(kinds))


@contextmanager
def _shown_metrics(
    config: Config, name: str, heartbeat: Heartbeat
) -> Iterator[ClientMetrics | None]:
    """Metrics that are served over HTTP, or exported; None where they are neither."""
    settings = config.client
    is_exported = "metrics" in exported_signals()
    if not settings.metrics_port and not is_exported:
        yield None
        return
    metrics = make_metrics(settings)
    if settings.metrics_port:
        # Only a client that serves metrics loads the libraries for it.
        from shoal.runtime.health import serve  # noqa: PLC0415 - loaded only with a metrics_port

        serve(settings.metrics_host, settings.metrics_port, metrics.registry, heartbeat)
        address = f"http://{settings.metrics_host}:{settings.metrics_port}/metrics"
        log_event("metrics_served", address=address)
    from shoal.telemetry.resource import Telemetry  # noqa: PLC0415 - loaded only with metrics

    resource = {"shoal.federation": config.contract.federation, "shoal.client": name}
    with exporting("client", Telemetry(metrics.registry, resource)):
        yield metrics


def make_metrics(settings: ClientSettings) -> ClientMetrics:
    """The metrics of a client; what is made from raw readings only where no other can read them."""
    from shoal.telemetry.metrics import (  # noqa: PLC0415 - loaded only with a metrics_port
        ClientMetrics,
    )

    stays_here = is_loopback(settings.metrics_host) and not leave_the_machine()
    return ClientMetrics(on_site=settings.metrics_on_site or stays_here)


@contextmanager
def _counted(
    config: Config,
    name: str,
    metrics: ClientMetrics | None,
    heartbeat: Heartbeat,
    totals: dict[str, int],
    rejected: list[Rejected],
    contract_by: float | None,
) -> Iterator[ClientNode]:
    """The resumed client, whose totals and rejected readings are copied when it is closed.

    `contract_by`: when a new client no longer waits for the federation's contract, monotonic; None:
    it does not wait.
    """
    heartbeat.beat()
    try:
        with resumed(
            open_client(config, name, metrics, needs_contract=contract_by is not None)
        ) as node:
            try:
                yield node
            finally:
                totals.update(node.totals)
                rejected[:] = node.rejected
    except ContractMissing as missing:
        if contract_by is not None and time.monotonic() >= contract_by:
            # `ContractMissing` would be tried again without end.
            raise LogError(str(missing)) from None
        raise
