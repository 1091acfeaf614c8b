"""`shoal helper`: one helper of a federation with masked counts, as a process of its own."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import click

from shoal.cli.options import config_option, log_json_option, until_idle_option, verbose_option
from shoal.config.settings import load_config
from shoal.helper_node.metrics import HelperMetrics
from shoal.protocol.signatures import read_keys
from shoal.runtime.health import serve
from shoal.runtime.service import Heartbeat, resumed, run, stopped_by_signals
from shoal.telemetry.events import log_event, start_logging
from shoal.transports import check_installed


@click.command()
@config_option
@click.option(
    "--key",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The helper's secret key, which `shoal keys helper` makes.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of its state, which was made with the key. [default: that of the key]",
)
@click.option(
    "--terms",
    is_flag=True,
    help="Print what a helper that is another program needs of the file, as JSON, and end.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Serve /metrics and /livez here; 0: do not.",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address at which they are served."
)
@until_idle_option("message")
@log_json_option
@verbose_option
def helper(  # noqa: PLR0913, PLR0917 - one argument for each option
    file: Path,
    key: Path | None,
    folder: Path | None,
    terms: bool,
    port: int,
    host: str,
    until_idle: float | None,
    as_json: bool,
    verbose: bool,
) -> None:
    """Run a helper: take the masks away from sums of counts, and add the noise that protects every
    client.

    It needs the federation file and its own key, and nothing of the server. Clients rely on it that
    the party that runs it does not collude with those who run the server. Stop it with Ctrl-C or
    SIGTERM, or kill it: started again it continues from its checkpoint, and answers no round twice
    with different numbers. Rounds wait while it is away.
    """
    # It needs an extra, and its help does not.
    from shoal.helper_node.bootstrap import open_helper  # noqa: PLC0415 - an extra
    from shoal.helper_node.terms import helper_terms  # noqa: PLC0415 - as above

    config = load_config(file)
    if terms:
        click.echo(json.dumps(helper_terms(config.resolved), indent=2))
        return
    if key is None:
        raise click.UsageError("name the helper's key with --key, or ask for --terms")
    check_installed(config.log)
    secret = read_keys(key)[0]
    metrics = HelperMetrics()
    heartbeat = Heartbeat()
    start_logging("helper", as_json, logging.DEBUG if verbose else logging.INFO)
    log_event("started", federation=config.contract.federation, contract=config.contract.digest)
    rounds: dict[str, int] = {}
    with stopped_by_signals() as stop:
        if port:
            serve(host, port, metrics.registry, heartbeat)
            log_event("metrics_served", address=f"http://{host}:{port}/metrics")
        run(
            lambda: resumed(open_helper(config, secret, folder or key.parent, metrics, rounds)),
            stop,
            until_idle,
            on_step=lambda _: heartbeat.beat(),
        )
    log_event("stopped", models=len(rounds))
    if as_json:
        click.echo(json.dumps({"rounds": rounds}))
