"""What one hostile client of ten does to every streaming algorithm, and what the order of updates
does to FCAC.

    python -m benchmarks robustness.streaming

The hostile client sends valid messages, made by the algorithm's own client half from rows of its
choice; in one attack it claims 250 times the readings. It sends among the others at an honest rate,
or alone after them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import click
import numpy as np

from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, quick_option, table, write
from benchmarks.robustness.bridge import BRIDGE_NODES, CLUSTERS, SPREAD
from reproduction.experiment import scores
from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.registry import streaming_algorithm, streaming_names
from shoal.algorithms.streaming import Arrays, Contribution, ServerHalf, StreamingAlgorithm
from shoal.kernels.arrays import Floats, Ints

HONEST = 9
UPDATES = 10
"""updates of each honest client"""
ROWS = 400
"""rows of an update; for algorithms that count, of a window"""
ALONE = 20
"""messages that the hostile client sends after all others"""
CLAIM = 250
"""times its readings that it claims"""
ATTACKS = (
    "alone, uniform",
    "alone, bridges",
    "alone, uniform, claims",
    "among, uniform",
    "among, bridges",
)
SHARES = (1.0, 0.98, 0.95, 0.9, 0.8)
LAYOUTS: Mapping[str, int] = {
    "alike": 6,
    "four of six": 6,
    "one each": 6,
    "dirichlet 0.3": 12,
    "dirichlet 0.3, two": 2,
}
"""which of the clusters a client has -> clients"""
ORDERS = 5


class Sender(Protocol):
    """Makes the messages of one client."""

    def message(self, rows: Floats, number: int) -> Arrays: ...


@dataclass
class Learner:
    """A client that learns rows."""

    half: Any

    def message(self, rows: Floats, number: int) -> Arrays:
        self.half.learn(rows)
        contribution: Arrays = self.half.contribute()
        return contribution


@dataclass
class Counter:
    """A client that counts them, without noise, by the newest plan of the server."""

    half: Any
    server: ServerHalf
    client: str

    def message(self, rows: Floats, number: int) -> Arrays:
        self.half.adopt(self.server.snapshot())
        counted = self.half.count(
            rows, np.ones(len(rows), dtype=np.bool_), self.client.encode(), number
        )
        update: Arrays = counted.update(counted.counts)
        return update


def sender(algorithm: StreamingAlgorithm, server: ServerHalf, client: str) -> Sender:
    if isinstance(algorithm, CountingAlgorithm):
        return Counter(algorithm.counter({"window_readings": ROWS}, 2), server, client)
    return Learner(algorithm.client({}, 2))


def hostile_rows(attack: str, generator: np.random.Generator) -> Floats:
    """Uniform rows, or rows on the lines between clusters (ROWS, 2)."""
    if "uniform" in attack:
        return generator.uniform(0.0, 1.0, (ROWS, 2))
    first = generator.integers(len(CLUSTERS) - 1, size=ROWS)
    along = generator.uniform(0.0, 1.0, (ROWS, 1))
    rows = CLUSTERS[first] + along * (CLUSTERS[first + 1] - CLUSTERS[first])
    near: Floats = np.clip(rows + generator.normal(0.0, 0.01, rows.shape), 0.0, 1.0)
    return near


def attacked(name: str, attack: str, seed: int, updates: int) -> tuple[float, int]:
    """-> the adjusted Rand index of new rows of the true clusters, and the clusters found; attack
    "": none."""
    generator = np.random.default_rng(seed)
    algorithm = streaming_algorithm(name)
    server = algorithm.server(
        {"window_readings": ROWS} if isinstance(algorithm, CountingAlgorithm) else {}, 2
    )
    senders = {
        client: sender(algorithm, server, client)
        for client in [*map(str, range(HONEST)), "hostile"]
    }
    order = [str(client) for _ in range(updates) for client in range(HONEST)]
    if attack.startswith("among"):
        half = updates // 2
        for number in range(half, updates):
            order.insert(number * (HONEST + 1) - half, "hostile")
    elif attack:
        order += ["hostile"] * ALONE
    for number, client in enumerate(order):
        rows = hostile_rows(attack, generator) if client == "hostile" else honest_rows(generator)[0]
        arrays = senders[client].message(rows, number)
        if client == "hostile" and "claims" in attack:
            arrays = claimed(algorithm, arrays)
        server.absorb([Contribution(client, number + 1, arrays)], f"{seed} {number}".encode())
    rows, labels = honest_rows(generator, 3000)
    found = server.predict(rows)
    return scores(labels, found)["ari"], len(algorithm.view(server.snapshot()).centres)


def honest_rows(
    generator: np.random.Generator, n: int = ROWS, weights: Floats | None = None
) -> tuple[Floats, Ints]:
    """Rows (n, 2) of the true clusters, and the cluster of each."""
    labels = generator.choice(len(CLUSTERS), n, p=weights)
    return np.clip(CLUSTERS[labels] + generator.normal(0.0, SPREAD, (n, 2)), 0.0, 1.0), labels


def claimed(algorithm: StreamingAlgorithm, arrays: Arrays) -> Arrays:
    """The same message, as if it were from `CLAIM` times the readings."""
    more = dict(arrays)
    # A node of fcac has a count of all its readings as well, which is no less than the new ones.
    for counts in {algorithm.new_readings or "count", "count"} & more.keys():
        more[counts] = arrays[counts] * CLAIM
    return more


def measured_attacks(seeds: Sequence[int], updates: int) -> list[dict[str, Any]]:
    """Measure for each streaming algorithm the worst and the median of the seeds, without an attack
    and under each."""
    found = []
    for name in streaming_names():
        counts = isinstance(streaming_algorithm(name), CountingAlgorithm)
        for attack in ("", *ATTACKS):
            if counts and "claims" in attack:
                continue  # a window of more readings than the contract's is rejected
            runs = [attacked(name, attack, seed, updates) for seed in seeds]
            figures = {
                "worst": min(ari for ari, _ in runs),
                "median": median(ari for ari, _ in runs),
            }
            found.append(
                {"algorithm": name, "attack": attack, "clusters": [k for _, k in runs], **figures}
            )
    return found


def fcac_messages(layout: str, seed: int, updates: int) -> list[Contribution]:
    """The updates of FCAC's honest clients, in turn."""
    generator = np.random.default_rng([seed, 1])
    halves = [streaming_algorithm("fcac").client({}, 2) for _ in range(LAYOUTS[layout])]
    sent = []
    k = len(CLUSTERS)
    weights = {
        "alike": [np.full(k, 1.0 / k)] * k,
        "four of six": [
            np.isin(np.arange(k), [(client + step) % k for step in range(4)]) / 4.0
            for client in range(k)
        ],
        "one each": list(np.eye(k)),
    }
    dirichlet = generator.dirichlet(np.full(k, 0.3), len(halves))
    for number in range(updates):
        for client, half in enumerate(halves):
            share = weights[layout][client] if layout in weights else dirichlet[client]
            half.learn(honest_rows(generator, 150, share)[0])
            sent.append(Contribution(f"client-{client}", number + 1, half.contribute()))
    return sent


