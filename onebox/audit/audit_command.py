"""`shoal privacy audit`: attacks on what real clients publish, and what they prove of the privacy
loss."""

from __future__ import annotations

import json
import logging
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.options import config_option_as, json_option
from shoal.config.settings import Config, load_config
from shoal.errors import MissingExtra

if TYPE_CHECKING:
    from shoal.onebox.audit.statistics import Finding

SHIPPED = ("federation.toml", "users.toml")
REFUTED = 1
"""exit code when a claim is refuted"""


@click.command(epilog="Exit code 1: a claim is refuted.")
@config_option_as(
    "file",
    "The federation file whose claims are audited; without it those of two small federations "
    "that come with shoal, whose privacy units are a reading and a user.",
)
@click.option(
    "--trials",
    type=click.IntRange(min=10),
    default=2000,
    show_default=True,
    help="Trials of each attack on epsilon.",
)
@click.option(
    "--kills",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Kills of a client that releases windows.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Repeat readings and guesses; clients still draw new keys.",
)
@json_option
@click.pass_context
def audit(
    context: click.Context,
    file: Path | None,
    trials: int,
    kills: int,
    seed: int | None,
    as_json: bool,
) -> None:
    """Attack what clients publish, and compare the privacy loss found with the epsilon that is
    declared.

    Clients with keys of their own run in a scratch folder on made-up readings, under the contract
    of the federation file; its logs, keys and ledgers are not touched. Each attack prints its
    trials, the epsilon that fits its guesses best, its lower and upper bound (Clopper-Pearson, each
    wrong in at most one of 1000 findings), and the verdict. An audit can refute a claim and never
    prove it. The exit code is 1 if a claim is refuted.
    """
    # `shoal privacy report` loads this command too, but neither nodes nor attacks.
    import numpy as np  # noqa: PLC0415 - for attacks only

    try:
        from shoal.onebox.audit.audits import run_audits  # noqa: PLC0415 - loads nodes
    except ModuleNotFoundError as missing:
        raise MissingExtra("`shoal privacy audit`", "masked") from missing
    from shoal.onebox.audit.statistics import ALPHA  # noqa: PLC0415 - loads NumPy

    findings: list[Finding] = []
    # What the audited nodes log, such as alarms about faults that an audit makes, is no result.
    logging.getLogger("shoal").addHandler(logging.NullHandler())
    generator = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory(prefix="shoal-audit-") as folder:
        for config in _configs(file, Path(folder)):
            scratch = Path(folder) / config.contract.federation
            for finding in run_audits(config, scratch, trials, kills, generator):
                findings.append(finding)
                if not as_json:
                    click.echo(finding.line())
    refuted = [finding for finding in findings if finding.refuted]
    if as_json:
        found = {
            "alpha": ALPHA,
            "refuted": len(refuted),
            "audits": [finding.as_dict() for finding in findings],
        }
        click.echo(json.dumps(found, indent=2))
    else:
        click.echo(f"{len(findings)} audits, {len(refuted)} claims refuted")
    if refuted:
        context.exit(REFUTED)


def _configs(file: Path | None, folder: Path) -> list[Config]:
    """The federations to audit: that of the file, or those that come with shoal, which are written
    into `folder`."""
    chosen = [file]
    if file is None:
        chosen = [folder / name for name in SHIPPED]
        for name in SHIPPED:
            (folder / name).write_text(
                files("shoal.onebox.audit").joinpath(name).read_text("utf-8"), encoding="utf-8"
            )
    return [load_config(path) for path in chosen if path is not None]
