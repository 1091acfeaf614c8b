"""The continual-learning scenario of the FCAC paper (section 5.2, figures 4 to 9).

Three Gaussians of 15 000 points each, scaled to [0, 1]; two clients and a server that go on through three
rounds without being started anew; eight subsets, each point learnt once. The captions of figures 5 and 6 do not
name the subsets of each picture in words; read with the text they show round 1: A1 | A3, round 2: B1 | C1,
round 3: A2 and B2 | A4 and C2 (client 1 | client 2), so each Gaussian has been met once after round 2, and
round 3 brings back all of them. The paper does not give the Gaussians' parameters; those here are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.fcac import CAEFC, CAPlus
from shoal.algorithms.fcac.art_network import ArtNetwork
from shoal.algorithms.streaming import Arrays, Contribution
from shoal.evaluation.scores import scores
from shoal.kernels.correntropy import cim_blocks

Mode = Literal["changed", "all"]
MODES: Final[tuple[Mode, ...]] = ("changed", "all")

GAUSSIAN_ROWS: Final = 15_000
GAUSSIANS: Final = {
    "A": ((0.0, 0.0), ((1.0, 0.5), (0.5, 1.0))),
    "B": ((-6.0, 6.5), ((1.3, -0.4), (-0.4, 0.8))),
    "C": ((6.5, 5.5), ((0.7, 0.0), (0.0, 1.4))),
}
"""mean (2,) and covariance (2, 2) of each, before scaling"""
SUBSETS: Final = {"A": ("A1", "A2", "A3", "A4"), "B": ("B1", "B2"), "C": ("C1", "C2")}
SCHEDULE: Final = ((("A1",), ("A3",)), (("B1",), ("C1",)), (("A2", "B2"), ("A4", "C2")))
"""for each round, the subsets of client 1 and of client 2"""


@dataclass(frozen=True)
class Round:
    """What there is after a round. Shares are by subset, for each subset met so far."""

    number: int
    clients: tuple[NDArray[np.float64], NDArray[np.float64]]
    """(k_i, 2) nodes of each client"""
    server: Arrays
    """the server's snapshot"""
    ari: float
    """of the server's clusters, over all rows met so far"""
    bytes_sent: int
    """by both clients in this round, as float64 weights and int64 counts"""
    kept: Mapping[str, float]
    """share of its rows that the client which learnt them would not take for something new"""
    covered: Mapping[str, float]
    """share of its rows that the server, which never saw them, would not take for something new"""
    found: Mapping[str, float]
    """share of its rows in clusters of the server in which its Gaussian is the majority"""

    @property
    def nodes(self) -> int:
        return len(self.server["weight"])

    @property
    def clusters(self) -> int:
        return len(self.server["centre"])


def subsets(seed: int, gaussian_rows: int = GAUSSIAN_ROWS) -> dict[str, NDArray[np.float64]]:
    """The eight subsets by name, (n, 2) each, of three Gaussians scaled together to [0, 1]."""
    generator = np.random.default_rng(seed)
    drawn = [generator.multivariate_normal(*GAUSSIANS[name], size=gaussian_rows) for name in GAUSSIANS]
    low, high = np.min(np.concatenate(drawn), axis=0), np.max(np.concatenate(drawn), axis=0)
    scaled = [(rows - low) / (high - low) for rows in drawn]
    return {
        name: part
        for names, rows in zip(SUBSETS.values(), scaled, strict=True)
        for name, part in zip(names, np.array_split(rows, len(names)), strict=True)
    }


def run(seed: int, mode: Mode, gaussian_rows: int = GAUSSIAN_ROWS) -> list[Round]:
    """Three rounds: both clients learn their subsets in random order and contribute, the server absorbs."""
    rows = subsets(seed, gaussian_rows)
    generator = np.random.default_rng([seed, 1])
    clients = [CAPlus(2, contribute=mode) for _ in range(2)]
    server = CAEFC(2)
    met: tuple[list[str], list[str]] = ([], [])
    rounds = []
    for number, shares in enumerate(SCHEDULE, start=1):
        said: list[Contribution] = []
        for client, names, seen in zip(clients, shares, met, strict=True):
            client.learn(generator.permutation(np.concatenate([rows[name] for name in names])))
            seen.extend(names)
            said.append(Contribution(f"client-{len(said) + 1}", number, client.contribute()))
        server.absorb(said, key=f"{seed} {number}".encode())
        rounds.append(_looked_at(number, clients, server, said, [{name: rows[name] for name in seen} for seen in met]))
    return rounds


def _looked_at(
    number: int,
    clients: Sequence[CAPlus],
    server: CAEFC,
    said: Sequence[Contribution],
    met: Sequence[Mapping[str, NDArray[np.float64]]],
) -> Round:
    kept = {
        name: _covered(client, rows) for client, seen in zip(clients, met, strict=True) for name, rows in seen.items()
    }
    everything = {name: rows for seen in met for name, rows in seen.items()}
    truth = {name: np.full(len(rows), list(SUBSETS).index(name[0])) for name, rows in everything.items()}
    cluster = {name: server.predict(rows) for name, rows in everything.items()}
    all_truth, all_cluster = (np.concatenate(list(part.values())) for part in (truth, cluster))
    counts = np.zeros((all_cluster.max() + 1, len(SUBSETS)), dtype=np.int64)
    np.add.at(counts, (all_cluster, all_truth), 1)
    majority = counts.argmax(axis=1)
    first, second = (client.weights.copy() for client in clients)
    return Round(
        number=number,
        clients=(first, second),
        server=server.snapshot(),
        ari=scores(all_truth, all_cluster)[0],
        bytes_sent=sum(array.nbytes for contribution in said for array in contribution.arrays.values()),
        kept=kept,
        covered={name: _covered(server, rows) for name, rows in everything.items()},
        found={name: float((majority[cluster[name]] == truth[name]).mean()) for name in everything},
    )


def _covered(network: ArtNetwork, rows: NDArray[np.float64]) -> float:
    """Share of the rows (n, 2) within the vigilance of a node: the network would learn nothing new from them."""
    within = 0
    for _, distances in cim_blocks(rows, network.weights, network.mean_sigma):
        within += int((distances.min(axis=1) <= network.vigilance).sum())
    return within / len(rows)