def in_order(sent: Sequence[Contribution], order: int) -> list[Contribution]:
    """The updates of all clients mixed at random, each client's own in their order; order 0: as
    they are."""
    if order == 0:
        return list(sent)
    generator = np.random.default_rng([order, 3])
    waiting: dict[str, list[Contribution]] = {}
    for update in sent:
        waiting.setdefault(update.client, []).append(update)
    clients = [update.client for update in sent]
    return [waiting[clients[place]].pop(0) for place in generator.permutation(len(clients))]


def fcac_run(sent: Sequence[Contribution], share_max: float, seed: int) -> float:
    """The adjusted Rand index after the updates."""
    server = streaming_algorithm("fcac").server({"client_share_max": share_max}, 2)
    for number, update in enumerate(sent):
        server.absorb([update], f"{seed} {number}".encode())
    rows, labels = honest_rows(np.random.default_rng([seed, 4]), 3000)
    return scores(labels, server.predict(rows))["ari"]


def with_bridges(sent: Sequence[Contribution], seed: int, from_half: bool) -> list[Contribution]:
    """A stranger's messages of nodes between two clusters: ten among the second half, or three
    after all."""
    generator = np.random.default_rng([seed, 2])
    mixed = list(sent)
    for number in range(10 if from_half else 3):
        ends = CLUSTERS[[number % 5, number % 5 + 1]]
        weight = ends[0] + generator.uniform(0, 1, (BRIDGE_NODES, 1)) * (ends[1] - ends[0])
        nodes = {
            "weight": weight + generator.normal(0, 0.005, weight.shape),
            "count": np.full(BRIDGE_NODES, 5),
            "won": np.full(BRIDGE_NODES, 5),
        }
        place = len(sent) // 2 + number * (len(sent) // 20 + 1) if from_half else len(mixed)
        mixed.insert(place, Contribution("stranger", number + 1, nodes))
    return mixed


