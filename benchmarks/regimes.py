"""Regimes: streams with regimes, streams that have none, and sensors; beside models that are told
their number.

hmmlearn and ruptures are measured where they are installed beside shoal; shoal itself needs
neither.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median
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
from shoal.estimators.cluster_tree import ClusterTree
from shoal.estimators.regimes import Regimes
from shoal.kernels.arrays import Floats, Ints

SEEDS: Final = (6101, 6202, 6303, 6404, 6505, 6606, 6707, 6808)
"""seeds of the published figures; nothing was chosen on them"""
CHOOSING_SEEDS: Final = tuple(range(101, 109))
"""seeds on which a change of the algorithm is judged before the others are looked at"""
NULL_SEEDS: Final = range(9001, 9013)
CHOOSING_NULL_SEEDS: Final = range(301, 313)
READINGS = 10_000
CLIENTS = 4
FEATURES = 3
SEEDS_OF: Final = {"HMM told K": 4, "cluster_tree": 2, "change points + GMM": 2}
"""learners that take long -> of how many seeds they get the streams with regimes"""
ONLY_NULLS: Final = ("HMM by BIC",)
"""learners that take half a minute a stream"""
NULL_SEEDS_OF_PEERS: Final = 1
ON_SENSORS: Final = ("k-means told K", "HMM told K")
MODELS_MAX: Final = 6
"""most regimes that a peer by BIC tries"""
BLOCK: Final = 8
"""readings of which change points get the mean"""
SEGMENTS_MIN: Final = 6
"""segments between change points from which on they are grouped"""
NOTICED: Final = 3
"""successive readings with the new regime's label by which a change counts as noticed"""


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


def autoregressive(
    rng: np.random.Generator, n: int, phi: float | Floats, d: int = FEATURES
) -> Floats:
    """(n, d) of variance 1; `phi` is one number or (d,)."""
    rows = np.zeros((n, d))
    steps = rng.normal(size=(n, d)) * np.sqrt(1 - np.square(phi))
    for t in range(1, n):
        rows[t] = phi * rows[t - 1] + steps[t]
    return rows


def dwells(rng: np.random.Generator, n: int, k: int, dwell: float) -> Ints:
    """(n,) regimes, each for a gamma-distributed time of this mean, then another one by chance."""
    out: list[int] = []
    now = int(rng.integers(k))
    while len(out) < n:
        out += [now] * max(3, int(rng.gamma(4, dwell / 4)))
        now = (now + int(rng.integers(1, k))) % k
    return np.array(out[:n])


def means_apart(rng: np.random.Generator, k: int, distance: float) -> Floats:
    """(k, d) means of which every two are this far apart, or neighbours on a line if there are more
    than features."""
    if k <= FEATURES:
        axes = np.linalg.qr(rng.normal(size=(FEATURES, FEATURES)))[0]
        apart: Floats = distance / np.sqrt(2) * axes[:k]
        return apart
    line = rng.normal(size=FEATURES)
    return np.outer(np.arange(k) * distance, line / np.linalg.norm(line))


def stream(
    name: str,
    seed: int,
    k: int,
    dwell: float,
    make: Callable[[np.random.Generator, Ints], Floats],
    readings: int = READINGS,
    clients: int = CLIENTS,
) -> Stream:
    """The rows that `make` gives for the regimes of each client."""
    rng = np.random.default_rng(seed)
    n = readings // clients
    truth = [dwells(rng, n, k, dwell) for _ in range(clients)]
    rows = np.concatenate([make(rng, regime) for regime in truth])
    return Stream(name, rows, np.concatenate(truth), np.repeat(np.arange(clients), n))


