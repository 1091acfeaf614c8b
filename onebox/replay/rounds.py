"""Models in rounds over all replayed clients: each round is a tree of exact sums of the clients' answers."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from onebox.replay.engine import Engine
from onebox.replay.exact_sums import ExactSums
from onebox.replay.plan import ReplayPlan
from onebox.replay.results import windows_of
from server_node.models.initialization import init_hint_for
from shoal.algorithms.registry import rounds_algorithm
from shoal.algorithms.rounds.base import Params
from shoal.config.contract import Model
from shoal.files import atomic_file

FAN_IN: Final = 16
"""sums that one worker adds up at a time"""


class RoundsResult(NamedTuple):
    """What became of one model."""

    params: Params
    rounds: int
    """rounds that were run"""
    shift: float
    """by which the last one moved the model; infinite before there was one"""
    answers: int
    """clients that answered in the last one"""

    @property
    def digest(self) -> str:
        """SHA-256 over the parameters, as 64 hexadecimal digits."""
        digest = hashlib.sha256()
        for name, array in sorted(self.params.items()):
            digest.update(f"{name}{array.dtype.str}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def run_rounds(
    plan: ReplayPlan, engine: Engine, model: Model, on_round: Callable[[int, float], None] = lambda number, shift: None
) -> RoundsResult:
    """Run rounds of one model until it moves by less than its `tolerance`, or `rounds_max` rounds; write the model.

    It starts from what a server starts from, and every client with enough rows answers each round from its newest
    noisy rows. `on_round` gets the number of each
    round and its shift. Raises `SettingsError` and `InvalidData`.
    """
    algorithm = rounds_algorithm(model.algorithm)
    hint = init_hint_for(plan.contract, model, [])
    assert hint is not None, "the plan takes no model that starts from another one's clusters"
    params = algorithm.start(model.options, plan.contract.width, hint)
    result = RoundsResult(params, 0, np.inf, 0)
    while result.rounds < model.rounds.rounds_max and not result.shift < model.rounds.tolerance:
        sums = add_up(engine, partial(part_sums, plan, model, result.params), range(plan.parts))
        if not sums.answers:
            break
        after = algorithm.combine(result.params, [sums.value()])
        shift = algorithm.shift(result.params, after)
        result = RoundsResult(after, result.rounds + 1, shift, sums.answers)
        on_round(result.rounds, shift)
    _write(plan, model, result.params)
    return result


def part_sums(plan: ReplayPlan, model: Model, params: Params, part: int) -> ExactSums:
    """The sums of the answers of the clients of one part."""
    algorithm = rounds_algorithm(model.algorithm)
    sums = ExactSums()
    for _, rows in windows_of(plan, part):
        if len(rows) >= model.rounds.rows_min:
            sums.add(algorithm.answer(params, rows[-model.readings_max :]))
    return sums


def add_up(engine: Engine, leaf: Callable[[int], ExactSums], parts: Sequence[int]) -> ExactSums:
    """The sum over all parts, as a tree: `FAN_IN` sums are added on one worker, then so many of their results."""
    level = list(engine.spread(leaf, parts))
    while len(level) > FAN_IN:
        groups = [level[first : first + FAN_IN] for first in range(0, len(level), FAN_IN)]
        level = list(engine.spread(_merged, groups))
    return _merged(level)


def _merged(sums: Sequence[ExactSums]) -> ExactSums:
    return ExactSums().merge(sums)


def _write(plan: ReplayPlan, model: Model, params: Params) -> None:
    """The parameters as NumPy arrays by name."""
    arrays = io.BytesIO()
    np.savez(arrays, allow_pickle=False, **params)
    with atomic_file(plan.folder / f"model-{model.name}.npz", replace=True) as temporary:
        temporary.write_bytes(arrays.getvalue())
