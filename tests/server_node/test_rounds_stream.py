"""A stream of which few clients answer at a time, and each holds other clusters: `decay` and
`cache` against `fresh`.

Three clusters move in a circle; each of ten clients holds rows of one; a fifth of them is asked;
answers come late.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.protocol.messages import Snapshot
from tests.server_node.rounds_harness import RoundsHarness, contract_with

CLIENTS = [f"client-{n}" for n in range(10)]
WINDOW = 200
NEW = 50
ROUNDS = 60
WARM = 15
SPREAD = 0.06


def middles(step: int) -> NDArray[np.float64]:
    """(3, 2) where the clusters are by now, near enough to one another that the rows of the absent
    are missed."""
    angles = 2 * np.pi * np.arange(3) / 3 + 0.02 * step
    return 0.5 + 2.5 * SPREAD * np.column_stack([np.cos(angles), np.sin(angles)])


class Sites:
    """The windows of all clients, moving on together."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._held = [[n % 3] for n in range(len(CLIENTS))]
        self.windows = [self._rows(held, 0, WINDOW) for held in self._held]

    def move(self, step: int) -> None:
        for n, held in enumerate(self._held):
            self.windows[n] = np.concatenate([self.windows[n], self._rows(held, step, NEW)])[
                -WINDOW:
            ]

    def _rows(self, held: list[int], step: int, n: int) -> NDArray[np.float64]:
        rows: NDArray[np.float64] = middles(step)[self._rng.choice(held, n)] + self._rng.normal(
            0, SPREAD, (n, 2)
        )
        return rows


@cache  # `decay` and `cache` are compared with the same runs of `fresh`
def error_of(between: str, seed: int, late: int) -> float:
    """How far the centres are from the truth on average, after a while."""
    rounds = contract_with(
        "fcm", fraction=0.2, deadline_s=10, rounds_max=10**6, tolerance=0, between=between
    )
    harness = RoundsHarness(rounds)
    sites = Sites(seed)
    chance = np.random.default_rng(1000 + seed)
    errors = []
    on_their_way: list[tuple[int, str, NDArray[np.float64], Snapshot]] = []
    harness.tick(0.0)
    for step in range(1, ROUNDS):
        for client, window in zip(CLIENTS, sites.windows, strict=True):
            if harness.is_asked(client):
                on_their_way.append(
                    (step + int(chance.integers(0, late + 1)), client, window, harness.newest)
                )
        for arrives, client, window, request in on_their_way:
            if arrives == step:
                harness.answer(client, window, to=request)
        harness.tick(10.0 * step)
        sites.move(step)
        if step >= WARM:
            centres = harness.newest.arrays["centre"]
            apart = np.linalg.norm(centres[:, None] - middles(step)[None], axis=2)
            errors.append(float(apart.min(axis=0).mean()))
    return float(np.mean(errors))


@pytest.mark.parametrize("late", [0, pytest.param(3, marks=pytest.mark.integration)])
@pytest.mark.parametrize("between", ["decay", "cache"])
def test_with_few_clients_of_different_clusters_decay_and_cache_halve_the_error_of_fresh(
    between: str, late: int
) -> None:
    seeds = range(6)
    fresh, states_of = (
        [error_of(start, seed, late) for seed in seeds] for start in ("fresh", between)
    )
    assert np.mean(states_of) <= np.mean(fresh) / 2, (fresh, states_of)
