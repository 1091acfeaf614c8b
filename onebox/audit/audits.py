"""The audits that fit a contract, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from shoal.algorithms.rounds.kmeans import KMEANS
from shoal.config.resolved import ResolvedModel
from shoal.config.settings import Config
from shoal.errors import SettingsError
from shoal.onebox.audit.attacks import audit_count_mechanism, audit_row_mechanism
from shoal.onebox.audit.canaries import audit_canaries
from shoal.onebox.audit.kills import audit_kills
from shoal.onebox.audit.plans import audit_plans
from shoal.onebox.audit.regressions import audit_regressions
from shoal.onebox.audit.rounds import audit_rounds
from shoal.onebox.audit.statistics import Finding
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
