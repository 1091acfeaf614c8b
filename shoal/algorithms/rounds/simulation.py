"""A federation in memory: the functions that the service runs on clients and server, called one
after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from shoal.algorithms.rounds.base import InitHint, Params, RoundsAlgorithm
from shoal.algorithms.rounds.choice import Landmarks
from shoal.algorithms.rounds.initialization import starting_centres
from shoal.algorithms.rounds.kfed import KFED
from shoal.algorithms.rounds.policies import (
    Answer,
    Policy,
    PolicyState,
    epoch_changed,
    select_answers,
)
from shoal.algorithms.streaming import Rows
from shoal.errors import SettingsError


class Run(NamedTuple):
    """The result of `run_rounds`."""

    params: Params
    shifts: list[float]
    """distance by which each round moved the model"""


def run_rounds(  # noqa: PLR0913 - options by name
    algorithm: RoundsAlgorithm,
    params: Params,
    clients: Sequence[Rows],
    *,
    rounds_max: int = 100,
    tolerance: float = 0.0,
    fraction: float = 1.0,
    policy: Policy | None = None,
    seed: int = 0,
    is_over: Callable[[float], bool] = lambda shift: False,
) -> Run:
    """Run rounds until one moves the model less than `tolerance`, at most `rounds_max`.

    In each round a random `fraction` of the clients answers, at least one. `is_over` is asked after
    each round, with how far it moved the model, whether to stop there. Raises `InvalidData` and
    `SettingsError`.
    """
    if not 0 < fraction <= 1:
        raise SettingsError(f"fraction of clients = {fraction}, must be above 0, at most 1")
    policy = policy or Policy()
    policy.check(algorithm)
    generator = np.random.default_rng(seed)
    n_sampled = max(1, round(fraction * len(clients)))
    names = [f"{number:09}" for number in range(len(clients))]
    state = PolicyState()
    shifts = list[float]()
    for number in range(1 if algorithm.one_shot else rounds_max):
        sampled: Sequence[int] = range(len(clients))
        if n_sampled < len(clients):
            sampled = sorted(generator.choice(len(clients), size=n_sampled, replace=False).tolist())
        answers = [
            Answer(names[client], number, algorithm.answer(params, clients[client]))
            for client in sampled
        ]
        state, counted = select_answers(policy, state, answers, number, algorithm.robust)
        before = params
        params = algorithm.combine(params, counted)
        if epoch_changed(algorithm, before, params):
            state = state.without_earlier_answers()
        shifts.append(algorithm.shift(before, params))
        # It is asked in any case: it counts the rounds too.
        if is_over(shifts[-1]) or shifts[-1] < tolerance or shifts[-1] == 0.0:
            break
    return Run(params, shifts)


def bounding_box(clients: Sequence[Rows], seed: int = 0) -> InitHint:
    """The hint of a server that knows the box of all rows. Raises `SettingsError` when no client
    has a row."""
    nonempty = [rows for rows in clients if len(rows)]
    if not nonempty:
        raise SettingsError("no client has a row, so there is no box to start in")
    low = np.min([rows.min(axis=0) for rows in nonempty], axis=0).astype(np.float64)
    high = np.max([rows.max(axis=0) for rows in nonempty], axis=0).astype(np.float64)
    return InitHint(low, high, seed)


def converged(shifts: Sequence[float], tolerance: float) -> bool:
    """Whether the last round moved the model less than `tolerance`."""
    return bool(shifts) and math.isfinite(shifts[-1]) and shifts[-1] < tolerance


def kfed_landmarks(
    clusters: int, clients: Sequence[Rows], box: InitHint, local: int = 0
) -> Landmarks:
    """The centres that clients send in one round of k-FED, and the rows of each.

    Each client looks for `local` clusters (0: as many as `clusters`).
    """
    start = KFED.start({"clusters": clusters, "local_clusters": local}, len(box.low), box)
    answers = [KFED.answer(start, rows) for rows in clients]
    return Landmarks(
        *(np.concatenate([each[name] for each in answers]) for name in ("prototype", "count"))
    )


def kfed_hint(clusters: int, clients: Sequence[Rows], box: InitHint, local: int = 0) -> InitHint:
    """The box, with centres from one round of k-FED: the initialisation to prefer for algorithms
    that send sums.

    Each client looks for `local` clusters (0: as many as `clusters`). The centres they send are
    grouped by k-means with several initialisations, each weighted by its rows, which is more
    reliable than k-FED's own server half.
    """
    prototypes, counts = kfed_landmarks(clusters, clients, box, local)
    points = starting_centres(
        clusters, len(box.low), InitHint(box.low, box.high, box.seed, prototypes, counts)
    )
    return InitHint(box.low, box.high, box.seed, points)
