"""Regimes: streams with regimes, streams that have none, and sensors; beside models that are told their number."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import Any, Final, NamedTuple

import click
import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, table, write
from benchmarks.steadiness.sensors import SENSORS, read
from shoal.estimators.regimes import Regimes
from shoal.kernels.arrays import Floats, Ints

SEEDS: Final = (6101, 6202, 6303, 6404)
"""seeds of the published figures; nothing was chosen on them"""
READINGS, CLIENTS, FEATURES = 10_000, 4, 3
ONLY_NULLS: Final = ("HMM by BIC",)
"""learners that take minutes a stream"""
MODELS_MAX: Final = 6
"""most regimes that a peer by BIC tries"""


class Stream(NamedTuple):
    """Rows (n, d) of clients one after the other, and the regime and the client of each row."""

    name: str
    rows: Floats
    truth: Ints
    clients: Ints

    @property
    def k(self) -> int:
        """Number of regimes."""
        return int(self.truth.max()) + 1


def autoregressive(rng: np.random.Generator, n: int, phi: float | Floats, d: int = FEATURES) -> Floats:
    """(n, d) of variance 1; `phi` is one number or (d,)."""
    rows, steps = np.zeros((n, d)), rng.normal(size=(n, d)) * np.sqrt(1 - np.square(phi))
    for t in range(1, n):
        rows[t] = phi * rows[t - 1] + steps[t]
    return rows


def stays(rng: np.random.Generator, n: int, k: int, dwell: float) -> Ints:
    """(n,) regimes, each for a gamma-distributed time of this mean, then another one by chance."""
    out: list[int] = []
    now = int(rng.integers(k))
    while len(out) < n:
        out += [now] * max(3, int(rng.gamma(4, dwell / 4)))
        now = (now + int(rng.integers(1, k))) % k
    return np.array(out[:n])


def means_apart(rng: np.random.Generator, k: int, distance: float) -> Floats:
    """(k, d) means of which every two are this far apart, or neighbours on a line if there are more than features."""
    if k <= FEATURES:
        axes = np.linalg.qr(rng.normal(size=(FEATURES, FEATURES)))[0]
        apart: Floats = distance / np.sqrt(2) * axes[:k]
        return apart
    line = rng.normal(size=FEATURES)
    return np.outer(np.arange(k) * distance, line / np.linalg.norm(line))


def stream(name: str, seed: int, k: int, dwell: float, make: Callable[[np.random.Generator, Ints], Floats]) -> Stream:
    """The rows that `make` gives for the regimes of each client."""
    rng = np.random.default_rng(seed)
    n = READINGS // CLIENTS
    truth = [stays(rng, n, k, dwell) for _ in range(CLIENTS)]
    rows = np.concatenate([make(rng, one) for one in truth])
    return Stream(name, rows, np.concatenate(truth), np.repeat(np.arange(CLIENTS), n))


def levels(seed: int, distance: float, dwell: float, k: int, phi: float = 0.5) -> Stream:
    """Regimes of other means, AR(1) around them."""
    means = means_apart(np.random.default_rng(seed), k, distance)
    name = f"{distance:g} sd, K = {k}, AR {phi:g}, dwell {dwell:g}"
    return stream(name, seed, k, dwell, lambda rng, truth: autoregressive(rng, len(truth), phi) + means[truth])


def spreads(seed: int, dwell: float) -> Stream:
    """Two regimes of one mean, the second of twice the deviation."""
    return stream(
        f"same mean, sd x 2, dwell {dwell:g}",
        seed,
        2,
        dwell,
        lambda rng, truth: autoregressive(rng, len(truth), 0.5) * (1.0 + truth[:, None]),
    )


def oscillations(seed: int, dwell: float) -> Stream:
    """Two regimes of one mean and deviation, of opposite correlation in time."""

    def make(rng: np.random.Generator, truth: Ints) -> Floats:
        rows, phi = rng.normal(size=(len(truth), FEATURES)), np.array([0.8, -0.5])[truth]
        for t in range(1, len(rows)):
            rows[t] = phi[t] * rows[t - 1] + np.sqrt(1 - phi[t] ** 2) * rows[t]
        return rows

    return stream(f"same mean, oscillation, dwell {dwell:g}", seed, 2, dwell, make)


def slopes(seed: int, dwell: float) -> Stream:
    """Two regimes, rising and falling."""

    def make(rng: np.random.Generator, truth: Ints) -> Floats:
        level = np.cumsum(np.array([0.2, -0.2])[truth])[:, None] / np.sqrt(FEATURES)
        rows: Floats = autoregressive(rng, len(truth), 0.5) + (level - level.mean())
        return rows

    return stream(f"same mean, slope, dwell {dwell:g}", seed, 2, dwell, make)


def grid(quick: bool) -> list[Callable[[int], Stream]]:
    """Streams with regimes, as functions of a seed."""
    if quick:
        return [partial(levels, distance=3.0, dwell=100.0, k=2)]
    return [
        *(partial(levels, distance=sd, dwell=dwell, k=2) for sd in (1.0, 2.0, 3.0) for dwell in (20.0, 100.0, 500.0)),
        *(partial(levels, distance=3.0, dwell=dwell, k=3) for dwell in (100.0, 500.0)),
        *(partial(levels, distance=3.0, dwell=200.0, k=k) for k in (4, 5, 6)),
        partial(levels, distance=2.0, dwell=200.0, k=2, phi=0.9),
        *(partial(spreads, dwell=dwell) for dwell in (100.0, 500.0)),
        partial(oscillations, dwell=500.0),
        partial(slopes, dwell=500.0),
    ]


def sine(rng: np.random.Generator, n: int, period: float, noise: float) -> Floats:
    """(n, d) of a cycle and noise."""
    times = np.arange(n)[:, None] / period + rng.random()
    rows: Floats = np.sin(2 * np.pi * times + 0.7 * np.arange(FEATURES)) + noise * rng.normal(size=(n, FEATURES))
    return rows


def walk(rng: np.random.Generator, n: int) -> Floats:
    """(n, d) sums of independent steps."""
    return np.cumsum(rng.normal(size=(n, FEATURES)), axis=0)


def heavy_autoregressive(rng: np.random.Generator, n: int) -> Floats:
    """(n, d) AR(1) with steps of heavy tails."""
    rows, steps = np.zeros((n, FEATURES)), rng.standard_t(3, size=(n, FEATURES))
    for t in range(1, n):
        rows[t] = 0.95 * rows[t - 1] + steps[t]
    return rows


NULLS: Final[dict[str, Callable[[np.random.Generator, int], Floats]]] = {
    "independent": lambda rng, n: rng.normal(size=(n, FEATURES)),
    "AR .9": lambda rng, n: autoregressive(rng, n, 0.9),
    "AR .99": lambda rng, n: autoregressive(rng, n, 0.99),
    "AR .999": lambda rng, n: autoregressive(rng, n, 0.999),
    "AR of several speeds": lambda rng, n: autoregressive(rng, n, np.array([0.995, 0.9, 0.0])),
    "random walk": walk,
    "walk and noise": lambda rng, n: 0.1 * walk(rng, n) + rng.normal(size=(n, FEATURES)),
    "cycle of 100, noise .3": lambda rng, n: sine(rng, n, 100, 0.3),
    "cycle of 1000, noise .3": lambda rng, n: sine(rng, n, 1000, 0.3),
    "cycle of 1000, noise 1": lambda rng, n: sine(rng, n, 1000, 1.0),
    "cycle of 24, noise .1": lambda rng, n: sine(rng, n, 24, 0.1),
    "trend": lambda rng, n: rng.normal(size=(n, FEATURES)) + 3 * np.arange(n)[:, None] / n,
    "volatility": lambda rng, n: rng.normal(size=(n, FEATURES)) * np.exp(0.7 * autoregressive(rng, n, 0.99, 1)),
    "heavy tails": lambda rng, n: rng.standard_t(2.5, size=(n, FEATURES)),
    "heavy tails, AR .95": heavy_autoregressive,
    "skewed": lambda rng, n: np.exp(autoregressive(rng, n, 0.95)),
    "whole numbers, AR .95": lambda rng, n: np.round(2 * autoregressive(rng, n, 0.95)),
}
"""streams in which nothing stays"""


def null(name: str, seed: int) -> Stream:
    """A stream of several clients, each with a level of its own every other seed."""
    rng = np.random.default_rng(seed)
    clients = (1, 4, 4, 20)[seed % 4]
    n = READINGS // clients
    rows = np.concatenate([NULLS[name](rng, n) + 3.0 * (seed % 2) * rng.normal(size=FEATURES) for _ in range(clients)])
    return Stream(name, rows, np.zeros(len(rows), dtype=np.int64), np.repeat(np.arange(clients), n))


Learner = Callable[[Stream], Ints]


def regimes(data: Stream) -> Ints:
    """Ours, told nothing."""
    return Regimes().fit(data.rows, clients=data.clients).labels_


def standardized(rows: Floats) -> Floats:
    """Rows for a peer: means 0, deviations 1, clipped at 6."""
    standard: Floats = (rows - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-9)
    return standard.clip(-6, 6)


def kmeans_told(data: Stream) -> Ints:
    """k-means with the number of regimes."""
    return np.asarray(KMeans(data.k, n_init=3, random_state=0).fit_predict(standardized(data.rows)))


def mixture_by_bic(data: Stream) -> Ints:
    """A Gaussian mixture with the number of components of the least BIC."""
    rows = standardized(data.rows)
    models = [GaussianMixture(k, random_state=0).fit(rows) for k in range(1, MODELS_MAX + 1)]
    return np.asarray(min(models, key=lambda model: model.bic(rows)).predict(rows))


def hidden_markov(data: Stream, k: int | None) -> Ints:
    """A Gaussian hidden Markov model with k states; None: with the number of the least BIC."""
    hmm = import_module("hmmlearn.hmm")

    rows, lengths = standardized(data.rows), np.bincount(data.clients).tolist()
    best: tuple[float, Any] | None = None
    for states in [k] if k else range(1, MODELS_MAX + 1):
        for seed in range(2):
            model = hmm.GaussianHMM(states, "diag", n_iter=40, tol=0.1, random_state=seed, min_covar=1e-2)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it has not converged within 40 steps
                model.fit(rows, lengths)
                bic = -2 * model.score(rows, lengths) + (states**2 - 1 + 2 * states * FEATURES) * np.log(len(rows))
            if best is None or bic < best[0]:
                best = bic, model
    assert best is not None
    return np.asarray(best[1].predict(rows, lengths))


def learners() -> dict[str, Learner]:
    """Ours and its peers; hmmlearn where it is installed."""
    found: dict[str, Learner] = {"regimes": regimes, "k-means told K": kmeans_told, "GMM by BIC": mixture_by_bic}
    if find_spec("hmmlearn"):
        found["HMM told K"] = lambda data: hidden_markov(data, data.k)
        found["HMM by BIC"] = lambda data: hidden_markov(data, None)
    return found


def measure(quick: bool) -> Iterator[dict[str, Any]]:
    """ARI, number found and processor time of each learner on each stream with regimes."""
    for make in grid(quick):
        data = [make(seed) for seed in (SEEDS[:1] if quick else SEEDS)]
        for name, learn in learners().items():
            if name in ONLY_NULLS:
                continue
            begin = time.process_time()
            labels = [learn(one) for one in data]
            spent = time.process_time() - begin
            agreement = [adjusted_rand_score(one.truth, found) for one, found in zip(data, labels, strict=True)]
            counted = [len(np.unique(found)) for found in labels]
            click.echo(f"{data[0].name}, {name}: {mean(agreement):.2f}, {counted}")
            yield {
                "stream": data[0].name,
                "k": data[0].k,
                "learner": name,
                "ari": agreement,
                "found": counted,
                "seconds": spent / len(data),
            }


def measure_nulls(quick: bool) -> Iterator[dict[str, Any]]:
    """How many streams without regimes each learner takes for several."""
    seeds = range(9001, 9002) if quick else range(9001, 9013)
    for name in list(NULLS)[:1] if quick else NULLS:
        for learner, learn in learners().items():
            # A peer that is told the number has none to find; those by BIC are slow, and two seeds show it.
            if "told" in learner:
                continue
            own = list(seeds if learner == "regimes" else seeds[:2])
            false = sum(len(np.unique(learn(null(name, seed)))) > 1 for seed in own)
            click.echo(f"{name}, {learner}: {false} of {len(own)} false")
            yield {"stream": name, "learner": learner, "false": false, "streams": len(own)}


def measure_sensors(folder: Path) -> Iterator[dict[str, Any]]:
    """What is found in sensors, and whether models of the two halves agree on the whole."""
    for name, source in SENSORS.items():
        rows, truth = read(folder, source)
        half = len(rows) // 2
        model = Regimes().fit(rows)
        first, second = (Regimes().fit(part).predict(rows) for part in (rows[:half], rows[half:]))
        line = {
            "stream": name,
            "rows": len(rows),
            "found": model.n_regimes_,
            "scale": model.scale_,
            "changes": int(model.transitions_.sum()),
            "ari": adjusted_rand_score(truth, model.labels_),
            "halves": adjusted_rand_score(first, second) if model.n_regimes_ > 1 else None,
        }
        click.echo(f"{name}: {line}")
        yield line


def markdown(result: dict[str, Any]) -> str:
    """The page."""
    cells = result["regimes"]
    names = list(dict.fromkeys(cell["learner"] for cell in cells))
    by_stream = {(cell["stream"], cell["learner"]): cell for cell in cells}
    lines = [
        [
            stream,
            *(f"{mean(by_stream[stream, name]['ari']):.2f}" for name in names if (stream, name) in by_stream),
            ", ".join(map(str, by_stream[stream, "regimes"]["found"])),
        ]
        for stream in dict.fromkeys(cell["stream"] for cell in cells)
    ]
    nulls = [
        [name, f"{sum(one['false'] for one in own)} of {sum(one['streams'] for one in own)}"]
        for name in dict.fromkeys(cell["learner"] for cell in result["nulls"])
        if (own := [cell for cell in result["nulls"] if cell["learner"] == name])
    ]
    worst = [f"{cell['stream']} {cell['false']}" for cell in result["nulls"] if cell["learner"] == "regimes"]
    spent = mean(cell["seconds"] for cell in cells if cell["learner"] == "regimes")
    sensors = [
        [
            *(str(cell[key]) for key in ("stream", "rows", "found", "changes")),
            *("" if cell[key] is None else f"{cell[key]:.2f}" for key in ("ari", "halves")),
        ]
        for cell in result["sensors"]
    ]
    text = (
        f"# Regimes\n\nMade by `{result['made_by']}`: {READINGS} readings of {CLIENTS} clients, {FEATURES} features; "
        f"mean adjusted Rand index over {len(cells[0]['ari'])} seeds, and the numbers that `Regimes` finds without "
        f"being told. It takes {spent:.1f} s of processor time a stream.\n\n"
        f"{table(['stream', *names, 'found'], lines)}\n## Streams without regimes\n\nStreams of {len(NULLS)} kinds "
        f"that were taken for several regimes.\n\n{table(['learner', 'false'], nulls)}\n"
        f"Of `Regimes`, by kind: {'; '.join(worst)}.\n"
    )
    if sensors:
        text += (
            "\n## Sensors\n\nRegimes found in sensors in the order of time, changes seen, agreement with the classes "
            "of the file where it has any, and agreement of models of its two halves (1 too where both find one).\n\n"
            + table(["sensor", "rows", "found", "changes", "ARI", "halves"], sensors)
        )
    return f"{text}\n{one_line(result['machine'])}\n"


@click.command(context_settings={"max_content_width": 100})
@click.option("--quick", is_flag=True, help="One stream and one seed: shows that it runs; no figures to keep.")
@click.option("--data", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Folder of data sets.")
@out_option("regimes")
def main(quick: bool, data: Path | None, out: Path) -> None:
    """Measure what `Regimes` finds, beside hidden Markov models, mixtures and k-means."""
    machine, made_by = facts(("shoal", "numpy", "scikit-learn")), "python -m benchmarks.regimes"
    with threadpool_limits(limits=1):
        result = {
            "made_by": made_by + " --quick" * quick + " --data FOLDER" * (data is not None),
            "machine": machine,
            "regimes": list(measure(quick)),
            "nulls": list(measure_nulls(quick)),
            "sensors": [] if data is None else list(measure_sensors(data)),
        }
    write(out, "regimes", result, markdown(result))
    click.echo(f"written to {out}/regimes.json and {out}/regimes.md")


if __name__ == "__main__":
    main()
