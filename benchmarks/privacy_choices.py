"""What two choices cost: algorithms in rounds on rows drawn from private counts, and a user as the
privacy unit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, Final, NamedTuple

import click
import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.machine import facts, one_line
from benchmarks.privacy.counting import learn
from benchmarks.privacy.families import CLIENTS, READINGS, Stream, families
from benchmarks.results import out_option, quick_option, table, write
from reproduction.experiment import scores
from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.registry import load_algorithm, rounds_algorithm
from shoal.algorithms.rounds.base import InitHint
from shoal.kernels.arrays import Ints
from shoal.privacy.base import Bounds
from shoal.privacy.formal import Formal
from shoal.privacy.keyed import SOURCE_BYTES
from shoal.simulation.rounds import run_rounds

SEEDS: Final = (9201, 9302, 9403)
"""seeds of the published figures; nothing was chosen on them"""
QUICK_READINGS: Final = 6000
ROUNDS: Final = ("kmeans", "fcm", "gmm")
ROUNDS_MAX: Final = 50
TOLERANCE: Final = 1e-3
ROUNDS_STREAMS: Final = (
    "blobs d=2",
    "blobs d=8",
    "hard d=4",
    "hard d=8",
    "skewed hard d=8",
    "class by class d=8",
)
ROUNDS_EPSILONS: Final = (1.0, 2.0, 4.0)
USERS_STREAMS: Final = ("blobs d=8", "hard d=2", "hard d=8")
USERS_EPSILONS: Final = (1.0, 4.0)
USERS: Final = ((1, 400), (4, 400), (4, 2000), (16, 400), (16, 2000))
"""(readings that a user may have in a window, readings of a window)"""


class Case(NamedTuple):
    """One figure: a stream, what learns it, and the epsilon of a privacy unit."""

    part: str
    stream: str
    learner: str
    epsilon: float | None


def counted(name: str, stream: Stream, epsilon: float, seed: int, **options: Any) -> Ints:
    """What an algorithm that learns from private counts finds."""
    algorithm = load_algorithm(name)
    assert isinstance(algorithm, CountingAlgorithm)
    return np.asarray(
        algorithm.predict(learn(algorithm, stream, epsilon, seed, **options).snapshot, stream.rows)
    )


def in_rounds(name: str, stream: Stream, epsilon: float | None, seed: int) -> Ints:
    """What an algorithm in rounds, given K, finds in all noisy rows at once, or in the rows
    themselves."""
    algorithm = rounds_algorithm(name)
    d = stream.rows.shape[1]
    rows = stream.rows
    if epsilon is not None:
        mode = Formal(Bounds(np.zeros(d), np.ones(d)), {"epsilon_per_reading": epsilon})
        mechanism = mode.mechanism(
            np.random.default_rng(seed).bytes(32), "benchmark", bytes(SOURCE_BYTES)
        )
        places = np.stack([np.zeros(len(rows), dtype=np.int64), np.arange(len(rows))], axis=1)
        rows = mechanism.privatise(rows, places).rows
    hint = InitHint(rows.min(axis=0), rows.max(axis=0), seed, rows[::5])
    params = algorithm.start({"clusters": stream.k_told}, d, hint)
    found = run_rounds(algorithm, params, [rows], rounds_max=ROUNDS_MAX, tolerance=TOLERANCE).params
    return np.asarray(algorithm.predict(found, stream.rows))


def cases(quick: bool) -> Iterator[tuple[Case, Any]]:
    """Each case, and the function of a stream and a seed that gives its labels."""
    for name in ROUNDS_STREAMS[:1] if quick else ROUNDS_STREAMS:
        for epsilon in ROUNDS_EPSILONS[-1:] if quick else ROUNDS_EPSILONS:
            tree = partial(counted, "density_tree", epsilon=epsilon)
            yield Case("rounds", name, "density_tree", epsilon), tree
            for learner in ROUNDS:
                yield (
                    Case("rounds", name, f"{learner}_from_counts", epsilon),
                    partial(_told, f"{learner}_from_counts", epsilon=epsilon),
                )
        for learner, rows_epsilon in product(ROUNDS, (2.0, 4.0, None)):
            yield (
                Case("rounds", name, learner, rows_epsilon),
                partial(in_rounds, learner, epsilon=rows_epsilon),
            )
    for name in USERS_STREAMS[:1] if quick else USERS_STREAMS:
        for epsilon, (readings, window) in product(
            USERS_EPSILONS[-1:] if quick else USERS_EPSILONS, USERS
        ):
            label = partial(
                counted, "density_tree", epsilon=epsilon, readings_of_a_user=readings, window=window
            )
            yield Case("users", name, f"{readings} in windows of {window}", epsilon), label


def _told(name: str, stream: Stream, epsilon: float, seed: int) -> Ints:
    return counted(name, stream, epsilon, seed, clusters=stream.k_told)


def measure(quick: bool) -> Iterator[dict[str, Any]]:
    """The agreement (adjusted Rand index) of each case with the truth, one for each seed."""
    made = families(QUICK_READINGS, QUICK_READINGS) if quick else families()
    seeds = SEEDS[:1] if quick else SEEDS
    streams: dict[str, list[Stream]] = {}
    for case, label in cases(quick):
        if case.stream not in streams:
            streams[case.stream] = [made[case.stream](seed) for seed in seeds]
        agreement = [
            float(scores(stream.truth, label(stream=stream, seed=seed))["ari"])
            for stream, seed in zip(streams[case.stream], seeds, strict=True)
        ]
        click.echo(
            f"{case.stream}, {case.learner}, epsilon {case.epsilon or 'none'}:"
            f" {mean(agreement):.3f}"
        )
        yield {**case._asdict(), "ari": agreement}


def markdown(result: dict[str, Any]) -> str:
    """The page."""
    seeds = len(result["cells"][0]["ari"])
    rounds, users = (
        _table([cell for cell in result["cells"] if cell["part"] == part])
        for part in ("rounds", "users")
    )
    return (
        f"# Two choices of privacy\n\nMade by `{result['made_by']}`: {READINGS} readings of"
        f" {CLIENTS} clients; mean adjusted Rand index over {seeds} seeds.\n\n## Algorithms in"
        " rounds on rows drawn from counts\n\nAll but density_tree are given K. Those without"
        f" `_from_counts` learn all noisy rows in one place, or rows without noise.\n\n{rounds}\n##"
        " A user as the privacy unit\n\ndensity_tree with noise for so many readings of a user in"
        " a window; epsilon is that of a user in a window. No user has more readings than are"
        " counted. One reading in windows of 400 is the same as a unit of"
        f" readings.\n\n{users}\n{one_line(result['machine'])}\n"
    )


def _table(cells: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys((cell["learner"], cell["epsilon"]) for cell in cells))
    found = {
        (cell["stream"], cell["learner"], cell["epsilon"]): mean(cell["ari"]) for cell in cells
    }
    names = list(dict.fromkeys(cell["stream"] for cell in cells))
    lines = [
        [learner, "none" if epsilon is None else f"{epsilon:g}"]
        + [
            f"{found[name, learner, epsilon]:.2f}" if (name, learner, epsilon) in found else ""
            for name in names
        ]
        for learner, epsilon in sorted(columns, key=lambda each: str(each[0]))
    ]
    return table(["learner", "ε", *names], lines)


@click.command(context_settings={"max_content_width": 100})
@quick_option("One short stream and one seed")
@out_option("privacy_choices")
def main(quick: bool, out: Path) -> None:
    """Measure what is found from rows drawn from private counts, and with a user as the privacy
    unit."""
    machine = facts(("shoal", "numpy", "scikit-learn"))
    made_by = "python -m benchmarks privacy_choices"
    with threadpool_limits(limits=1):
        cells = list(measure(quick))
    result = {"made_by": made_by + " --quick" * quick, "machine": machine, "cells": cells}
    write(out, "privacy_choices", result, markdown(result))
    click.echo(f"written to {out}/privacy_choices.json and {out}/privacy_choices.md")