def measured_shares(seeds: Sequence[int], updates: int, orders: int) -> list[dict[str, Any]]:
    """FCAC by `client_share_max`: honest clients over orders of their updates, and under
    bridges."""
    found = []
    for share_max in SHARES:
        for layout in LAYOUTS:
            runs = [
                fcac_run(in_order(fcac_messages(layout, seed, updates), order), share_max, seed)
                for seed in seeds
                for order in range(orders)
            ]
            found.append(summary(f"honest: {layout}", share_max, runs))
        for name, from_half in (
            ("bridges from half of the stream on", True),
            ("three messages of bridges", False),
        ):
            attacks = [
                fcac_run(
                    with_bridges(fcac_messages("four of six", seed, updates), seed, from_half),
                    share_max,
                    seed,
                )
                for seed in seeds
            ]
            found.append(summary(name, share_max, attacks))
    return found


def summary(case: str, share_max: float, runs: Sequence[float]) -> dict[str, Any]:
    return {
        "case": case,
        "share_max": share_max,
        "low": min(runs),
        "median": median(runs),
        "high": max(runs),
    }


def markdown(measured: Mapping[str, Any]) -> str:
    names = list(dict.fromkeys(case["algorithm"] for case in measured["attacks"]))
    cell = {(case["algorithm"], case["attack"]): case for case in measured["attacks"]}
    lines = []
    for name in names:
        found = [cell.get((name, attack)) for attack in ("", *ATTACKS)]
        lines.append(
            [
                name,
                *(
                    "-" if scores is None else f"{scores['median']:.3f} ({scores['worst']:.3f})"
                    for scores in found
                ),
            ]
        )
    shares = {(case["case"], case["share_max"]): case for case in measured["shares"]}
    cases = list(dict.fromkeys(case["case"] for case in measured["shares"]))
    spread = [
        [
            case,
            *(
                "{low:.3f} {median:.3f} {high:.3f}".format(**shares[case, share])
                for share in SHARES
            ),
        ]
        for case in cases
    ]
    return (
        f"# Streaming algorithms and one hostile client\n\nMade by `{measured['made_by']}`; do not"
        " edit.\n\n"
        f"Nine honest clients send {measured['updates']} updates of {ROWS} rows each, of six"
        " clusters; a tenth sends "
        f"rows of its choice: {ALONE} messages alone after them (*alone*), or at the rate of the"
        " others in the second "
        "half (*among*). *Uniform*: in the whole box. *Bridges*: on lines between clusters."
        " *Claims*: it claims "
        f"{CLAIM} times its readings (a window of private counts cannot). Agreement with the true"
        " clusters (ARI): "
        f"median (worst) of {measured['seeds']}"
        f" seeds.\n\n{table(['algorithm', 'no attack', *ATTACKS], lines)}\n"
        "## FCAC: bridges, and the order of updates\n\n"
        "ARI by `client_share_max`: lowest, median, highest. Honest clients: the same updates in "
        f"{measured['orders']} orders, {measured['seeds']} seeds. A bound applies to four or more"
        " clients.\n\n"
        f"{table(['case', *(f'{share:g}' for share in SHARES)], spread)}\n"
        f"{one_line(measured['machine'])}\n"
    )


@click.command()
@quick_option("One seed, few updates, in seconds")
@click.option(
    "--first-seed",
    type=int,
    default=100,
    show_default=True,
    help="Options were chosen on the seeds 0 to 3.",
)
@out_option("streaming_attacks")
def main(quick: bool, first_seed: int, out: Path) -> None:
    """Measure what one client of ten does to streaming algorithms, into streaming_attacks.json and
    .md."""
    seeds, updates, orders = (1, 2, 2) if quick else (3, UPDATES, ORDERS)
    chosen = range(first_seed, first_seed + seeds)
    measured = {
        "made_by": "python -m benchmarks robustness.streaming" + " --quick" * quick,
        "machine": facts(("numpy",)),
        **{"seeds": seeds, "first_seed": first_seed, "updates": updates, "orders": orders},
        "attacks": measured_attacks(chosen, updates),
        "shares": measured_shares(chosen, 20 if not quick else updates, orders),
    }
    write(out, "streaming_attacks", measured, markdown(measured))
    click.echo(markdown(measured))
