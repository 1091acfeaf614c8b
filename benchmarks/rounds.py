"""Rounds: time per row of an answer against K, d and other ways to calculate it; time and bytes of a round.

An answer takes turns with the plain NumPy form of the same sums, with one step of scikit-learn's (k-means' Lloyd
iteration, a mixture's EM step), and with a loop over the rows in Python. A round is measured at 1 000 clients: what
folding and combining add to the clients' own arithmetic.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from benchmarks.machine import facts, one_line
from benchmarks.results import rounded, spread, table, write
from shoal.algorithms.federations import hint
from shoal.algorithms.policies import Answer, Memory, Policy, fold
from shoal.algorithms.registry import ROUNDS
from shoal.algorithms.rounds import Params, Stats
from shoal.codec import pack

Floats = NDArray[np.float64]
Work = Callable[[], Any]
SEED = 3
PACKAGES = ("numpy", "scikit-learn")


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


FULL = Size(20_000, 200, 7, ((3, 2), (10, 16), (50, 16), (10, 64)), 1000, 200)
QUICK = Size(2_000, 50, 3, ((3, 2), (10, 16)), 50, 50)


# The same sums, other ways. Each is what somebody would write who has read the papers.


def plain_kmeans(params: Params, rows: Floats) -> Stats:
    far = ((rows[:, None, :] - params["centre"]) ** 2).sum(axis=2)
    hot = np.eye(len(params["centre"]))[far.argmin(axis=1)]
    return {"count": hot.sum(axis=0), "sum": hot.T @ rows, "inertia": far.min(axis=1).sum()}


def plain_fcm(params: Params, rows: Floats) -> Stats:
    far = ((rows[:, None, :] - params["centre"]) ** 2).sum(axis=2) ** (1 / (params["fuzzifier"][0] - 1))
    weights = (1 / (far * (1 / far).sum(axis=1, keepdims=True))) ** params["fuzzifier"][0]
    return {"mass": weights.sum(axis=0), "sum": weights.T @ rows}


def plain_gmm(params: Params, rows: Floats) -> Stats:
    k, d = params["centre"].shape
    covariances = np.empty((k, d, d))
    above = np.triu_indices(d)
    covariances[:, above[0], above[1]] = covariances[:, above[1], above[0]] = params["spread"]
    gaps = rows[:, None, :] - params["centre"]
    far = np.einsum("nkd,kde,nke->nk", gaps, np.linalg.inv(covariances), gaps, optimize=True)
    logs = -0.5 * (d * np.log(2 * np.pi) + np.linalg.slogdet(covariances)[1] + far) - np.log(k)
    peak = logs.max(axis=1, keepdims=True)
    shares = np.exp(logs - peak)
    heights = shares.sum(axis=1, keepdims=True)
    shares /= heights
    second = np.einsum("nk,nd,ne->kde", shares, rows, rows, optimize=True)
    return {
        "mass": shares.sum(axis=0),
        "sum": shares.T @ rows,
        "second": second,
        "likelihood": (peak + np.log(heights)).sum(),
    }


PLAIN: Mapping[str, Callable[[Params, Floats], Stats]] = {
    "kmeans": plain_kmeans,
    "fcm": plain_fcm,
    "gmm": plain_gmm,
}


def by_row(name: str, params: Params, rows: Floats) -> None:
    """A loop over the rows in Python, each with the plain form."""
    for row in rows:
        PLAIN[name](params, row[None])


def scikit_step(name: str, params: Params, rows: Floats) -> Work | None:
    """One of scikit-learn's own steps on the same rows from the same place; fuzzy c-means it has not."""
    if name == "kmeans":
        from sklearn.cluster import _k_means_lloyd  # noqa: PLC0415

        k = len(params["centre"])
        weights, new, mass = np.ones(len(rows)), np.zeros_like(params["centre"]), np.zeros(k)
        labels, moved = np.zeros(len(rows), dtype=np.int32), np.zeros(k)
        centre = params["centre"].copy()
        return lambda: _k_means_lloyd.lloyd_iter_chunked_dense(rows, weights, centre, new, mass, labels, moved, 1)
    if name == "gmm":
        from sklearn.mixture import GaussianMixture  # noqa: PLC0415

        mixture = GaussianMixture(len(params["centre"]), max_iter=1, tol=0.0, means_init=params["centre"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mixture.fit(rows)

        def step() -> None:
            _, logs = mixture._e_step(rows)
            mixture._m_step(rows, logs)

        return step
    return None


def rows_and_params(name: str, k: int, d: int, n: int) -> tuple[Floats, Params]:
    generator = np.random.default_rng([SEED, k, d])
    centres = generator.normal(size=(k, d)) * 3
    rows = centres[generator.integers(0, k, n)] + generator.normal(size=(n, d))
    algorithm = ROUNDS[name]
    params = algorithm.start({"clusters": k}, d, hint([rows], SEED))
    for _ in range(2):
        params = algorithm.combine(params, [algorithm.answer(params, rows)])
    return rows, params


def measured_answers(size: Size) -> list[dict[str, Any]]:
    found = []
    for name in PLAIN:
        for k, d in size.shapes:
            rows, params = rows_and_params(name, k, d, size.rows)
            ways: dict[str, tuple[Work, int]] = {
                "ours": (partial(ROUNDS[name].answer, params, rows), len(rows)),
                "plain NumPy": (partial(PLAIN[name], params, rows), len(rows)),
                "loop": (partial(by_row, name, params, rows[: size.loop_rows]), size.loop_rows),
            }
            step = scikit_step(name, params, rows)
            if step is not None:
                ways["scikit-learn"] = (step, len(rows))
            seconds = take_turns({way: work for way, (work, _) in ways.items()}, size.turns)
            per_row = {way: [each / ways[way][1] for each in seconds[way]] for way in ways}
            ratios = {
                way: spread([other / ours for other, ours in zip(per_row[way], per_row["ours"], strict=True)])
                for way in ways
                if way != "ours"
            }
            found.append(
                {
                    "algorithm": name,
                    "K": k,
                    "d": d,
                    "ns_per_row": {way: spread([1e9 * each for each in times]) for way, times in per_row.items()},
                    "times_as_fast_as": ratios,
                    "bytes_up": len(pack(dict(ROUNDS[name].answer(params, rows)))),
                    "bytes_down": len(pack(dict(params))),
                }
            )
    return found


def take_turns(ways: Mapping[str, Work], turns: int) -> dict[str, list[float]]:
    """Processor seconds of each way, turn by turn, after one untimed turn each."""
    for work in ways.values():
        work()
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(turns):
        for way, work in ways.items():
            gc.collect()
            begun = time.process_time()
            work()
            seconds[way].append(time.process_time() - begun)
    return seconds


def measured_rounds(size: Size) -> list[dict[str, Any]]:
    """What a round of many clients takes beyond their arithmetic, and the bytes of one answer and one call."""
    found = []
    k, d = 10, 16
    for name, algorithm in ROUNDS.items():
        rows, params = rows_and_params(name, k, d, size.clients * size.client_rows)
        clients = np.array_split(rows, size.clients)
        if name in ("kfed", "mufc", "ffcm", "gmm_local"):
            # These fit alone: a tenth of the clients is enough to know.
            clients = clients[: max(1, size.clients // 10)]
        shares, answering, whole = [], [], []
        for _ in range(3):
            begun = time.process_time()
            answers = [Answer(f"{i:06}", 0, algorithm.answer(params, each)) for i, each in enumerate(clients)]
            answered = time.process_time()
            _, counted = fold(Policy(), Memory(), answers, 0)
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
    for each in measured["answers"]:
        ns, ratio = each["ns_per_row"], each["times_as_fast_as"]
        other = rounded(ns["scikit-learn"]["median"]) if "scikit-learn" in ns else "-"
        lines.append(
            [
                each["algorithm"],
                str(each["K"]),
                str(each["d"]),
                rounded(ns["ours"]["median"]),
                rounded(ns["plain NumPy"]["median"]),
                other,
                f"{ratio['plain NumPy']['median']:.1f}",
                f"{ratio['scikit-learn']['median']:.2f}" if "scikit-learn" in ratio else "-",
                f"{ratio['loop']['median']:.0f}",
                str(each["bytes_up"]),
                str(each["bytes_down"]),
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
            "x loop",
            "bytes up",
            "bytes down",
        ],
        lines,
    )
    rounds = table(
        ["algorithm", "clients", "rows each", "round, s", "server's share", "bytes up", "bytes down"],
        [
            [
                each["algorithm"],
                str(each["clients"]),
                str(each["rows_each"]),
                f"{each['round_s']:.3g}",
                f"{each['server_share']:.1%}",
                str(each["bytes_up"]),
                str(each["bytes_down"]),
            ]
            for each in measured["rounds"]
        ],
    )
    return (
        f"# Rounds\n\nMade by `{measured['made_by']}`; do not edit.\n\n"
        'An answer, one thread; medians of turns. "x" is how many times as fast ours is.\n\n'
        f"{answers}\nA round in one process. The server's share is what folding and combining add to the clients' time."
        f"\n\n{rounds}\n{one_line(measured['machine'])}\n"
    )


@click.command()
@click.option("--quick", is_flag=True, help="Small and fast: to see that it runs.")
@click.option("--out", type=click.Path(path_type=Path), default=Path(__file__).parent / "results", show_default=True)
def main(quick: bool, out: Path) -> None:
    """Measure answers and rounds, into rounds.json and rounds.md."""
    size = QUICK if quick else FULL
    with threadpool_limits(limits=1):
        measured = {
            "made_by": "python -m benchmarks.rounds" + " --quick" * quick,
            "machine": facts(PACKAGES),
            "answers": measured_answers(size),
            "rounds": measured_rounds(size),
        }
    write(out, "rounds", measured, markdown(measured))
    click.echo(markdown(measured))


if __name__ == "__main__":
    main()
