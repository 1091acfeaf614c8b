"""`shoal wake`: have models in rounds look at their clients' rows now."""

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
@click.option("--model", "names", multiple=True, metavar="NAME", help="Which one; again for more. [all in rounds]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def wake(file: Path, names: tuple[str, ...], as_json: bool) -> None:
    """Wake models in rounds: one round to see whether the rows have moved, and more if they have.

    The wish goes into the federation's log, where a running server finds it at once and one that is started later
    finds it then. A model that is calling already goes on as it was.
    """
    config = load_config(file)
    check_models(config.contract)
    chosen = names or tuple(model.name for model in config.contract.models if is_in_rounds(model.algorithm))
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        request_wake(config.contract, log, chosen)
    click.echo(json.dumps({"woken": list(chosen)}) if as_json else f"asked to wake: {', '.join(chosen) or 'none'}")


def request_wake(contract: Contract, log: Log, names: Sequence[str]) -> None:
    """Ask for these models to be woken; the topics are there. Raises `SettingsError` for one that has no rounds."""
    border = Validator(contract)
    in_rounds = [model.name for model in contract.models if is_in_rounds(model.algorithm)]
    for name in names:
        if name not in in_rounds:
            known = ", ".join(in_rounds) or "none"
            raise SettingsError(f"no model {name!r} in rounds in this federation; in rounds: {known}")
    for name in names:
        word = Wake(contract.federation, contract.digest, name)
        border.check_wake(word)
        log.publish(contract.updates_topic, word.encode(), name.encode(), Wake.headers())
    log.flush()
