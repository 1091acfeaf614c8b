"""A whole federation in memory: the same functions that travel through the service, called one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shoal.algorithms.rounds.base import InitHint, Params, RoundsAlgorithm
from shoal.algorithms.rounds.initialization import starting_centres
from shoal.algorithms.rounds.policies import Answer, Memory, Policy, fold
from shoal.algorithms.streaming import Rows
from shoal.errors import SettingsError


class Run(NamedTuple):
    """What rounds have come to."""

    params: Params
    shifts: list[float]
    """of each round; its length is the number of rounds"""


def run(
    algorithm: RoundsAlgorithm,
    params: Params,
    clients: Sequence[Rows],
    *,
    rounds_max: int = 100,
    tolerance: float = 0.0,
    fraction: float = 1.0,
    policy: Policy | None = None,
    seed: int = 0,
) -> Run:
    """Call `fraction` of the clients, drawn anew each round, until the shift is below `tolerance` or `rounds_max`.

    At least one client is called. Raises `InvalidData` and `SettingsError`.
    """
    if not 0 < fraction <= 1:
        raise SettingsError(f"fraction of clients = {fraction}, must be above 0, at most 1")
    policy = policy or Policy()
    policy.check(algorithm)
    generator = np.random.default_rng(seed)
    called_each = max(1, round(fraction * len(clients)))
    names = [f"{number:09}" for number in range(len(clients))]
    memory, shifts = Memory(), list[float]()
    for version in range(1 if algorithm.one_shot else rounds_max):
        called: Sequence[int] = range(len(clients))
        if called_each < len(clients):
            called = sorted(generator.choice(len(clients), size=called_each, replace=False).tolist())
        answers = [Answer(names[client], version, algorithm.answer(params, clients[client])) for client in called]
        memory, counted = fold(policy, memory, answers, version)
        before, params = params, algorithm.combine(params, counted)
        shifts.append(algorithm.shift(before, params))
        if shifts[-1] < tolerance or shifts[-1] == 0.0:
            break
    return Run(params, shifts)


def hint(clients: Sequence[Rows], seed: int = 0) -> InitHint:
    """What a server that owns all the rows would know: the box they lie in. At least one client must have a row."""
    nonempty = [rows for rows in clients if len(rows)]
    if not nonempty:
        raise SettingsError("no client has a row; there is no box to start in")
    low = np.min([rows.min(axis=0) for rows in nonempty], axis=0).astype(np.float64)
    high = np.max([rows.max(axis=0) for rows in nonempty], axis=0).astype(np.float64)
    return InitHint(low, high, seed)


def converged(shifts: Sequence[float], tolerance: float) -> bool:
    """Whether the last round moved less than `tolerance`."""
    return bool(shifts) and math.isfinite(shifts[-1]) and shifts[-1] < tolerance


def from_prototypes(
    kfed: RoundsAlgorithm, clusters: int, clients: Sequence[Rows], box: InitHint, local: int = 0
) -> InitHint:
    """The box with centres from one round of k-FED: where rounds of sums had better start.

    Clients look for `local` clusters each (0: as many as there are to be); what they send is grouped by k-means with
    several starts, each prototype weighed by its rows, which is surer than k-FED's own server.
    """
    start = kfed.start({"clusters": clusters, "local_clusters": local}, len(box.low), box)
    answers = [kfed.answer(start, rows) for rows in clients]
    prototypes, counts = (np.concatenate([each[name] for each in answers]) for name in ("prototype", "count"))
    points = starting_centres(clusters, len(box.low), InitHint(box.low, box.high, box.seed, prototypes, counts))
    return InitHint(box.low, box.high, box.seed, points)
