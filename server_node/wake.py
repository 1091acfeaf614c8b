"""`shoal wake`: asks models in rounds to collect answers now."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click

from shoal.algorithms.registry import is_in_rounds
from shoal.config.contract import Contract
from shoal.config.models import check_models
from shoal.config.settings import load_config
from shoal.errors import SettingsError
from shoal.protocol.messages import Wake
from shoal.protocol.topics import ensure_topics
from shoal.protocol.validation import Validator
from shoal.transports import open_log
from shoal.transports.base import Log


@click.command()
@click.option(
    "--config", "file", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The federation file."
)
@click.option(
    "--model", "names", multiple=True, metavar="NAME", help="A model to wake; repeat for more. [default: all in rounds]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def wake(file: Path, names: tuple[str, ...], as_json: bool) -> None:
    """Wake models in rounds: one round to see whether the rows have moved, and more if they have.

    The request goes into the federation's log, where a running server reads it at once and one that is started later
    reads it then. It has no effect on a model whose round is open.
    """
    config = load_config(file)
    check_models(config.contract)
    chosen = names or tuple(model.name for model in config.contract.models if is_in_rounds(model.algorithm))
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        request_wake(config.contract, log, chosen)
    named = ", ".join(chosen) or "no model"
    click.echo(json.dumps({"wake_requested": list(chosen)}) if as_json else f"wake requested: {named}")


def request_wake(contract: Contract, log: Log, names: Sequence[str]) -> None:
    """Publish a wake request for each of these models; the log has the topics.

    Raises `SettingsError` for a model that has no rounds.
    """
    validator = Validator(contract)
    in_rounds = [model.name for model in contract.models if is_in_rounds(model.algorithm)]
    for name in names:
        if name not in in_rounds:
            known = ", ".join(in_rounds) or "none"
            raise SettingsError(f"no model {name!r} in rounds in this federation; in rounds: {known}")
    for name in names:
        wake = Wake(contract.federation, contract.digest, name)
        validator.check_wake(wake)
        log.publish(contract.updates_topic, wake.encode(), contract.update_key(name), Wake.headers())
    log.flush()
