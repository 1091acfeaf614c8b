"""States from private counts: how many are found at which epsilon, from which windows, and how
many are false.

Clients count, add noise (or have it added to the sum of all), and the server learns, as in a
federation. `python -m benchmarks states_private` writes `benchmarks/results/states_private.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy as np
from sklearn.metrics import adjusted_rand_score

from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, quick_option, table, write
from benchmarks.states_streams import FEATURES, NULLS, autoregressive, dwells, means_apart
from shoal.algorithms.from_counts.states import PairCounter, StatesFromCountsServer
from shoal.algorithms.streaming import Contribution
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.privacy.count_noise import CountNoise, count_noise
from shoal.privacy.gaussian import GaussianNoise, gaussian_noise
from shoal.privacy.masked import DELTA, clip_order, readings_within, sum_terms

BLOCK: Final = 16
REACH: Final = 6.0
"""bounds of streams with states, in deviations within one"""
MARGIN: Final = 4.0
"""bounds of every other stream without states, in deviations; of the others, all that it has"""
SEEDS: Final = range(7001, 7009)
NULL_SEEDS: Final = range(7100, 7108)
CLIENTS: Final = 50
READINGS: Final = 500_000
MANY: Final = 200
"""clients of masked counts"""
MANY_READINGS: Final = 4_000_000


class Scheme(NamedTuple):
    """Noise of the counts, and windows."""

    name: str
    epsilon: float | None
    window: int
    masked: bool = False


OWN: Final = (
    Scheme("no noise", None, 400),
    *(
        Scheme(f"ε {epsilon:g}, {window}", epsilon, window)
        for epsilon in (4.0, 1.0)
        for window in (400, 2000, 10_000)
    ),
)
MASKED: Final = tuple(
    Scheme(f"masked, ε {epsilon:g}", epsilon, 400, True) for epsilon in (4.0, 1.0)
)
LEVELS: Final = {
    "3 sd, dwells of 200": (3.0, 200.0, 2),
    "3 sd, dwells of 500": (3.0, 500.0, 2),
    "3 sd, dwells of 100": (3.0, 100.0, 2),
    "2 sd, dwells of 200": (2.0, 200.0, 2),
    "2 sd, dwells of 500": (2.0, 500.0, 2),
    "three, 3 sd, dwells of 200": (3.0, 200.0, 3),
}
"""streams with states -> distance of their means, mean dwell, and how many there are"""


class Streams(NamedTuple):
    """Readings (clients, n, d) in unit coordinates, and their states (clients, n)."""

    rows: Floats
    truth: Ints


def levels(
    seed: int, distance: float, dwell: float, k: int, clients: int, readings: int
) -> Streams:
    """States of other means, AR(1) of .5 around them, the same at all clients."""
    rng = np.random.default_rng(seed)
    n = readings // clients
    truth = np.array([dwells(rng, n, k, dwell) for _ in range(clients)])
    around = (
        autoregressive(rng, n, clients * FEATURES, 0.5)
        .reshape(n, clients, FEATURES)
        .transpose(1, 0, 2)
    )
    rows = around + means_apart(rng, k, distance)[truth]
    return Streams(np.clip((rows + REACH) / (2 * REACH), 0.0, 1.0), truth)


def null(kind: str, seed: int, readings: int) -> Floats:
    """A stream in which nothing stays; of every third seed each client has a level of its own."""
    rng = np.random.default_rng([seed, list(NULLS).index(kind)])
    clients = (CLIENTS, CLIENTS // 5)[seed % 2]
    n = readings // clients
    rows = NULLS[kind](rng, n, clients * FEATURES).reshape(n, clients, FEATURES).transpose(1, 0, 2)
    rows = rows + 3.0 * (seed % 3 == 0) * rows.std() * rng.normal(size=(clients, 1, FEATURES))
    flat = rows.reshape(-1, FEATURES)
    low = flat.min(axis=0)
    high = flat.max(axis=0)
    if seed % 4 < 2:
        low, high = (flat.mean(axis=0) + sign * MARGIN * flat.std(axis=0) for sign in (-1, 1))
    return np.asarray(np.clip((rows - low) / (high - low), 0.0, 1.0), dtype=np.float64)


def learnt(rows: Floats, scheme: Scheme, key: bytes) -> StatesFromCountsServer:
    """The server after all windows of readings (clients, n, d)."""
    clients, n, d = rows.shape
    noise: CountNoise | GaussianNoise | None = None
    clip = 0
    summed = clients if scheme.masked else 1
    if scheme.masked and scheme.epsilon is not None:
        clip, variance = sum_terms(
            scheme.epsilon, DELTA, 1, scheme.window, 2, scheme.window / (4 * BLOCK)
        )
        noise = gaussian_noise(variance)
    elif scheme.epsilon is not None:
        noise = count_noise(scheme.epsilon)
    options = {
        "noise_variance": 0.0 if noise is None else float(noise.variance),
        "window_readings": scheme.window,
        "windows_summed": summed,
    }
    counter = PairCounter(d, **options)
    server = StatesFromCountsServer(d, **options)
    for number in range(-(-n // scheme.window)):
        window = rows[:, number * scheme.window : (number + 1) * scheme.window]
        if scheme.masked:
            counted = counter.count(
                window[0], np.zeros(len(window[0]), np.bool_), b"", number, (b"all", number)
            )
            total = sum(
                clipped(counter, part, b"%d" % client, number, clip)
                for client, part in enumerate(window)
            )
            assert noise is not None
            private = total + noise.draw(key + b"sum %d" % number, len(counted.counts))
            arrays = {**counted.update(private), "places": np.array([clients * window.shape[1]])}
            server.absorb([Contribution("all", number, arrays)], b"")
            continue
        for client, part in enumerate(window):
            counted = counter.count(part, np.ones(len(part), np.bool_), b"%d" % client, number)
            private = counted.counts
            if noise is not None:
                private = private + noise.draw(key + b"%d, %d" % (client, number), len(private))
            server.absorb([Contribution(str(client), number, counted.update(private))], b"")
    return server


def clipped(
    counter: PairCounter, window: Floats, client: bytes, number: int, clip_squared: int
) -> Ints:
    """The counts of a window, cut off at the clip."""

    def counts_of(kept: Bools) -> Any:
        return counter.count(window, kept, client, number, (b"all", number))

    whole = counts_of(np.ones(len(window), np.bool_))
    if int(whole.counts @ whole.counts) <= clip_squared:
        return np.asarray(whole.counts)
    order = clip_order(client, number, len(window))
    return np.asarray(
        readings_within(counts_of, np.ones(len(window), np.bool_), order, clip_squared)[0].counts
    )


def agreement(server: StatesFromCountsServer, streams: Streams) -> tuple[float, float]:
    """ARI of the states of block means, and of those of single readings, with the truth."""
    clients, n, d = streams.rows.shape
    blocks = n // BLOCK
    means = streams.rows[:, : blocks * BLOCK].reshape(clients, blocks, BLOCK, d).mean(axis=2)
    middle = streams.truth[:, : blocks * BLOCK].reshape(clients, blocks, BLOCK)[:, :, BLOCK // 2]
    of_blocks = adjusted_rand_score(middle.ravel(), server.predict(means.reshape(-1, d)))
    return of_blocks, adjusted_rand_score(
        streams.truth.ravel(), server.predict(streams.rows.reshape(-1, d))
    )


def measure(quick: bool, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A cell for each stream with states and scheme."""
    parts = [(name, OWN, CLIENTS, READINGS, seeds) for name in LEVELS]
    parts += [(name, MASKED, MANY, MANY_READINGS, seeds[:4]) for name in list(LEVELS)[:2]]
    for name, schemes, clients, readings, own_seeds in (parts[0], parts[-2]) if quick else parts:
        cells: dict[str, dict[str, Any]] = {
            scheme.name: {
                "stream": name,
                "scheme": scheme.name,
                "ari": [],
                "single": [],
                "found": [],
            }
            for scheme in schemes
        }
        for seed in own_seeds:
            streams = levels(seed, *LEVELS[name], clients, 160_000 if quick else readings)
            for scheme in schemes[:2] if quick else schemes:
                server = learnt(streams.rows, scheme, b"%d" % seed)
                blocks, single = agreement(server, streams)
                cell = cells[scheme.name]
                cell["ari"].append(blocks)
                cell["single"].append(single)
                cell["found"].append(len(server.snapshot()["identity"]))
        yield from (cell for cell in cells.values() if cell["ari"])


