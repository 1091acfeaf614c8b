"""Streams whose states are known, and streams in which nothing stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from shoal.kernels.arrays import Floats, Ints

READINGS = 10_000
CLIENTS = 4
FEATURES = 3


class Stream(NamedTuple):
    """Rows (n, d) of clients one after the other, and the state and the client of each row."""

    name: str
    rows: Floats
    truth: Ints
    clients: Ints

    @property
    def k(self) -> int:
        """Number of states."""
        return int(self.truth.max()) + 1


def autoregressive(rng: np.random.Generator, n: int, d: int, phi: float | Floats) -> Floats:
    """(n, d) of variance 1; `phi` is one number or (d,)."""
    rows = np.zeros((n, d))
    steps = rng.normal(size=(n, d)) * np.sqrt(1 - np.square(phi))
    for t in range(1, n):
        rows[t] = phi * rows[t - 1] + steps[t]
    return rows


def dwells(rng: np.random.Generator, n: int, k: int, dwell: float) -> Ints:
    """(n,) states, each for a gamma-distributed time of this mean, then another one by chance."""
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
    """The rows that `make` gives for the states of each client."""
    rng = np.random.default_rng(seed)
    n = readings // clients
    truth = [dwells(rng, n, k, dwell) for _ in range(clients)]
    rows = np.concatenate([make(rng, state) for state in truth])
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
    """States of other means, AR(1) around them; `drift`: deviations by which all means have moved
    at the end."""
    means = means_apart(np.random.default_rng(seed), k, distance)

    def make(rng: np.random.Generator, truth: Ints) -> Floats:
        rows = autoregressive(rng, len(truth), FEATURES, phi) + means[truth]
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
    """Two states of one mean, the second of twice the deviation."""
    return stream(
        f"same mean, sd x 2, dwell {dwell:g}",
        seed,
        2,
        dwell,
        lambda rng, truth: autoregressive(rng, len(truth), FEATURES, 0.5) * (1.0 + truth[:, None]),
    )


def oscillations(seed: int, dwell: float) -> Stream:
    """Two states of one mean and deviation, of opposite correlation in time."""

    def make(rng: np.random.Generator, truth: Ints) -> Floats:
        rows = rng.normal(size=(len(truth), FEATURES))
        phi = np.array([0.8, -0.5])[truth]
        for t in range(1, len(rows)):
            rows[t] = phi[t] * rows[t - 1] + np.sqrt(1 - phi[t] ** 2) * rows[t]
        return rows

    return stream(f"same mean, oscillation, dwell {dwell:g}", seed, 2, dwell, make)


def slopes(seed: int, dwell: float) -> Stream:
    """Two states, rising and falling."""

    def make(rng: np.random.Generator, truth: Ints) -> Floats:
        level = np.cumsum(np.array([0.2, -0.2])[truth])[:, None] / np.sqrt(FEATURES)
        rows: Floats = autoregressive(rng, len(truth), FEATURES, 0.5) + (level - level.mean())
        return rows

    return stream(f"same mean, slope, dwell {dwell:g}", seed, 2, dwell, make)


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
    "AR .9": lambda rng, n, d: autoregressive(rng, n, d, 0.9),
    "AR .99": lambda rng, n, d: autoregressive(rng, n, d, 0.99),
    "AR .999": lambda rng, n, d: autoregressive(rng, n, d, 0.999),
    "AR of several speeds": lambda rng, n, d: autoregressive(
        rng, n, d, np.resize([0.995, 0.9, 0.0], d)
    ),
    "random walk": walk,
    "walk and noise": lambda rng, n, d: 0.1 * walk(rng, n, d) + rng.normal(size=(n, d)),
    "cycle of 100, noise .3": lambda rng, n, d: sine(rng, n, 100, 0.3, d),
    "cycle of 1000, noise .3": lambda rng, n, d: sine(rng, n, 1000, 0.3, d),
    "cycle of 1000, noise 1": lambda rng, n, d: sine(rng, n, 1000, 1.0, d),
    "cycle of 24, noise .1": lambda rng, n, d: sine(rng, n, 24, 0.1, d),
    "trend": lambda rng, n, d: rng.normal(size=(n, d)) + 3 * np.arange(n)[:, None] / n,
    "volatility": lambda rng, n, d: (
        rng.normal(size=(n, d)) * np.exp(0.7 * autoregressive(rng, n, 1, 0.99))
    ),
    "heavy tails": lambda rng, n, d: rng.standard_t(2.5, size=(n, d)),
    "heavy tails, AR .95": heavy_autoregressive,
    "skewed": lambda rng, n, d: np.exp(autoregressive(rng, n, d, 0.95)),
    "whole numbers, AR .95": lambda rng, n, d: np.round(2 * autoregressive(rng, n, d, 0.95)),
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
