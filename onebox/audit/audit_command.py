"""`shoal privacy audit`: attacks on what real clients publish, and what they prove of the privacy
loss."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import click
import numpy as np

from shoal.algorithms.rounds.kmeans import KMEANS
from shoal.cli.options import config_option_as, json_option
from shoal.config.resolved import ResolvedModel
from shoal.config.settings import Config, load_config
from shoal.errors import SettingsError
from shoal.onebox.audit.attacks import audit_count_mechanism, audit_row_mechanism
from shoal.onebox.audit.canaries import audit_canaries
from shoal.onebox.audit.kills import audit_kills
from shoal.onebox.audit.plans import audit_plans
from shoal.onebox.audit.regressions import audit_regressions
from shoal.onebox.audit.rounds import audit_rounds
from shoal.onebox.audit.statistics import ALPHA, Finding
from shoal.onebox.audit.windows import (
    Second,
    audit_messages,
    audit_rejected,
    audit_times,
    audit_windows,
)

PRECISION_TRIALS = 500
"""outputs of the precision attack for every trial of the others: it takes many to see a rare hole
"""
# Few: this audit looks for a count that must not occur at all, so that no chance is to be bounded.
REJECTED_WINDOWS = 20
TIMES_WINDOWS = 3


def run_audits(
    config: Config, folder: Path, trials: int, kills: int, generator: np.random.Generator
) -> Iterator[Finding]:
    """Every audit that fits the contract, in an empty `folder`; each finding as soon as it is
    there.

    Raises `SettingsError` for a mode without a guarantee: there is no claim to refute.
    """
    contract = config.resolved
    if not contract.mode.formal:
        raise SettingsError(
            f'mode = "{contract.mode.name}" claims no epsilon, so there is nothing to audit'
        )
    if contract.mode.masked:
        yield from _masked_audits(config, folder, trials, kills, generator)
        return
    counting = contract.counted
    for model in counting:
        yield from _count_audits(config, model, folder, trials, generator)
    if counting:
        yield audit_rejected(config, folder / "rejected", REJECTED_WINDOWS, generator)
        yield audit_times(config, folder / "times", TIMES_WINDOWS, generator)
        yield from audit_regressions(config, folder / "regressions", generator)
    if contract.takes_rows:
        yield from audit_row_mechanism(contract, trials, PRECISION_TRIALS * trials, generator)
    for model in contract.models.values():
        if model.algorithm is KMEANS:
            yield audit_rounds(config, model, folder / f"{model.name}-rounds", generator)
    yield audit_canaries(config, folder / "canaries", generator)
    if not kills:
        return
    # Last, because they start a process for each kill and take the longest.
    for model in counting:
        yield from audit_kills(config, model, folder / f"{model.name}-kills", kills, generator)


def _count_audits(
    config: Config,
    model: ResolvedModel,
    folder: Path,
    trials: int,
    generator: np.random.Generator,
) -> Iterator[Finding]:
    """The audits of a model of private counts: its mechanism, plans of counting made to hurt, whole
    clients whose windows differ by one privacy unit, and the messages that they publish."""
    contract = config.resolved
    yield from audit_count_mechanism(contract, model, trials, generator)
    yield audit_plans(contract, model, generator)
    seconds: list[Second] = ["elsewhere", "rejected"]
    if contract.learns_gaps and contract.width > 1:
        seconds.append("incomplete")
    if contract.mode.unit.is_user:
        seconds.append("other times")
    for second in seconds:
        scratch = folder / f"{model.name}-{second.replace(' ', '-')}"
        yield audit_windows(config, model, scratch, trials, generator, second)
    yield from audit_messages(config, model, folder / f"{model.name}-messages", trials, generator)


def _masked_audits(
    config: Config, folder: Path, trials: int, kills: int, generator: np.random.Generator
) -> Iterator[Finding]:
    """The audits of masked counts: what all who collude find, and kills of client, helper and
    server."""
    from shoal.onebox.audit.kills import (  # noqa: PLC0415 - needs the extra `masked`
        audit_masked_kills,
    )
    from shoal.onebox.audit.masked import audit_masked  # noqa: PLC0415 - needs the extra `masked`

    for model in config.resolved.counted:
        yield audit_plans(config.resolved, model, generator)
        yield from audit_masked(config, model, folder / model.name, trials, generator)
        if kills:
            yield from audit_masked_kills(
                config, model, folder / f"{model.name}-kills", kills, generator
            )


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