def levels(
    seed: int,
    distance: float,
    dwell: float,
    k: int,
    phi: float = 0.5,
    drift: float = 0.0,
    readings: int = READINGS,
    clients: int = CLIENTS,
) -> Stream:
    """Regimes of other means, AR(1) around them; `drift`: deviations by which all means have moved
    at the end."""
    means = means_apart(np.random.default_rng(seed), k, distance)

    def make(rng: np.random.Generator, truth: Ints) -> Floats:
        rows = autoregressive(rng, len(truth), phi) + means[truth]
        return rows + drift * np.linspace(0, 1, len(truth))[:, None]

    name = f"{distance:g} sd, K = {k}, AR {phi:g}, dwell {dwell:g}"
    name += f", drift of {drift:g} sd" * (drift > 0) + f", {readings} readings" * (
        readings != READINGS
    )
    return stream(
        name + f", {clients} clients" * (clients != CLIENTS),
        seed,
        k,
        dwell,
        make,
        readings,
        clients,
    )


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
        rows = rng.normal(size=(len(truth), FEATURES))
        phi = np.array([0.8, -0.5])[truth]
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
        *(
            partial(levels, distance=sd, dwell=dwell, k=2)
            for sd in (1.0, 2.0, 3.0)
            for dwell in (20.0, 100.0, 500.0)
        ),
        *(partial(levels, distance=3.0, dwell=dwell, k=3) for dwell in (100.0, 500.0)),
        *(partial(levels, distance=3.0, dwell=200.0, k=k) for k in (4, 5, 6)),
        partial(levels, distance=3.0, dwell=100.0, k=2, readings=3_000),
        partial(levels, distance=3.0, dwell=100.0, k=2, clients=20),
        partial(levels, distance=3.0, dwell=100.0, k=2, drift=1.0),
        partial(levels, distance=2.0, dwell=200.0, k=2, phi=0.9),
        *(partial(spreads, dwell=dwell) for dwell in (100.0, 500.0)),
        partial(oscillations, dwell=500.0),
        partial(slopes, dwell=500.0),
    ]


def sine(
    rng: np.random.Generator, n: int, period: float, noise: float, d: int = FEATURES
) -> Floats:
    """(n, d) of a cycle and noise."""
    times = np.arange(n)[:, None] / period + rng.random()
    rows: Floats = np.sin(2 * np.pi * times + 0.7 * np.arange(d)) + noise * rng.normal(size=(n, d))
    return rows


def walk(rng: np.random.Generator, n: int, d: int = FEATURES) -> Floats:
    """(n, d) sums of independent steps."""
    return np.cumsum(rng.normal(size=(n, d)), axis=0)


def heavy_autoregressive(rng: np.random.Generator, n: int, d: int = FEATURES) -> Floats:
    """(n, d) AR(1) with steps of heavy tails."""
    rows = np.zeros((n, d))
    steps = rng.standard_t(3, size=(n, d))
    for t in range(1, n):
        rows[t] = 0.95 * rows[t - 1] + steps[t]
    return rows


NULLS: Final[dict[str, Callable[[np.random.Generator, int, int], Floats]]] = {
    "independent": lambda rng, n, d: rng.normal(size=(n, d)),
    "AR .9": lambda rng, n, d: autoregressive(rng, n, 0.9, d),
    "AR .99": lambda rng, n, d: autoregressive(rng, n, 0.99, d),
    "AR .999": lambda rng, n, d: autoregressive(rng, n, 0.999, d),
    "AR of several speeds": lambda rng, n, d: autoregressive(
        rng, n, np.resize([0.995, 0.9, 0.0], d), d
    ),
    "random walk": walk,
    "walk and noise": lambda rng, n, d: 0.1 * walk(rng, n, d) + rng.normal(size=(n, d)),
    "cycle of 100, noise .3": lambda rng, n, d: sine(rng, n, 100, 0.3, d),
    "cycle of 1000, noise .3": lambda rng, n, d: sine(rng, n, 1000, 0.3, d),
    "cycle of 1000, noise 1": lambda rng, n, d: sine(rng, n, 1000, 1.0, d),
    "cycle of 24, noise .1": lambda rng, n, d: sine(rng, n, 24, 0.1, d),
    "trend": lambda rng, n, d: rng.normal(size=(n, d)) + 3 * np.arange(n)[:, None] / n,
    "volatility": lambda rng, n, d: (
        rng.normal(size=(n, d)) * np.exp(0.7 * autoregressive(rng, n, 0.99, 1))
    ),
    "heavy tails": lambda rng, n, d: rng.standard_t(2.5, size=(n, d)),
    "heavy tails, AR .95": heavy_autoregressive,
    "skewed": lambda rng, n, d: np.exp(autoregressive(rng, n, 0.95, d)),
    "whole numbers, AR .95": lambda rng, n, d: np.round(2 * autoregressive(rng, n, 0.95, d)),
}
"""streams in which nothing stays"""


