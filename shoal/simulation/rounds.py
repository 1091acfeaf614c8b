"""The federation in memory of an algorithm in rounds: each client is the table of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from shoal.algorithms.rounds.base import InitHint, Params, RoundsAlgorithm, Stats
from shoal.algorithms.rounds.choice import Landmarks
from shoal.algorithms.rounds.initialization import starting_centres
from shoal.algorithms.rounds.iteration import Run, iterate
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
from shoal.kernels.arrays import Floats


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
    weights: Sequence[Floats] | None = None,
) -> Run:
    """Run rounds until one moves the model less than `tolerance`, at most `rounds_max`.

    In each round a random `fraction` of the clients answers, at least one. `is_over` is asked after
    each round, with how far it moved the model, whether to stop there. `weights`: how often each
    row of each client counts, of an algorithm that has `weigh`. Raises `InvalidData` and
    `SettingsError`.
    """
    answers = _Answers(algorithm, clients, fraction, policy or Policy(), seed, weights)
    return iterate(
        algorithm,
        params,
        answers.to,
        rounds_max=1 if algorithm.one_shot else rounds_max,
        tolerance=tolerance,
        is_over=is_over,
    )


class _Answers:
    """The answers that count in each round: those of the clients that were drawn, and what the
    policy keeps of earlier ones."""

    def __init__(
        self,
        algorithm: RoundsAlgorithm,
        clients: Sequence[Rows],
        fraction: float,
        policy: Policy,
        seed: int,
        weights: Sequence[Floats] | None = None,
    ) -> None:
        if not 0 < fraction <= 1:
            raise SettingsError(f"fraction of clients = {fraction}, must be above 0, at most 1")
        policy.check(algorithm)
        self._algorithm = algorithm
        self._clients = clients
        self._weights = weights
        self._policy = policy
        self._state = PolicyState()
        self._generator = np.random.default_rng(seed)
        self._n_drawn = max(1, round(fraction * len(clients)))
        self._round = 0
        self._asked: Params | None = None
        """the parameters of the round before"""

    def to(self, params: Params) -> list[Stats]:
        """The statistics to combine in the next round, which has these parameters."""
        if self._asked is not None and epoch_changed(self._algorithm, self._asked, params):
            self._state = self._state.without_earlier_answers()
        self._asked = params
        # Names of equal length: the policy takes answers in the order of the names.
        answers = [
            Answer(f"{client:09}", self._round, self._answer(params, client))
            for client in self._draw()
        ]
        self._state, counted = select_answers(
            self._policy, self._state, answers, self._round, self._algorithm.robust
        )
        self._round += 1
        return counted

    def _answer(self, params: Params, client: int) -> Stats:
        rows = self._clients[client]
        weigh = self._algorithm.weigh
        if self._weights is None or weigh is None:
            return self._algorithm.answer(params, rows)
        return weigh(params, rows, self._weights[client])

    def _draw(self) -> Sequence[int]:
        """The clients that answer in a round."""
        n = len(self._clients)
        if self._n_drawn >= n:
            return range(n)
        drawn: list[int] = self._generator.choice(n, size=self._n_drawn, replace=False).tolist()
        return sorted(drawn)


def bounding_box(clients: Sequence[Rows], seed: int = 0) -> InitHint:
    """The hint of a server that knows the box of all rows. Raises `SettingsError` when no client
    has a row."""
    nonempty = [rows for rows in clients if len(rows)]
    if not nonempty:
        raise SettingsError("no client has a row, so there is no box to start in")
    low = np.min([rows.min(axis=0) for rows in nonempty], axis=0).astype(np.float64)
    high = np.max([rows.max(axis=0) for rows in nonempty], axis=0).astype(np.float64)
    return InitHint(low, high, seed)


def kfed_landmarks(
    clusters: int, clients: Sequence[Rows], box: InitHint, local: int = 0
) -> Landmarks:
    """The centres that clients send in one round of k-FED, and the rows of each.

    Each client looks for `local` clusters (0: as many as `clusters`).
    """
    start = KFED.start({"clusters": clusters, "local_clusters": local}, len(box.low), box)
    answers = [KFED.answer(start, rows) for rows in clients]
    prototypes = np.concatenate([answer["prototype"] for answer in answers])
    counts = np.concatenate([answer["count"] for answer in answers])
    return Landmarks(prototypes, counts)


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