def measure_nulls(quick: bool, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """How many streams without states show two at any look, of each kind and scheme."""
    for kind in list(NULLS)[:1] if quick else NULLS:
        false = dict.fromkeys((scheme.name for scheme in OWN), 0)
        for seed in seeds:
            rows = null(kind, seed, 50_000 if quick else READINGS)
            for scheme in OWN:
                false[scheme.name] += learnt(rows, scheme, b"%d" % seed).state()["identities"] > 1
        yield {"kind": kind, "streams": len(seeds), "false": false}


def markdown(result: dict[str, Any]) -> str:
    """The page of the results."""
    cells = {(cell["stream"], cell["scheme"]): cell for cell in result["cells"]}

    def rows(schemes: Sequence[Scheme]) -> list[list[str]]:
        names = [name for name in LEVELS if (name, schemes[0].name) in cells]
        return [
            [
                name,
                *(
                    _entry(cells[name, scheme.name]) if (name, scheme.name) in cells else ""
                    for scheme in schemes
                ),
            ]
            for name in names
        ]

    nulls = result["nulls"]
    streams = sum(cell["streams"] for cell in nulls)
    false = [f"{sum(cell['false'][scheme.name] for cell in nulls)} of {streams}" for scheme in OWN]
    masked = rows(MASKED)
    return (
        "# States from private counts\n\n"
        f"Made by `{result['made_by']}`; do not edit.\n\n"
        f"Two states (in one row three) among {FEATURES} features, autocorrelated by .5 within"
        " them: adjusted Rand "
        f"index of blocks of {BLOCK} readings, mean over {len(result['seeds'])} new seeds, and in"
        " how "
        "many two were found; in brackets the index of single readings, as labels are of. "
        f"{CLIENTS} clients, {READINGS} readings. ε is of a reading; after it, window_readings."
        " Last line: "
        "streams in which nothing stays (17 kinds, several levels and bounds) that show two at any"
        " look.\n\n"
        f"{table(['stream', *(scheme.name for scheme in OWN)], [*rows(OWN), ['false', *false]])}\n"
        + (
            f"Masked counts of {MANY} clients with {MANY_READINGS // MANY} readings each, windows"
            " of 400, clip 6.25; ε is of all readings of a client in a window, at δ"
            f" {DELTA:g}:\n\n{table(['stream', *(scheme.name for scheme in MASKED)], masked)}\n"
            if masked
            else ""
        )
        + f"{one_line(result['machine'])}\n"
    )


def _entry(cell: dict[str, Any]) -> str:
    found = f"{sum(k > 1 for k in cell['found'])} of {len(cell['found'])}"
    return f"{np.mean(cell['ari']):.2f}, {found} ({np.mean(cell['single']):.2f})"


@click.command(context_settings={"max_content_width": 100})
@quick_option("Short streams and one seed")
@out_option("states_private")
def main(quick: bool, out: Path) -> None:
    """Measure states from private counts."""
    seeds, null_seeds = (SEEDS[:1], NULL_SEEDS[:1]) if quick else (SEEDS, NULL_SEEDS)
    machine = facts(["numpy", "scikit-learn"])
    cells = []
    nulls = []
    for cell in measure(quick, seeds):
        click.echo(f"{cell['stream']}, {cell['scheme']}: {_entry(cell)}")
        cells.append(cell)
    for cell in measure_nulls(quick, null_seeds):
        click.echo(f"{cell['kind']}: {cell['false']}")
        nulls.append(cell)
    result = {
        "made_by": f"python -m benchmarks states_private{' --quick' if quick else ''}",
        "seeds": list(seeds),
        "cells": cells,
        "nulls": nulls,
        "machine": machine,
    }
    write(out, "states_private", result, markdown(result))
