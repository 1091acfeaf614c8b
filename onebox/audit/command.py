"""`shoal privacy audit`: attacks on what real clients publish, and what they prove of the privacy loss."""

from __future__ import annotations

import json
import tempfile
from importlib.resources import files
from pathlib import Path

import click
import numpy as np

from onebox.audit.suite import run_audits
from shoal.cli.options import json_option
from shoal.config.models import check_models
from shoal.config.settings import Config, load_config
from shoal.privacy.audit.finding import Finding
from shoal.privacy.audit.statistics import ALPHA

REFUTED = 1
"""exit code when a claim is refuted"""


@click.command(epilog="Exit code 1: a claim is refuted.")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The federation file whose claims are audited; without it those of a small federation that comes with shoal.",
)
@click.option(
    "--trials", type=click.IntRange(min=10), default=2000, show_default=True, help="Trials of each attack on epsilon."
)
@click.option(
    "--kills",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Kills of a client that releases windows.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Repeat readings and guesses; clients still draw new keys.")
@json_option
@click.pass_context
def audit(context: click.Context, file: Path | None, trials: int, kills: int, seed: int | None, as_json: bool) -> None:
    """Attack what clients publish, and compare the privacy loss found with the epsilon that is declared.

    Clients with keys of their own run in a scratch folder on made-up readings, under the contract of the federation
    file; its logs, keys and ledgers are not touched. Each attack prints its trials, the epsilon that fits its guesses
    best, the lower bound of epsilon that they prove (Clopper-Pearson, wrong in at most one of 1000 audits), and the
    verdict. An audit can refute a claim and never prove it. The exit code is 1 if a claim is refuted.
    """
    config = _config(file)
    findings: list[Finding] = []
    with tempfile.TemporaryDirectory(prefix="shoal-audit-") as folder:
        for finding in run_audits(config, Path(folder), trials, kills, np.random.default_rng(seed)):
            findings.append(finding)
            if not as_json:
                click.echo(finding.line())
    refuted = [finding for finding in findings if finding.refuted]
    if as_json:
        found = {"alpha": ALPHA, "refuted": len(refuted), "audits": [finding.as_dict() for finding in findings]}
        click.echo(json.dumps(found, indent=2))
    else:
        click.echo(f"{len(findings)} audits, {len(refuted)} claims refuted")
    if refuted:
        context.exit(REFUTED)


def _config(file: Path | None) -> Config:
    if file is None:
        with tempfile.TemporaryDirectory(prefix="shoal-audit-") as folder:
            file = Path(folder) / "federation.toml"
            file.write_text(files("onebox.audit").joinpath("federation.toml").read_text("utf-8"), encoding="utf-8")
            return load_config(file)
    config = load_config(file)
    check_models(config.contract)
    return config