def null(name: str, seed: int) -> Stream:
    """A stream of several clients, each with a level of its own every other seed."""
    rng = np.random.default_rng(seed)
    clients = (1, 4, 4, 20)[seed % 4]
    n = READINGS // clients
    made = [
        NULLS[name](rng, n, FEATURES) + 3.0 * (seed % 2) * rng.normal(size=FEATURES)
        for _ in range(clients)
    ]
    rows = np.concatenate(made)
    return Stream(name, rows, np.zeros(len(rows), dtype=np.int64), np.repeat(np.arange(clients), n))


class Labels(NamedTuple):
    """What a learner says of a stream."""

    of_row: Ints
    """(n,) by all readings"""
    live: Ints | None = None
    """(n,) by those up to the row; None: the learner has none"""


Learner = Callable[[Stream], Labels]


def regimes(data: Stream) -> Labels:
    """Ours, told nothing."""
    model = Regimes().fit(data.rows, clients=data.clients)
    return Labels(model.labels_, model.predict(data.rows, clients=data.clients, live=True))


def standardized(rows: Floats) -> Floats:
    """Rows for a peer: means 0, deviations 1, clipped at 6."""
    standard: Floats = (rows - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-9)
    return standard.clip(-6, 6)


def kmeans_told(data: Stream) -> Labels:
    """k-means with the number of regimes."""
    labels = np.asarray(
        KMeans(data.k, n_init=3, random_state=0).fit_predict(standardized(data.rows))
    )
    return Labels(labels, labels)


def mixture_by_bic(data: Stream) -> Labels:
    """A Gaussian mixture with the number of components of the least BIC."""
    rows = standardized(data.rows)
    models = [GaussianMixture(k, random_state=0).fit(rows) for k in range(1, MODELS_MAX + 1)]
    labels = np.asarray(min(models, key=lambda model: model.bic(rows)).predict(rows))
    return Labels(labels, labels)


def tree(data: Stream) -> Labels:
    """Our clusters of density, which time does not matter to."""
    labels = ClusterTree().fit(standardized(data.rows)).labels_
    return Labels(labels, labels)


