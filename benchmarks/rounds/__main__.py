"""Rounds: time per row of an answer, by K and d, beside other implementations; time and bytes of a
round; memory.

An answer takes turns with plain NumPy for the same sums, with one step of scikit-learn (Lloyd's of
k-means, or EM of a mixture), and with a loop over the rows in Python. A round is measured with 1
000 clients: what the server adds to the clients' arithmetic, and what the whole service does.
Memory is measured with up to ten million rows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.machine import facts, one_line
from benchmarks.results import quick_option, rounded, table, write
from benchmarks.rounds.answers import COMPILED_FORM, SHAPES, measured_answers, rows_and_params
from benchmarks.rounds.live import measured_clients
from benchmarks.rounds.memory import measured_memory
from benchmarks.rounds.service import measured_service, service_tables
from shoal.algorithms.registry import rounds_algorithm, rounds_names
from shoal.algorithms.rounds.policies import Answer, Policy, PolicyState, select_answers
from shoal.protocol.codec import pack

PACKAGES = ("numpy", "numba", "scikit-learn")


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rows: int
    loop_rows: int
    turns: int
    shapes: tuple[tuple[int, int], ...]
    """K, d"""
    clients: int
    client_rows: int
    service: tuple[str, ...]
    """algorithms whose rounds go through the service"""
    service_rows: int
    """rows of a client there: its window"""
    service_rounds: int
    live_clients: int
    """whole client nodes"""
    memory: Mapping[str, tuple[int, ...]]
    """algorithm -> numbers of rows"""


FULL = Size(
    20_000,
    200,
    7,
    ((3, 2), (10, 16), (50, 16), (10, 64)),
    1000,
    200,
    service=("kmeans", "gmm"),
    service_rows=2000,
    service_rounds=5,
    live_clients=20,
    memory={
        "kmeans": (1_000_000, 10_000_000),
        "fcm": (1_000_000, 10_000_000),
        "gmm": (1_000_000, 10_000_000),
        "tsk": (1_000_000, 10_000_000),
        "dbscan": (1_000_000, 10_000_000),
        "spectral": (1_000_000, 10_000_000),
        "kfed": (100_000, 1_000_000),
    },
)
QUICK = Size(
    2_000,
    50,
    3,
    ((3, 2), (10, 16)),
    50,
    50,
    service=("kmeans",),
    service_rows=200,
    service_rounds=2,
    live_clients=3,
    memory={"kmeans": (50_000, 200_000)},
)


def measured_rounds(size: Size) -> list[dict[str, Any]]:
    """The server's time in a round of many clients, relative to theirs, and the bytes of one answer
    and one request."""
    found = []
    for name in rounds_names():
        k, d = SHAPES[name][-1] if name in SHAPES else (10, 16)
        algorithm = rounds_algorithm(name)
        rows, params = rows_and_params(name, k, d, size.clients * size.client_rows)
        clients = np.array_split(rows, size.clients)
        if name in ("kfed", "mufc", "ffcm", "gmm_local"):
            # Clients fit on their own here, which takes long; a tenth of the clients is enough.
            clients = clients[: max(1, size.clients // 10)]
        shares = []
        answering = []
        whole = []
        for _ in range(3):
            begun = time.process_time()
            answers = [
                Answer(f"{i:06}", 0, algorithm.answer(params, rows))
                for i, rows in enumerate(clients)
            ]
            answered = time.process_time()
            _, counted = select_answers(Policy(), PolicyState(), answers, 0)
            algorithm.combine(params, counted)
            ended = time.process_time()
            answering.append(answered - begun)
            whole.append(ended - begun)
            shares.append((ended - answered) / (answered - begun))
        found.append(
            {
                "algorithm": name,
                "clients": len(clients),
                "rows_each": size.client_rows,
                "K": k,
                "d": d,
                "round_s": median(whole),
                "server_share": median(shares),
                "bytes_up": len(pack(dict(answers[0].stats))),
                "bytes_down": len(pack(dict(params))),
            }
        )
    return found


def markdown(measured: Mapping[str, Any]) -> str:
    lines = []
    for answer in measured["answers"]:
        ns = answer["ns_per_row"]
        ratio = answer["times_as_fast_as"]
        other = rounded(ns["scikit-learn"]["median"]) if "scikit-learn" in ns else "-"
        lines.append(
            [
                answer["algorithm"],
                str(answer["K"]),
                str(answer["d"]),
                rounded(ns["ours"]["median"]),
                rounded(ns["plain NumPy"]["median"]),
                other,
                f"{ratio['plain NumPy']['median']:.1f}",
                f"{ratio['scikit-learn']['median']:.2f}" if "scikit-learn" in ratio else "-",
                f"{ratio['NumPy form']['median']:.1f}" if "NumPy form" in ratio else "-",
                f"{ratio['loop']['median']:.0f}",
                str(answer["bytes_up"]),
                str(answer["bytes_down"]),
            ]
        )
    answers = table(
        [
            "algorithm",
            "K",
            "d",
            "ns/row",
            "plain NumPy",
            "scikit-learn step",
            "x plain",
            "x scikit-learn",
            "x NumPy form",
            "x loop",
            "bytes up",
            "bytes down",
        ],
        lines,
    )
    rounds = table(
        [
            "algorithm",
            "clients",
            "rows each",
            "round, s",
            "server's share",
            "bytes up",
            "bytes down",
        ],
        [
            [
                row["algorithm"],
                str(row["clients"]),
                str(row["rows_each"]),
                f"{row['round_s']:.3g}",
                f"{row['server_share']:.1%}",
                str(row["bytes_up"]),
                str(row["bytes_down"]),
            ]
            for row in measured["rounds"]
        ],
    )
    return (
        f"# Rounds\n\nMade by `{measured['made_by']}`; do not edit.\n\n"
        'An answer, one thread; medians of turns. "x" is how many times as fast ours is, in its'
        " compiled form where "
        f"there is one ({', '.join(COMPILED_FORM)}).\n\n"
        f"{answers}\nA round in one process. The server's share is its time relative to the"
        " clients'."
        f"\n\n{rounds}\n{service_tables(measured['service'], measured['live'])}\n"
        f"{_memory(measured)}\n{one_line(measured['machine'])}\n"
    )


def _memory(measured: Mapping[str, Any]) -> str:
    lines = [
        [
            row["algorithm"],
            rounded(row["rows"]),
            *(rounded(row[name]) for name in ("rows_mib", "beyond_mib", "cpu_s")),
        ]
        for row in measured["memory"]
    ]
    head = ["algorithm", "rows, d = 2", "the rows, MiB", "beyond them, MiB", "CPU s"]
    return (
        f"{table(head, lines)}\nThe peak memory of an answer besides its rows, in a process of its"
        " own.\n"
    )


@click.command()
@quick_option("Few rows, in seconds")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("benchmarks/results"), show_default=True
)
def main(quick: bool, out: Path) -> None:
    """Measure answers and rounds, into rounds.json and rounds.md."""
    size = QUICK if quick else FULL
    with threadpool_limits(limits=1):
        measured = {
            "made_by": "python -m benchmarks rounds" + " --quick" * quick,
            "machine": facts(PACKAGES),
            "answers": measured_answers(size.shapes, size.rows, size.loop_rows, size.turns),
            "rounds": measured_rounds(size),
            "service": measured_service(
                size.service, size.clients, size.service_rows, size.service_rounds
            ),
            "live": measured_clients(size.live_clients, size.service_rows, size.service_rounds),
            "memory": measured_memory(size.memory),
        }
    write(out, "rounds", measured, markdown(measured))
    click.echo(markdown(measured))
