"""How well cluster_tree finds clusters on rows made from private counts, beside the same on noisy
rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import click
import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, quick_option, table, write
from reproduction.experiment import scores
from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.streaming import Contribution, ServerHalf
from shoal.kernels.arrays import Floats, Ints
from shoal.privacy import Bounds, load_mode
from shoal.privacy.count_noise import CountMechanism, count_noise

SEEDS = (7001, 7002, 7003, 7004, 7005)
"""seeds of the published figures; rules were chosen on others"""
READINGS = 20_000
JUDGED = 2000
"""learnt, and predicted afterwards"""
CLIENTS = 25
WINDOW = 400
EPSILONS = (1.0, 2.0, 4.0)
ON_COUNTS = "cluster_tree_from_counts"
ON_ROWS = "cluster_tree"
SOURCE = bytes(16)


class Family(NamedTuple):
    """A kind of data in the unit cube."""

    name: str
    d: int
    make: Callable[[int, int, np.random.Generator], tuple[Floats, Ints]]
    """(rows, features, generator) -> rows (n, d) and the true cluster of each"""


def blobs(n: int, d: int, generator: np.random.Generator) -> tuple[Floats, Ints]:
    """Six round clusters of equal size, four in one feature."""
    count = 4 if d == 1 else 6
    middles = _apart(count, d, 0.15 if d == 1 else 0.25, generator)
    labels = generator.integers(count, size=n)
    return np.clip(middles[labels] + generator.normal(0.0, 0.03, (n, d)), 0.0, 1.0), labels


def unequal(n: int, d: int, generator: np.random.Generator) -> tuple[Floats, Ints]:
    """Ten Gaussian clusters of unequal sizes and shapes in any direction; some overlap."""
    middles = _apart(10, d, 0.18, generator)
    share = generator.dirichlet(np.full(10, 5.0))
    labels = generator.choice(10, n, p=share)
    rows = np.empty((n, d))
    for cluster in range(10):
        own = labels == cluster
        turned = np.linalg.qr(generator.normal(size=(d, d)))[0]
        rows[own] = (
            middles[cluster]
            + generator.normal(size=(own.sum(), d)) * generator.uniform(0.015, 0.06, d) @ turned
        )
    return np.clip(rows, 0.0, 1.0), labels


def moons(n: int, d: int, generator: np.random.Generator) -> tuple[Floats, Ints]:
    """Two half circles, one within the other."""
    labels = generator.integers(2, size=n)
    angle = generator.uniform(0.0, math.pi, n)
    side = 1.0 - 2.0 * labels
    rows = np.stack([np.cos(angle) * side + labels, np.sin(angle) * side + 0.5 * labels], axis=1)
    rows += generator.normal(0.0, 0.06, (n, 2))
    return np.clip((rows + np.array([1.3, 0.8])) / [3.6, 2.1], 0.0, 1.0), labels


def bars(n: int, d: int, generator: np.random.Generator) -> tuple[Floats, Ints]:
    """Three slanting bars; no single feature shows more than one hump."""
    labels = generator.integers(3, size=n)
    along = generator.uniform(-0.35, 0.35, n)
    across = (labels - 1) * 0.14
    rows = np.stack([0.5 + along + across, 0.5 + along - across], axis=1) + generator.normal(
        0.0, 0.015, (n, 2)
    )
    return np.clip(rows, 0.0, 1.0), labels


FAMILIES = (
    Family("blobs", 1, blobs),
    Family("blobs", 2, blobs),
    Family("unequal", 2, unequal),
    Family("moons", 2, moons),
    Family("bars", 2, bars),
    Family("blobs", 3, blobs),
    Family("unequal", 3, unequal),
)


def from_counts(name: str, rows: Floats, epsilon: float, seed: int) -> ServerHalf:
    """A server that has absorbed private counts of all windows, the clients' windows in turn."""
    algorithm = streaming_algorithm(name)
    assert isinstance(algorithm, CountingAlgorithm)
    noise = count_noise(epsilon)
    d = rows.shape[1]
    options = {"noise_variance": noise.variance, "window_readings": WINDOW}
    server = algorithm.server(options, d)
    counter = algorithm.counter(options, d)
    mechanisms = [
        CountMechanism(noise, _key(seed), str(client), SOURCE, name) for client in range(CLIENTS)
    ]
    for number in range(0, len(rows) // CLIENTS, WINDOW):
        for client, mechanism in enumerate(mechanisms):
            window = rows[client::CLIENTS][number : number + WINDOW]
            counted = counter.count(
                window, np.ones(len(window), dtype=np.bool_), str(client).encode(), number
            )
            places = (number, number, number + len(window) - 1)
            private = mechanism.release(counted.counts, places, counter.plan_digest)
            server.absorb([Contribution(str(client), number + 1, counted.update(private))], b"")
        counter.adopt(server.snapshot())
    return server


def from_rows(name: str, rows: Floats, epsilon: float | None, seed: int) -> ServerHalf:
    """A server that has absorbed what clients have learnt from noisy rows, or from the rows
    themselves."""
    algorithm = streaming_algorithm(name)
    d = rows.shape[1]
    bounds = Bounds([0.0] * d, [1.0] * d)
    mode = (
        load_mode("off")(bounds)
        if epsilon is None
        else load_mode("formal")(bounds, {"epsilon_per_reading": epsilon})
    )
    server = algorithm.server({}, d)
    halves = [algorithm.client({}, d) for _ in range(CLIENTS)]
    mechanisms = [mode.mechanism(_key(seed), str(client), SOURCE) for client in range(CLIENTS)]
    for first in range(0, len(rows) // CLIENTS, WINDOW):
        for client, (half, mechanism) in enumerate(zip(halves, mechanisms, strict=True)):
            part = rows[client::CLIENTS][first : first + WINDOW]
            places = np.stack(
                [np.zeros(len(part), np.int64), np.arange(first, first + len(part))], axis=1
            )
            half.learn(mechanism.privatise(part, places).rows)
            server.absorb(
                [Contribution(str(client), first + 1, half.contribute())],
                f"{seed} {first} {client}".encode(),
            )
    return server


def measure(
    family: Family, method: str, epsilon: float | None, seeds: tuple[int, ...]
) -> dict[str, Any]:
    """Agreement (adjusted Rand index) and numbers of clusters, one for each seed."""
    agreement = []
    clusters = []
    for seed in seeds:
        rows, labels = family.make(READINGS + JUDGED, family.d, np.random.default_rng(seed))
        run = from_counts if method == ON_COUNTS else from_rows
        # Counts have an epsilon.
        server = run(method, rows[:READINGS], epsilon, seed)  # type: ignore[arg-type]  # a number
        found = server.predict(rows[READINGS:])
        agreement.append(float(scores(labels[READINGS:], found)["ari"]))
        clusters.append(len(np.unique(found)))
    return {
        "family": family.name,
        "d": family.d,
        "true": len(np.unique(labels)),
        "method": method,
        "epsilon": epsilon,
        "ari": agreement,
        "clusters": clusters,
    }


def _apart(count: int, d: int, least: float, generator: np.random.Generator) -> Floats:
    """Middles (count, d) of clusters, no two nearer than `least`."""
    while True:
        middles = generator.uniform(0.1, 0.9, (count, d))
        away = np.linalg.norm(middles[:, None] - middles, axis=2) + np.eye(count)
        if away.min() > least:
            return middles


def _key(seed: int) -> bytes:
    return seed.to_bytes(32, "little")


def _markdown(measured: list[dict[str, Any]], made_by: str, machine: dict[str, Any]) -> str:
    columns = list(dict.fromkeys((cell["method"], cell["epsilon"]) for cell in measured))
    lines = []
    for name, d in dict.fromkeys((cell["family"], cell["d"]) for cell in measured):
        here = {
            (cell["method"], cell["epsilon"]): cell
            for cell in measured
            if (cell["family"], cell["d"]) == (name, d)
        }
        true = next(iter(here.values()))["true"]
        cells = [
            f"{mean(here[c]['ari']):.2f} ({mean(here[c]['clusters']):.1f})" if c in here else ""
            for c in columns
        ]
        lines.append([f"{name}, d = {d}, K = {true}", *cells])
    head = [
        "data",
        *(
            f"{method} {'no noise' if epsilon is None else f'ε {epsilon:g}'}"
            for method, epsilon in columns
        ),
    ]
    return (
        f"# Learning from counts on a grid\n\nMade by `{made_by}`: {READINGS} readings of {CLIENTS}"
        f" clients in windows of {WINDOW}; mean adjusted Rand index on {JUDGED} more of them, and"
        f" in brackets the mean number of clusters, over {len(measured[0]['ari'])}"
        f" seeds.\n\n{table(head, lines)}\n{one_line(machine)}\n"
    )


@click.command(context_settings={"max_content_width": 100})
@quick_option("One family and one seed")
@out_option("from_counts")
def main(quick: bool, out: Path) -> None:
    """Measure cluster_tree on rows made from private counts, on noisy rows, and without noise."""
    machine = facts(("shoal", "numpy", "scikit-learn"))
    made_by = "python -m benchmarks from_counts"
    seeds, families = (SEEDS[:1], FAMILIES[1:2]) if quick else (SEEDS, FAMILIES)
    measured: list[dict[str, Any]] = []
    with threadpool_limits(limits=1):
        for family in families:
            epsilons = EPSILONS[-1:] if quick else EPSILONS
            cells = [measure(family, ON_COUNTS, epsilon, seeds) for epsilon in epsilons]
            cells += [measure(family, ON_ROWS, epsilon, seeds) for epsilon in (EPSILONS[-1], None)]
            agreement = " ".join(f"{mean(cell['ari']):.2f}" for cell in cells)
            click.echo(f"{family.name} d={family.d}: {agreement}")
            measured += cells
            # After each family: a run that is stopped has written those that it has measured.
            result = {"made_by": made_by, "machine": machine, "cells": measured}
            write(out, "from_counts", result, _markdown(measured, made_by, machine))
