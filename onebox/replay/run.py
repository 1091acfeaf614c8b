"""Runs a replay: what is left of the parts, then the rounds, then the digest of everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from onebox.replay.engine import Engine, LocalEngine, remove
from onebox.replay.plan import ReplayPlan
from onebox.replay.results import PartSummary, digest_of, learnt, records
from onebox.replay.rounds import RoundsResult, run_rounds
from shoal.config.contract import Model

ENGINES = ("local", "ray", "spark")


class ReplayResult(NamedTuple):
    """What a replay has made."""

    totals: PartSummary
    """over all parts"""
    digest: str
    """SHA-256 over all updates in the canonical order: the same for every engine and every number of workers"""
    models: dict[str, RoundsResult]
    """the models in rounds by name"""


class Progress(NamedTuple):
    """Called while a replay runs; each may be called at any rate."""

    readings: Callable[[int, int], None] = lambda learnt, total: None
    """(readings learnt, of how many)"""
    round: Callable[[Model, int, float], None] = lambda model, number, shift: None
    """(model, number of the round, by how much it moved the model)"""


def open_engine(name: str, workers: int, address: str | None = None) -> Engine:
    """An engine by its name, one of `ENGINES`. Raises `MissingExtra`.

    `address` of a running cluster of Ray or Spark; None: `workers` workers on this machine.
    """
    if name == "ray":
        from onebox.replay.ray_engine import RayEngine  # noqa: PLC0415 - an extra

        return RayEngine(workers, address)
    if name == "spark":
        from onebox.replay.spark_engine import SparkEngine  # noqa: PLC0415 - an extra

        return SparkEngine(workers, address)
    return LocalEngine(workers)


SILENT: Final = Progress()


def replay(plan: ReplayPlan, engine: Engine, progress: Progress = SILENT) -> ReplayResult:
    """Learn the parts that are not learnt yet, and run the rounds. A replay that was killed continues so.

    Raises `InvalidState` when the folder holds another replay, `InvalidData` and `SettingsError`.
    """
    plan.claim_folder()
    done = learnt(plan)
    left = sorted(set(range(plan.parts)) - {summary.part for summary in done})
    progress.readings(_total(done).readings, plan.readings)
    if left:
        for summary in engine.learn(plan, left):
            done.append(summary)
            progress.readings(_total(done).readings, plan.readings)
    # Also after a kill between the last part and this: raw readings are in it.
    remove(plan)
    models = {
        model.name: run_rounds(plan, engine, model, _of_model(progress, model)) for model in plan.models_in_rounds
    }
    return ReplayResult(_total(done), digest_of(records(plan)), models)


def _of_model(progress: Progress, model: Model) -> Callable[[int, float], None]:
    return lambda number, shift: progress.round(model, number, shift)


def _total(summaries: Sequence[PartSummary]) -> PartSummary:
    counts: dict[str, Any] = asdict(PartSummary())
    for summary in summaries:
        counts = {name: count + getattr(summary, name) for name, count in counts.items()}
    return PartSummary(**counts | {"part": 0})
