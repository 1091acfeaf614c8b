"""The rounds of a replay over all its clients: each is a tree of exact sums of their answers."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.rounds.base import Params, Stats
from shoal.algorithms.rounds.iteration import iterate
from shoal.config.resolved import ResolvedModel
from shoal.files import atomic_file
from shoal.onebox.replay.engine import Engine
from shoal.onebox.replay.exact_sums import ExactSums
from shoal.onebox.replay.plan import ReplayPlan
from shoal.onebox.replay.results import windows_of
from shoal.server_node.models.rounds import init_hint_for

FAN_IN: Final = 16
"""sums that one worker adds up at a time"""


class RoundsResult(NamedTuple):
    """The outcome of the rounds of one model."""

    params: Params
    rounds: int
    """number of rounds that were run"""
    shift: float
    """distance by which the last round moved the model; infinite before the first"""
    answers: int
    """clients that answered in the last round"""

    @property
    def digest(self) -> str:
        """SHA-256 over the parameters, as 64 hexadecimal digits."""
        digest = hashlib.sha256()
        # By name: the digest must not depend on the order in which an algorithm returns its arrays.
        for name, array in sorted(self.params.items()):
            digest.update(
                f"{name}{array.dtype.str}{array.shape}".encode()
                + np.ascontiguousarray(array).tobytes()
            )
        return digest.hexdigest()


def run_rounds(
    plan: ReplayPlan,
    engine: Engine,
    model: ResolvedModel,
    on_round: Callable[[int, float], None] = lambda number, shift: None,
) -> RoundsResult:
    """Run rounds of one model until it moves by less than its `tolerance`, or `rounds_max` rounds;
    write the model.

    It starts from what a server starts from, and every client with enough rows answers each round
    from its newest noisy rows. `on_round` gets the number of each round and its shift. Raises
    `SettingsError` and `InvalidData`.
    """
    assert model.rounds is not None
    algorithm = model.rounds.algorithm
    rounds = model.declared.rounds
    hint = init_hint_for(plan.contract, model, None)
    assert hint is not None, "the plan takes no model that starts from another one's clusters"
    params = algorithm.start(model.options, plan.contract.width, hint)
    answers = 0
    n_rounds = 0

    def ask(params: Params) -> list[Stats] | None:
        nonlocal answers
        sums = add_up(engine, partial(part_sums, plan, model.name, params), range(plan.parts))
        if not sums.answers:
            return None
        answers = sums.answers
        return [sums.value()]

    def end_round(shift: float) -> bool:
        nonlocal n_rounds
        n_rounds += 1
        on_round(n_rounds, shift)
        return False

    run = iterate(
        algorithm,
        params,
        ask,
        rounds_max=rounds.rounds_max,
        tolerance=rounds.tolerance,
        is_over=end_round,
    )
    write_model(plan, model, run.params)
    shift = run.shifts[-1] if run.shifts else np.inf
    return RoundsResult(run.params, n_rounds, shift, answers)


def part_sums(plan: ReplayPlan, name: str, params: Params, part: int) -> ExactSums:
    """The sums of the answers of the clients of one part to the model of this name."""
    # A worker gets the name, because the functions of an algorithm do not travel.
    model = plan.contract.models[name]
    assert model.rounds is not None
    sums = ExactSums()
    for _, rows in windows_of(plan, part):
        if len(rows) >= model.declared.rounds.rows_min:
            # The newest rows, as many as a client node answers from.
            sums.add(model.rounds.algorithm.answer(params, rows[-model.declared.readings_max :]))
    return sums


def add_up(engine: Engine, leaf: Callable[[int], ExactSums], parts: Sequence[int]) -> ExactSums:
    """The sum over all parts, as a tree: `FAN_IN` sums are added on one worker, then as many of
    their results."""
    level = list(engine.spread(leaf, parts))
    while len(level) > FAN_IN:
        groups = [level[first : first + FAN_IN] for first in range(0, len(level), FAN_IN)]
        level = list(engine.spread(_merged, groups))
    return _merged(level)


def _merged(sums: Sequence[ExactSums]) -> ExactSums:
    return ExactSums().merge(sums)


def write_model(plan: ReplayPlan, model: ResolvedModel, params: Params) -> None:
    """Write the parameters of a model as NumPy arrays by name."""
    arrays = io.BytesIO()
    np.savez(arrays, allow_pickle=False, **params)
    with atomic_file(plan.folder / f"model-{model.name}.npz", replace=True) as temporary:
        temporary.write_bytes(arrays.getvalue())
