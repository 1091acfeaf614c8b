"""Ten clients with rows that are not alike, some of them malicious, and rounds run on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.algorithms.registry import rounds_algorithm
from shoal.algorithms.rounds.base import InitHint, Params, RoundsAlgorithm
from shoal.algorithms.rounds.policies import Answer, Policy, PolicyState, select_answers
from shoal.kernels.arrays import Floats
from shoal.kernels.matching import match_order

CLIENTS = 10
CLUSTERS = 5
ROWS = 4000
CENTRES = np.array([[0.2, 0.25], [0.75, 0.2], [0.5, 0.5], [0.2, 0.8], [0.8, 0.75]])
SPREAD = 0.05
CLAIMED_ROWS = 100_000.0
"""rows that a malicious client claims to have: many more than any other client"""


def split(name: str, seed: int) -> list[Floats]:
    """The rows of each client: `alike`, `dirichlet` (shares of clusters drawn with alpha = 0.5), or
    `few` (three of the five clusters on each client, and clients with up to eight times the rows of
    others)."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, CLUSTERS, ROWS)
    rows = np.clip(CENTRES[label] + rng.normal(0, SPREAD, (ROWS, 2)), 0, 1)
    owner = rng.integers(0, CLIENTS, ROWS)
    if name == "dirichlet":
        shares = rng.dirichlet(np.full(CLIENTS, 0.5), CLUSTERS)
        owner = np.array([rng.choice(CLIENTS, p=shares[kind]) for kind in label])
    elif name == "few":
        size = np.geomspace(1, 8, CLIENTS)
        holds = np.array(
            [[(client + step) % CLUSTERS for step in range(3)] for client in range(CLIENTS)]
        )
        weight = np.array(
            [
                [size[client] * (kind in holds[client]) for client in range(CLIENTS)]
                for kind in range(CLUSTERS)
            ]
        )
        owner = np.array(
            [rng.choice(CLIENTS, p=weight[kind] / weight[kind].sum()) for kind in label]
        )
    return [rows[owner == client] for client in range(CLIENTS)]


Attack = Callable[[Mapping[str, Any], Params], dict[str, Any]]
"""(honest answer, parameters) -> the malicious one. Each could be that of some rows within the box
"""


def _scaled(answer: Mapping[str, Any], factor: float) -> dict[str, Any]:
    return {name: array * factor for name, array in answer.items()}


def _of_rows(algorithm: RoundsAlgorithm, rows: Floats, weight: float) -> Attack:
    return lambda answer, params: _scaled(algorithm.answer(params, rows), weight)


def attacks(algorithm: RoundsAlgorithm, own: Floats) -> dict[str, Attack]:
    """Attacks by name, for a client that has the rows `own`. Each answers as if it had other rows,
    or more of them."""
    corner = np.tile([[0.999, 0.999]], (100, 1)) - np.random.default_rng(1).uniform(
        0, 0.01, (100, 2)
    )
    edges = np.random.default_rng(2).choice([0.01, 0.99], (200, 2))
    many = CLAIMED_ROWS / 100
    return {
        "a corner": _of_rows(algorithm, corner, many),
        "four corners": _of_rows(algorithm, edges, many / 2),
        "all rows moved": lambda answer, params: _scaled(
            algorithm.answer(params, np.clip(own + 0.15, 0, 1)), CLAIMED_ROWS / max(1, len(own))
        ),
        "moved, own weight": _of_rows(algorithm, np.clip(own + 0.15, 0, 1), 1.0),
        "every centre to a corner": lambda answer, params: _pull(answer, params, CLAIMED_ROWS),
        "to a corner, own weight": lambda answer, params: _pull(
            answer, params, float(max(1, len(own)))
        ),
        "one centre to a corner": lambda answer, params: _pull(
            answer, params, CLAIMED_ROWS, only=0
        ),
    }


def _pull(
    answer: Mapping[str, Any], params: Params, rows: float, only: int | None = None
) -> dict[str, Any]:
    """Claim that rows of each cluster, or of one, lie in the corner farthest from its centre."""
    centre = params["centre"]
    corner = np.where(centre < 0.5, 1.0, 0.0)
    made = {name: np.array(array) for name, array in answer.items()}
    mass_name = next(name for name in ("count", "mass", "support") if name in made)
    chosen = range(len(centre)) if only is None else [only]
    for number in chosen:
        mass = rows / len(centre)
        made[mass_name][number] = mass
        if "prototype" in made:
            made["prototype"][number] = corner[number]
            continue
        made["sum"][number] = mass * corner[number]
    return made


@dataclass
class Federation:
    """Rounds of one model. Malicious clients answer in every round until they are put into
    quarantine."""

    algorithm: RoundsAlgorithm
    params: Params
    clients: list[Floats]
    policy: Policy
    malicious: Mapping[int, Attack]

    def __post_init__(self) -> None:
        self.policy.check(self.algorithm)
        self.state = PolicyState()
        self.round = 0

    def run(self, rounds: int) -> None:
        """So many rounds, in which every client answers."""
        for _ in range(rounds):
            answers = []
            for number, rows in enumerate(self.clients):
                answer = self.algorithm.answer(self.params, rows)
                if number in self.malicious:
                    answer = self.malicious[number](answer, self.params)
                answers.append(Answer(f"{number:03}", self.round, answer))
            self.state, counted = select_answers(
                self.policy, self.state, answers, self.round, self.algorithm.robust
            )
            self.params = self.algorithm.combine(self.params, counted)
            self.round += 1

    def quarantine(self) -> None:
        """No malicious client answers any more, and what is kept of their answers is dropped, as on
        the server."""
        for number in self.malicious:
            self.state = self.state.without(f"{number:03}")
        self.clients = [
            rows for number, rows in enumerate(self.clients) if number not in self.malicious
        ]
        self.malicious = {}

    @property
    def centres(self) -> Floats:
        return np.asarray(self.params["centre"])


def start(name: str, options: Mapping[str, Any]) -> tuple[RoundsAlgorithm, Params]:
    """An algorithm and its first parameters, with a centre near each cluster as another model would
    have found it."""
    algorithm = rounds_algorithm(name)
    points = CENTRES + np.random.default_rng(0).normal(0, 0.03, CENTRES.shape)
    hint = InitHint(np.zeros(2), np.ones(2), 0, points)
    return algorithm, algorithm.start({"clusters": CLUSTERS, **options}, 2, hint)


def displacement(found: Floats, wanted: Floats) -> float:
    """How far the farthest centre is from where it should be, matched; in sides of the box."""
    return float(np.linalg.norm(found[match_order(wanted, found)] - wanted, axis=1).max())


def honest(
    name: str, options: Mapping[str, Any], clients: Sequence[Floats], policy: Policy, rounds: int
) -> Floats:
    """The centres that clients without malice agree on."""
    algorithm, params = start(name, options)
    federation = Federation(algorithm, params, list(clients), policy, {})
    federation.run(rounds)
    return federation.centres
