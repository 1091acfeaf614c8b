"""What the compiled form of each kernel gains: both forms in turns in one process, on the sizes
that the models use."""

from __future__ import annotations

import copy
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.forms import FORMS, use
from benchmarks.machine import facts, one_line
from benchmarks.privacy.counting import WINDOW
from benchmarks.results import out_option, quick_option, rounded, table, write
from shoal.algorithms.density_tree import DENSITY_TREE
from shoal.algorithms.density_tree.server import DensityTreeServer
from shoal.algorithms.fcac import CAEFC, CAPlus
from shoal.kernels.arrays import Floats, Singles
from shoal.kernels.cells import CellCounts
from shoal.kernels.constants import FEW_FEATURES
from shoal.kernels.density_tree import (
    Neighbours,
    core_distances,
    exact_masses,
    find_valleys,
    groups_of,
    mass_around,
    masses_at_shares,
    median_radius,
    spanning_tree,
)
from shoal.kernels.distance import block_rows, nearest_centres
from shoal.kernels.forms import COMPILED, NUMPY
from shoal.kernels.fuzzy import fuzzy_weights
from shoal.kernels.gaussian import mixture_responsibilities, spherical_spread, whitening
from shoal.kernels.landmarks import add_gram, nearest_weights
from shoal.kernels.lloyd import assign_block
from shoal.kernels.sketching import (
    Sketch,
    located,
    merge_targets,
    merged,
    nearest_to,
    spread_ties,
    squared_among,
)
from shoal.privacy.count_noise import count_noise
from shoal.privacy.keyed import KEY_BYTES, SOURCE_BYTES, KeyedRandomness
from shoal.privacy.laplace import discrete_laplace

Work = Callable[[], object]
Prepare = Callable[[], Work]
"""makes anew what a measured call changes; its own time does not count"""
SEED: Final = 24
CLUSTERS: Final = 10
GAIN_MIN: Final = 1.3
"""median gain below which a kernel has one form only"""
TURN_S: Final = 2e-3
"""a turn repeats a call that takes less, so that the clock's steps do not count"""
WIDTHS: Final = (2, 16, 64)


def ready(work: Work) -> Prepare:
    """Do nothing: for a call that changes nothing."""
    return lambda: work


def blobs(generator: np.random.Generator, n: int, d: int) -> Floats:
    """n rows (n, d) around `CLUSTERS` centres in the unit cube."""
    centres = generator.uniform(0.2, 0.8, (CLUSTERS, d))
    return np.clip(
        centres[generator.integers(CLUSTERS, size=n)] + 0.03 * generator.standard_normal((n, d)),
        0.0,
        1.0,
    )


def networks(generator: np.random.Generator, d: int) -> Iterator[tuple[str, str, Prepare]]:
    """CA+ and CAEFC, in a chunk of rows after the first nodes have been found."""
    rows = blobs(generator, 3000, d)
    for name, network in (("learn_ca_plus", CAPlus()), ("learn_caefc", CAEFC())):
        use(COMPILED)
        network.learn(rows[:2500])

        def prepare(network: CAPlus | CAEFC = network) -> Work:
            own = copy.deepcopy(network)
            return partial(own.learn, rows[2500:])

        yield name, "500 rows", prepare


def rounds(generator: np.random.Generator, d: int) -> Iterator[tuple[str, str, Prepare]]:
    """The sums of k-means, fuzzy c-means, mixtures and spectral clustering, block by block as the
    models take them."""
    for k in (3, 10, 40):
        n = block_rows(k, d)
        rows = blobs(generator, n, d)
        centres = blobs(generator, k, d)
        size = f"{n} rows, k = {k}"
        yield "assign_rows", size, ready(partial(assign_block, rows, centres))
        if d <= FEW_FEATURES:
            whiten = whitening("full", spherical_spread("full", np.full(d, 0.01), k), d)
            logs = np.full(k, -np.log(k))
            mixture = "full", rows, centres, whiten, logs
            yield "fuzzy_weights", size, ready(partial(fuzzy_weights, rows, centres, 2.0))
            yield (
                "mixture_responsibilities",
                size,
                ready(partial(mixture_responsibilities, *mixture)),
            )
    for q, near in ((60, 3), (200, 5)):
        n = block_rows(q, d)
        rows = blobs(generator, n, d)
        landmarks = blobs(generator, q, d)
        size = f"{n} rows, {q} landmarks, {near} near"
        yield (
            "nearest_weights",
            size,
            ready(partial(nearest_weights, rows, landmarks, 0.1, near)),
        )
        which, weights, _ = nearest_weights(rows, landmarks, 0.1, near)
        gram = np.zeros((q, q))
        yield "add_gram", size, ready(partial(add_gram, gram, which, weights))