def hidden_markov(data: Stream, k: int | None) -> Labels:
    """A Gaussian hidden Markov model with k states; None: with the number of the least BIC."""
    hmm = import_module("hmmlearn.hmm")

    rows = standardized(data.rows)
    lengths = np.bincount(data.clients).tolist()
    best: tuple[float, Any] | None = None
    for states in [k] if k else range(1, MODELS_MAX + 1):
        for seed in range(2):
            model = hmm.GaussianHMM(
                states, "diag", n_iter=40, tol=0.1, random_state=seed, min_covar=1e-2
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it has not converged within 40 steps
                model.fit(rows, lengths)
                bic = -2 * model.score(rows, lengths) + (
                    states**2 - 1 + 2 * states * FEATURES
                ) * np.log(len(rows))
            if best is None or bic < best[0]:
                best = bic, model
    assert best is not None
    return Labels(np.asarray(best[1].predict(rows, lengths)), filtered(best[1], rows, data.clients))


def filtered(model: Any, rows: Floats, clients: Ints) -> Ints:
    """(n,) the likeliest state of a hidden Markov model by the rows up to each, of one client after
    the other."""
    gaps = rows[:, None] - model.means_
    variances = np.array([np.diag(covariance) for covariance in model.covars_])
    fit = -0.5 * (gaps**2 / variances + np.log(variances)).sum(axis=2)
    fit = np.exp(fit - fit.max(axis=1, keepdims=True))
    states = np.zeros(len(rows), dtype=np.int64)
    chance = model.startprob_
    for row in range(len(rows)):
        begins = row == 0 or clients[row] != clients[row - 1]
        chance = (model.startprob_ if begins else chance @ model.transmat_) * fit[row] + 1e-300
        chance = chance / chance.sum()
        states[row] = np.argmax(chance)
    return states


def change_points(data: Stream) -> Labels:
    """Segments between changes of the mean (PELT), grouped by a Gaussian mixture of the least
    BIC."""
    ruptures = import_module("ruptures")

    rows = standardized(data.rows)
    ends: list[int] = []
    for client in np.unique(data.clients):
        first = int(np.argmax(data.clients == client))
        n = int((data.clients == client).sum())
        blocks = (
            rows[first : first + n // BLOCK * BLOCK].reshape(-1, BLOCK, rows.shape[1]).mean(axis=1)
        )
        # a deviation, if the means were constant
        noise = np.median(np.abs(np.diff(blocks, axis=0)), axis=0) / 0.95
        blocks = blocks / np.maximum(noise, 1e-3)
        penalty = 2 * rows.shape[1] * np.log(len(blocks))
        found = ruptures.Pelt(model="l2", min_size=2, jump=1).fit(blocks).predict(pen=penalty)
        ends += [*(first + BLOCK * end for end in found[:-1]), first + n]
    segment = np.searchsorted(ends, np.arange(len(rows)), side="right")
    parts = [rows[segment == place] for place in range(len(ends))]
    if len(parts) < SEGMENTS_MIN:
        return Labels(np.zeros(len(rows), dtype=np.int64))
    like = np.array([[*part.mean(axis=0), *np.log(part.std(axis=0) + 1e-2)] for part in parts])
    like = (like - like.mean(axis=0)) / np.maximum(like.std(axis=0), 1e-6)
    numbers = range(1, min(MODELS_MAX, len(parts) // 4) + 1)
    models = [
        GaussianMixture(k, covariance_type="diag", reg_covar=0.02, random_state=0).fit(like)
        for k in numbers
    ]
    return Labels(np.asarray(min(models, key=lambda model: model.bic(like)).predict(like))[segment])


def learners() -> dict[str, Learner]:
    """Ours and its peers; those of hmmlearn and ruptures where they are installed."""
    found: dict[str, Learner] = {
        "regimes": regimes,
        "cluster_tree": tree,
        "k-means told K": kmeans_told,
        "GMM by BIC": mixture_by_bic,
    }
    if find_spec("ruptures"):
        found["change points + GMM"] = change_points
    if find_spec("hmmlearn"):
        found["HMM told K"] = lambda data: hidden_markov(data, data.k)
        found["HMM by BIC"] = lambda data: hidden_markov(data, None)
    return found


def delay(data: Stream, live: Ints) -> tuple[float, float]:
    """Median readings from a change until it is noticed, and the share of changes that are before
    the next one.

    NaN where none is. A regime's label is that of most of its rows.
    """
    label = [
        np.bincount(live[data.truth == regime] - live.min()).argmax() + live.min()
        for regime in range(data.k)
    ]
    starts = 1 + np.flatnonzero((np.diff(data.truth) != 0) & (np.diff(data.clients) == 0))
    ends = np.append(starts[1:], len(live))
    last = 1 + np.searchsorted(data.clients, data.clients[starts], side="right") - 1
    delays = []
    for start, end in zip(starts, np.minimum(ends, last), strict=True):
        after = label[data.truth[start]]
        before = label[data.truth[start - 1]]
        right = np.append(live[start:end] == after, np.zeros(NOTICED, dtype=bool))
        noticed = np.flatnonzero(np.convolve(right, np.ones(NOTICED), "valid") == NOTICED)
        if len(noticed) and after != before:
            delays.append(int(noticed[0]))
    return (float(np.median(delays)) if delays else float("nan")), len(delays) / max(1, len(starts))


def measure(quick: bool, seeds: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """ARI, number found, delay and processor time of each learner on each stream with regimes."""
    for make in grid(quick):
        data = [make(seed) for seed in (seeds[:1] if quick else seeds)]
        for name, learn in learners().items():
            if name in ONLY_NULLS:
                continue
            own = data[: SEEDS_OF.get(name)]
            begin = time.process_time()
            labels = [learn(stream) for stream in own]
            spent = time.process_time() - begin
            pairs = list(zip(own, labels, strict=True))
            agreement = [adjusted_rand_score(stream.truth, found.of_row) for stream, found in pairs]
            counted = [len(np.unique(found.of_row)) for found in labels]
            delays = [
                delay(stream, found.live) for stream, found in pairs if found.live is not None
            ]
            click.echo(
                f"{data[0].name}, {name}: {mean(agreement):.2f}, {counted},"
                f" {spent / len(own):.1f} s"
            )
            yield {
                "stream": data[0].name,
                "k": data[0].k,
                "learner": name,
                "ari": agreement,
                "found": counted,
                "delay": [delayed for delayed, _ in delays if not np.isnan(delayed)],
                "noticed": [share for _, share in delays],
                "seconds": spent / len(own),
            }


def measure_nulls(quick: bool, seeds: range) -> Iterator[dict[str, Any]]:
    """How many streams without regimes each learner takes for several."""
    for name in list(NULLS)[:1] if quick else NULLS:
        for learner, learn in learners().items():
            # A peer that is told the number has none to find; those by BIC are slow, and one seed
            # shows it. In streams of odd seeds clients have levels of their own, which are clusters
            # to a peer.
            if "told" in learner:
                continue
            even = [seed for seed in seeds if seed % 2 == 0]
            own = list(seeds) if learner == "regimes" else even[:NULL_SEEDS_OF_PEERS]
            own = own[:1] if quick else own
            false = sum(len(np.unique(learn(null(name, seed)).of_row)) > 1 for seed in own)
            click.echo(f"{name}, {learner}: {false} of {len(own)} false")
            yield {"stream": name, "learner": learner, "false": false, "streams": len(own)}


def measure_sensors(folder: Path) -> Iterator[dict[str, Any]]:
    """What is found in sensors, and whether models of the two halves agree on the whole."""
    for name, source in SENSORS.items():
        rows, truth = read(folder, source)
        half = len(rows) // 2
        model = Regimes().fit(rows)
        first, second = (Regimes().fit(part).predict(rows) for part in (rows[:half], rows[half:]))
        data = Stream(name, rows, truth, np.zeros(len(rows), dtype=np.int64))
        peers = {
            peer: (adjusted_rand_score(truth, found), len(np.unique(found)))
            for peer, learn in learners().items()
            if peer in ON_SENSORS
            for found in (learn(data).of_row,)
        }
        line = {
            "stream": name,
            "rows": len(rows),
            "found": model.n_regimes_,
            "scale": model.scale_,
            "changes": int(model.transitions_.sum()),
            "ari": adjusted_rand_score(truth, model.labels_),
            "halves": adjusted_rand_score(first, second) if model.n_regimes_ > 1 else None,
            "peers": peers,
        }
        click.echo(f"{name}: {line}")
        yield line


def markdown(result: dict[str, Any]) -> str:
    """The page."""
    cells = result["regimes"]
    names = list(dict.fromkeys(cell["learner"] for cell in cells))
    by_stream = {(cell["stream"], cell["learner"]): cell for cell in cells}
    streams = list(dict.fromkeys(cell["stream"] for cell in cells))
    lines = [
        [
            stream,
            *(f"{mean(by_stream[stream, name]['ari']):.2f}" for name in names),
            _counted(by_stream[stream, "regimes"]["found"]),
        ]
        for stream in streams
    ]
    ahead = [
        stream
        for stream in streams
        if "HMM told K" in names
        and mean(by_stream[stream, "HMM told K"]["ari"])
        > mean(by_stream[stream, "regimes"]["ari"]) + 0.02
    ]
    of_seeds = "; ".join(f"{name} over {len(by_stream[streams[0], name]['ari'])}" for name in names)
    text = (
        f"# Regimes\n\nMade by `{result['made_by']}`: {READINGS} readings of {CLIENTS} clients,"
        f" {FEATURES} features, if the line does not say otherwise. Mean adjusted Rand index over"
        f" seeds ({of_seeds}), and how often `Regimes` finds which number without being"
        f" told.\n\n{table(['stream', *names, 'found'], lines)}\n"
    )
    if "HMM told K" in names:
        text += (
            "A hidden Markov model that is told K is ahead by more than .02 on:"
            f" {'; '.join(ahead) or 'none'}.\n\n"
        )
    text += _delays(cells, names, streams) + _costs(cells, names) + _nulls(result["nulls"])
    return text + _sensors(result["sensors"]) + f"\n{one_line(result['machine'])}\n"


def _counted(found: list[int]) -> str:
    return ", ".join(f"{k} ({found.count(k)})" for k in sorted(set(found)))


def _delays(cells: list[dict[str, Any]], names: list[str], streams: list[str]) -> str:
    with_delay = [
        name for name in names if any(cell["noticed"] for cell in cells if cell["learner"] == name)
    ]
    by_stream = {(cell["stream"], cell["learner"]): cell for cell in cells}

    def entry(stream: str, name: str) -> str:
        cell = by_stream[stream, name]
        return (
            f"{median(cell['delay']):.0f} ({100 * mean(cell['noticed']):.0f} %)"
            if cell["delay"]
            else "-"
        )

    lines = [[stream, *(entry(stream, name) for name in with_delay)] for stream in streams]
    return (
        f"## Delay of a change\n\nReadings from a change until {NOTICED} in a row have the new"
        " regime's label, by what was read up to each (median), and the share of changes that are"
        " noticed before the next one; a label that changes all the time soon is right by"
        f" chance.\n\n{table(['stream', *with_delay], lines)}\n"
    )


def _costs(cells: list[dict[str, Any]], names: list[str]) -> str:
    lines = [
        [name, f"{mean(cell['seconds'] for cell in cells if cell['learner'] == name):.2f}"]
        for name in names
    ]
    return (
        "## Cost\n\nProcessor time a stream, labels"
        f" included.\n\n{table(['learner', 'seconds'], lines)}\n"
    )


def _nulls(measured: list[dict[str, Any]]) -> str:
    lines = [
        [name, f"{sum(cell['false'] for cell in own)} of {sum(cell['streams'] for cell in own)}"]
        for name in dict.fromkeys(cell["learner"] for cell in measured)
        if (own := [cell for cell in measured if cell["learner"] == name])
    ]
    worst = [
        f"{cell['stream']} {cell['false']}" for cell in measured if cell["learner"] == "regimes"
    ]
    return (
        f"## Streams without regimes\n\nStreams of {len(worst)} kinds that were taken for several"
        f" regimes.\n\n{table(['learner', 'false'], lines)}\nOf `Regimes`, by kind:"
        f" {'; '.join(worst)}.\n"
    )


def _sensors(measured: list[dict[str, Any]]) -> str:
    if not measured:
        return ""
    lines = [
        [
            *(str(cell[key]) for key in ("stream", "rows", "found", "changes")),
            *("" if cell[key] is None else f"{cell[key]:.2f}" for key in ("ari", "halves")),
            *(f"{ari:.2f} ({found})" for ari, found in cell["peers"].values()),
        ]
        for cell in measured
    ]
    head = ["sensor", "rows", "found", "changes", "ARI", "halves", *measured[0]["peers"]]
    return (
        "\n## Sensors\n\nRegimes found in sensors in the order of time, changes seen, agreement"
        " with the classes of the file where it has any, and agreement of models of its two halves"
        " (1 too where both find one). Of peers: agreement with the classes, and their number of"
        f" regimes. Classes need not be regimes.\n\n{table(head, lines)}"
    )


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--quick", is_flag=True, help="One stream and one seed: shows that it runs; no figures to keep."
)
@click.option(
    "--choosing",
    is_flag=True,
    help="Other seeds, to judge a change of the algorithm by; prints only.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of data sets.",
)
@out_option("regimes")
def main(quick: bool, choosing: bool, data: Path | None, out: Path) -> None:
    """Measure what `Regimes` finds, beside hidden Markov models, change points, mixtures, k-means
    and cluster_tree."""
    packages = (
        "shoal",
        "numpy",
        "scikit-learn",
        *(name for name in ("hmmlearn", "ruptures") if find_spec(name)),
    )
    machine = facts(packages)
    made_by = "python -m benchmarks regimes"
    with threadpool_limits(limits=1):
        result = {
            "made_by": made_by + " --quick" * quick + " --data FOLDER" * (data is not None),
            "machine": machine,
            "regimes": list(measure(quick, CHOOSING_SEEDS if choosing else SEEDS)),
            "nulls": list(measure_nulls(quick, CHOOSING_NULL_SEEDS if choosing else NULL_SEEDS)),
            "sensors": [] if data is None else list(measure_sensors(data)),
        }
    if choosing:
        click.echo(markdown(result))
        return
    write(out, "regimes", result, markdown(result))
    click.echo(f"written to {out}/regimes.json and {out}/regimes.md")
