"""All audits of a federation, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from onebox.audit.canaries import audit_canaries
from onebox.audit.kills import audit_kills
from onebox.audit.mechanisms import audit_count_mechanism, audit_row_mechanism, learns_rows
from onebox.audit.rounds import audit_rounds
from onebox.audit.windows import audit_rejected, audit_windows
from shoal.algorithms.rounds.kmeans import KMEANS
from shoal.config.privacy import learns_from_counts, privacy_mode
from shoal.config.settings import Config
from shoal.errors import SettingsError
from shoal.privacy.audit.finding import Finding

PRECISION_TRIALS = 500
"""outputs of the precision attack for every trial of the others: it takes many to see a rare hole"""
REJECTED_WINDOWS = 20


def run_audits(
    config: Config, folder: Path, trials: int, kills: int, generator: np.random.Generator
) -> Iterator[Finding]:
    """Every audit that fits the contract, in an empty `folder`; each finding as soon as it is there.

    Raises `SettingsError` for a mode without a guarantee: there is no claim to refute.
    """
    contract = config.contract
    if not privacy_mode(contract).formal:
        raise SettingsError(f'mode = "{contract.privacy.mode}" claims no epsilon, so there is nothing to audit')
    counting = [model for model in contract.models if learns_from_counts(model)]
    for model in counting:
        yield from audit_count_mechanism(contract, model, trials, generator)
        for second in ("elsewhere", "rejected"):
            yield audit_windows(config, model, folder / f"{model.name}-{second}", trials, generator, second)
    if counting:
        yield audit_rejected(config, folder / "rejected", REJECTED_WINDOWS, generator)
    if learns_rows(contract):
        yield from audit_row_mechanism(contract, trials, PRECISION_TRIALS * trials, generator)
    for model in contract.models:
        if model.algorithm == KMEANS.name:
            yield audit_rounds(config, model, folder / f"{model.name}-rounds", generator)
    yield audit_canaries(config, folder / "canaries", generator)
    for model in counting if kills else ():
        yield from audit_kills(config, model, folder / f"{model.name}-kills", kills, generator)