def count(counts: CellCounts, rows: Floats) -> None:
    """Count rows once, as an answer of dbscan does."""
    counts.add(rows)
    counts.total()


def cells(generator: np.random.Generator, d: int) -> Iterator[tuple[str, str, Prepare]]:
    """The counts of dbscan: in a table while the grid has few cells, or else in a hash table."""
    # dbscan takes six features at most.
    features = min(d, 6)
    sides = {"count_in_table": 64 if d == 2 else 4}
    # In two features what is too large for a table is counted in NumPy's form alone.
    if features > 2:
        sides["count_in_slots"] = 8
    for name, side in sides.items():
        low = np.zeros(features)
        step = np.full(features, 1.0 / side)
        for n in (2000, 20_000):
            rows = blobs(generator, n, features)

            def prepare(
                side: int = side, low: Floats = low, step: Floats = step, rows: Floats = rows
            ) -> Work:
                return partial(count, CellCounts(side, low, step), rows)

            yield name, f"{n} rows, {side}^{features} cells", prepare


def sketches(generator: np.random.Generator, d: int) -> Iterator[tuple[str, str, Prepare]]:
    """A client's sketch of cluster_tree, and the tree that its server makes of the cells."""
    for n in (150, 1000):
        points = blobs(generator, n, d)
        sketch = Sketch(points, generator.integers(1, 20, size=n).astype(np.float64))
        into = merge_targets(sketch, n // 2, 100.0)
        size = f"{n} points"
        yield "locate", size, ready(partial(located, points))
        yield "near_pairs, unite", size, ready(partial(merge_targets, sketch, n // 2, 100.0))
        yield "merge_points", size, ready(partial(merged, sketch, into))
        yield "all_exceed", size, ready(partial(spread_ties, points))
    squared = squared_among(located(points).points)
    masses = sketch.mass
    cores = core_distances(squared, masses, 100.0)
    edges, lengths = spanning_tree(squared, cores)
    edges = edges[np.argsort(lengths, kind="stable")]
    heavy = np.full(len(edges), 300.0)
    yield (
        "core_distances",
        size,
        ready(lambda: Neighbours(squared).core_distances(masses, [50.0, 100.0, 200.0])),
    )
    yield "mass_around", size, ready(partial(mass_around, squared, cores, [masses]))
    placed = located(points).points
    yield "lay_out", size, ready(partial(squared_among, placed))
    yield "nearest_in", "250 points, 1000 others", ready(partial(nearest_to, placed[:250], placed))
    rows = blobs(generator, 500, d)
    yield "nearest_centres", "500 rows, k = 1000", ready(partial(nearest_centres, rows, points))
    yield from sides(squared, masses, cores)
    yield "spanning_tree", size, ready(partial(spanning_tree, squared, cores))

    def add_all() -> None:
        groups = groups_of(edges, masses, cores, heavy)
        merge = groups.add(0)
        while merge is not None:
            merge = groups.add(merge.edge, even_if_heavy=True)

    yield "join_groups", size, ready(add_all)


def sides(squared: Singles, masses: Floats, cores: Singles) -> Iterator[tuple[str, str, Prepare]]:
    """A side of a join of cluster_tree: how dense it is around its readings."""
    exact = exact_masses(masses)
    within = float(np.median(cores))
    for m in (50, 500):
        group = np.arange(m)
        yield (
            "masses_at_shares",
            f"{m} of {len(masses)} points",
            ready(partial(masses_at_shares, squared, group, exact, within, (0.5, 0.9))),
        )
    group = np.arange(20)
    own = masses[:20]
    half = float(own.sum()) / 2
    yield (
        "median_radius",
        "20 points",
        ready(partial(median_radius, squared, group, own, cores, half, half, True)),
    )


def windows(generator: np.random.Generator, d: int) -> Iterator[tuple[str, str, Prepare]]:
    """A client's window of density_tree, and the histograms that its server looks at."""
    noise = count_noise(4.0)
    options = {"noise_variance": noise.variance, "window_readings": WINDOW}
    counter = DENSITY_TREE.counter(options, d)
    counter.adopt(DensityTreeServer(d, **options).snapshot())
    rows = blobs(generator, WINDOW, d)
    valid = np.ones(WINDOW, dtype=np.bool_)
    yield "count_window", f"{WINDOW} rows", ready(partial(counter.count, rows, valid, b"client", 7))
    counts = generator.poisson(30.0, (10 * d, 64)).astype(np.float64)
    variances = np.full_like(counts, noise.variance)
    yield (
        "find_valleys",
        f"{10 * d} histograms",
        ready(partial(find_valleys, counts, variances, 0.6)),
    )


def noises(generator: np.random.Generator, d: int) -> Iterator[tuple[str, str, Prepare]]:
    """The keyed noise of a chunk of readings."""
    randomness = KeyedRandomness(bytes(KEY_BYTES), "client", bytes(SOURCE_BYTES), bytes(32), d)
    distribution = discrete_laplace(1.0)
    for n in (10, 1000):
        grid = generator.integers(distribution.steps, size=(n, d))
        places = np.stack([np.zeros(n, dtype=np.int64), np.arange(n)], axis=1)
        words = randomness.draw(places, grid, d * distribution.words)
        own = words.reshape(n, d, distribution.words)
        size = f"{n} readings"
        yield (
            "draw_words",
            size,
            ready(partial(randomness.draw, places, grid, words.shape[1])),
        )
        yield "release_laplace", size, ready(partial(distribution.release, grid, own))


FAMILIES: Final = (networks, rounds, cells, sketches, windows, noises)


def seconds(prepare: Prepare, calls: int) -> float:
    """Processor time of a call."""
    works = [prepare() for _ in range(calls)]
    began = time.process_time()
    for work in works:
        work()
    return (time.process_time() - began) / calls


def gain(prepare: Prepare, turns: int) -> dict[str, float]:
    """The median and the quartiles of the ratios of turns that follow each other, and the median of
    the compiled form.

    The forms change places from turn to turn: a machine that becomes slower in between favours
    neither.
    """
    calls = 1
    for form in FORMS:
        use(form)
        seconds(prepare, 2)
        calls = max(calls, min(100, int(TURN_S / max(seconds(prepare, 2), 1e-6))))
    ratios = []
    compiled = []
    gc.collect()
    for turn in range(turns):
        took = {}
        for form in (NUMPY, COMPILED) if turn % 2 else (COMPILED, NUMPY):
            use(form)
            took[form] = max(seconds(prepare, calls), 1e-9)
        ratios.append(took[NUMPY] / took[COMPILED])
        compiled.append(took[COMPILED])
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {
        "gain": middle,
        "low": low,
        "high": high,
        "compiled_us": 1e6 * statistics.median(compiled),
    }


def summary(pairs: list[dict[str, Any]]) -> list[list[str]]:
    """The least and the greatest median gain for each kernel and number of features."""
    lines = []
    for kernel in dict.fromkeys(pair["kernel"] for pair in pairs):
        line = [f"`{kernel}`"]
        for d in sorted({pair["d"] for pair in pairs}):
            gains = [pair["gain"] for pair in pairs if pair["kernel"] == kernel and pair["d"] == d]
            line.append(
                " to ".join(dict.fromkeys(f"×{rounded(gain)}" for gain in (min(gains), max(gains))))
                if gains
                else ""
            )
        lines.append(line)
    return lines


@click.command(context_settings={"max_content_width": 100})
@quick_option("Few turns, in seconds")
@out_option("kernel_pairs")
def main(quick: bool, out: Path) -> None:
    """Measure each compiled kernel beside its NumPy form. A full run takes about five minutes."""
    machine = facts(("shoal", "numpy", "numba"))
    pairs = list[dict[str, Any]]()
    # In three features every kernel is used.
    widths, turns = ((3,), 2) if quick else (WIDTHS, 11)
    with threadpool_limits(limits=1):
        for d in widths:
            for family in FAMILIES:
                generator = np.random.default_rng([SEED, d])
                for kernel, size, prepare in family(generator, d):
                    pairs.append({"kernel": kernel, "d": d, "size": size, **gain(prepare, turns)})
    result = {
        "made_by": "python -m benchmarks kernel_pairs" + " --quick" * quick,
        "machine": machine,
        "gain_min": GAIN_MIN,
        "pairs": pairs,
    }
    each = [
        [
            f"`{pair['kernel']}`, d = {pair['d']}, {pair['size']}",
            f"×{rounded(pair['gain'])}",
            f"{rounded(pair['low'])} to {rounded(pair['high'])}",
            rounded(pair["compiled_us"]),
        ]
        for pair in pairs
    ]
    parts = [
        (
            f"# What the compiled form of each kernel gains\n\nMade by `{result['made_by']}`; do"
            " not edit.\n"
        ),
        table(["kernel", *(f"d = {d}" for d in widths)], summary(pairs)),
        table(["kernel and size", "gain", "quartiles", "compiled, µs"], each),
        (
            "Processor time of one thread; a gain is the median of the ratios of turns that follow"
            " each other.\n"
        ),
        one_line(machine) + "\n",
    ]
    write(out, "kernel_pairs", result, "\n".join(parts))
    click.echo(f"written to {out}/kernel_pairs.json and {out}/kernel_pairs.md")
