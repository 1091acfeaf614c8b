"""Runs a replay: the parts that are left, then rounds, and the digest of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from shoal.config.resolved import ResolvedModel
from shoal.onebox.replay.engine import Engine, LocalEngine, remove
from shoal.onebox.replay.plan import ReplayPlan
from shoal.onebox.replay.results import (
    PartSummary,
    digest_of,
    learnt,
    records,
)
from shoal.onebox.replay.rounds import RoundsResult, run_rounds

ENGINES = ("local", "spark")


class ReplayResult(NamedTuple):
    """The result of a replay."""

    totals: PartSummary
    """totals over all parts"""
    digest: str
    """SHA-256 over all updates in the canonical order: the same for every engine and every number
    of workers"""
    models: dict[str, RoundsResult]
    """the models in rounds by name"""


class Progress(NamedTuple):
    """Functions that a replay calls while it runs, at any rate."""

    readings: Callable[[int, int], None] = lambda learnt, total: None
    """(readings learnt, of how many)"""
    round: Callable[[ResolvedModel, int, float], None] = lambda model, number, shift: None
    """(model, number of the round, by how much it moved the model)"""


def open_engine(name: str, workers: int, address: str | None = None) -> Engine:
    """An engine by its name, one of `ENGINES`. Raises `MissingExtra`.

    `address` of a running cluster of Spark; None: `workers` workers on this machine.
    """
    if name == "spark":
        from shoal.onebox.replay.spark_engine import SparkEngine  # noqa: PLC0415 - an extra

        return SparkEngine(workers, address)
    return LocalEngine(workers)


SILENT: Final = Progress()


def replay(plan: ReplayPlan, engine: Engine, progress: Progress = SILENT) -> ReplayResult:
    """Learn the parts that are not learnt yet, and run the rounds. A replay that was killed
    continues so.

    Raises `InvalidState` when the folder holds another replay, `InvalidData` and `SettingsError`.
    """
    plan.claim_folder()
    done = learnt(plan)
    missing = sorted(set(range(plan.parts)) - {summary.part for summary in done})
    progress.readings(_total(done).readings, plan.readings)
    if missing:
        for summary in engine.learn(plan, missing):
            done.append(summary)
            progress.readings(_total(done).readings, plan.readings)
    # Also after a kill between the last part and this: raw readings are in it.
    remove(plan)
    models = {}
    for model in plan.contract.in_rounds:
        on_round = partial(progress.round, model)
        models[model.name] = run_rounds(plan, engine, model, on_round)
    return ReplayResult(_total(done), digest_of(records(plan)), models)


def _total(summaries: Sequence[PartSummary]) -> PartSummary:
    total = PartSummary()
    for summary in summaries:
        total.clients += summary.clients
        total.readings += summary.readings
        total.rejected += summary.rejected
        total.clipped += summary.clipped
        total.records += summary.records
    return total
