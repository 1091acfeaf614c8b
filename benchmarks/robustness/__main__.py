"""Robustness: how far malicious clients move a model in rounds, how fast it recovers, and the price
without any.

Ten clients, five clusters in the unit square; one, two or three clients are malicious in every
round. Each attack is an answer that some rows within the box could have given, so no check of
single messages finds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.machine import facts, one_line
from benchmarks.results import quick_option, table, write
from benchmarks.robustness.bridge import measured_bridges
from benchmarks.robustness.federation import Federation, attacks, displacement, honest, split, start
from shoal.algorithms.rounds.policies import Policy
from shoal.algorithms.rounds.robust import METHODS

ALGORITHMS: Mapping[str, Mapping[str, Any]] = {"kmeans": {}, "fcm": {}}
SPLITS = ("alike", "dirichlet", "few")
MALICIOUS = (1, 2, 3)
RECOVERY_ROUNDS_MAX = 10
RECOVERED = 0.05
"""distance from where the other clients alone would have a centre, by the same method: half of what
a client may do"""


def measured_case(
    algorithm: str, split_name: str, method: str, seeds: int, rounds: int
) -> dict[str, Any]:
    """The price, and for each number of malicious clients the worst displacement of all attacks and
    seeds."""
    options = ALGORITHMS[algorithm]
    policy = Policy(robust=method)
    exact = Policy()
    prices = []
    worst = dict.fromkeys(MALICIOUS, (0.0, "none"))
    recovery = dict.fromkeys(MALICIOUS, 0)
    for seed in range(seeds):
        clients = split(split_name, seed)
        wanted = honest(algorithm, options, clients, exact, rounds)
        prices.append(displacement(honest(algorithm, options, clients, policy, rounds), wanted))
        for number in MALICIOUS:
            without = honest(algorithm, options, clients[number:], exact, rounds)
            rest = honest(algorithm, options, clients[number:], policy, rounds)
            for name in attacks(start(algorithm, options)[0], clients[0]):
                declared, params = start(algorithm, options)
                bad = {client: attacks(declared, clients[client])[name] for client in range(number)}
                federation = Federation(declared, params, list(clients), policy, bad)
                federation.run(rounds)
                moved = displacement(federation.centres, without)
                worst[number] = max(worst[number], (moved, name))
                federation.quarantine()
                needed = 0
                while (
                    displacement(federation.centres, rest) > RECOVERED
                    and needed <= RECOVERY_ROUNDS_MAX
                ):
                    federation.run(1)
                    needed += 1
                recovery[number] = max(recovery[number], needed)
    return {
        "algorithm": algorithm,
        "split": split_name,
        "robust": method,
        "price": max(prices),
        "displacement": {str(number): moved for number, (moved, _) in worst.items()},
        "attack": {str(number): name for number, (_, name) in worst.items()},
        "recovery_rounds": {str(number): rounds for number, rounds in recovery.items()},
    }


def markdown(measured: Mapping[str, Any]) -> str:
    return (
        f"# Robustness\n\nMade by `{measured['made_by']}`; do not edit.\n\nTen clients, five"
        " clusters in the unit square. *Price*: how far the farthest centre is from the exact sums"
        " without a malicious client. *1, 2, 3*: how far that many malicious clients move the"
        f" farthest centre, by the worst of {measured['attacks']} attacks, from where the others"
        " alone would have it. *Recovery*: rounds after the quarantine until every centre is"
        f" within {RECOVERED} of it. All in sides of the box, the worst of {measured['seeds']}"
        f" seeds.\n\n{_rounds_table(measured['rounds'])}\n`alike`: every client has rows of all"
        " clusters. `dirichlet`: the clusters are divided among the clients with alpha = 0.5."
        " `few`: three of the five clusters on each client, and up to eight times as many"
        " rows.\n\n## Bridges between FCAC's clusters\n\nSix clients, each with rows of four of"
        " six clusters; from half of the stream on, one more client sends 200 nodes on the line"
        " between two clusters in each of its updates. Agreement with the true clusters (ARI), and"
        " clusters of more than one node; the worst of the"
        f" seeds.\n\n{_bridge_table(measured['bridges'])}\n{one_line(measured['machine'])}\n"
    )


def _rounds_table(cases: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for case in cases:
        recovered = ", ".join(
            "never" if rounds > RECOVERY_ROUNDS_MAX else str(rounds)
            for rounds in case["recovery_rounds"].values()
        )
        moved = [f"{case['displacement'][str(number)]:.3f}" for number in MALICIOUS]
        lines.append(
            [
                case["algorithm"],
                case["split"],
                case["robust"],
                f"{case['price']:.3f}",
                *moved,
                recovered,
            ]
        )
    return table(["algorithm", "rows", "robust", "price", "1", "2", "3", "recovery, rounds"], lines)


def _bridge_table(cases: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        [
            f"{case['share_max']:g}",
            f"{case['clean']:.3f}",
            f"{case['attacked']:.3f}",
            str(case["clusters"]),
        ]
        for case in cases
    ]
    return table(["client_share_max", "without attack", "with", "clusters then"], lines)


@click.command()
@quick_option("One seed and few rounds, in seconds")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("benchmarks/results"), show_default=True
)
def main(quick: bool, out: Path) -> None:
    """Measure what malicious clients can do, into robustness.json and robustness.md."""
    seeds, rounds = (1, 4) if quick else (3, 20)
    algorithms = ("kmeans",) if quick else tuple(ALGORITHMS)
    splits = ("alike",) if quick else SPLITS
    cases = [
        measured_case(algorithm, name, method, seeds, rounds)
        for algorithm in algorithms
        for name in splits
        for method in METHODS
    ]
    measured = {
        "made_by": "python -m benchmarks robustness" + " --quick" * quick,
        "machine": facts(("numpy",)),
        "seeds": seeds,
        "attacks": len(attacks(start("kmeans", {})[0], split("alike", 0)[0])),
        "rounds": cases,
        "bridges": measured_bridges(quick),
    }
    write(out, "robustness", measured, markdown(measured))
    click.echo(markdown(measured))
