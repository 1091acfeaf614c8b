"""`shoal wake`: has models in rounds collect answers now."""

from __future__ import annotations

from pathlib import Path

import click

from shoal.cli.options import config_option, json_option
from shoal.server_node.ingest.request_publishing import request_wake
from shoal.server_node.outputs.command_parts import opened_log, print_result


@click.command()
@config_option
@click.option(
    "--model",
    "names",
    multiple=True,
    metavar="NAME",
    help="A model to wake; repeat for more. [default: all in rounds]",
)
@json_option
def wake(file: Path, names: tuple[str, ...], as_json: bool) -> None:
    """Wake models in rounds: one round to see whether the rows have moved, and more if they have.

    The request goes into the federation's log, where a running server reads it at once and one that
    is started later reads it then. It has no effect on a model whose round is open.
    """
    with opened_log(file) as (config, log):
        chosen = list(names) or [model.name for model in config.resolved.in_rounds]
        request_wake(config, log, chosen)
    named = ", ".join(chosen) or "no model"
    print_result(as_json, {"wake_requested": chosen}, f"wake requested: {named}")
