"""What missing values cost: clusterings of streams of which a part of the values is missing, beside
whole streams.

Each learner learns a stream whole, and again with a share of its values missing at random. Both
label the whole rows, so that the difference is what the gaps cost in learning; the rows with gaps
are labelled too, of which no labelling can tell more than they have.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any, Final, NamedTuple

import click
import numpy as np
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.machine import facts, one_line
from benchmarks.privacy.families import families
from benchmarks.results import out_option, quick_option, table, write
from benchmarks.steadiness.streams import changing, stationary
from shoal.estimators.cluster_tree import ClusterTree
from shoal.estimators.fcac import FCAC
from shoal.kernels.arrays import Floats, Ints
from shoal.simulation.counting import CountingFederation

SHARE: Final = 0.2
"""share of the values that is missing"""
CHOOSING: Final = (100, 101)
"""seeds on which the rules for gaps were chosen"""
REPORTING: Final = (9301, 9302)
"""seeds of the published figures"""
CLIENTS: Final = 5
BATCH_ROWS: Final = 500
EPSILONS: Final = (1.0, 4.0, None)
LEFT_OUT: Final = ("moons", "bars")
"""families whose clusters no single feature shows: density_tree does not find them"""


class Case(NamedTuple):
    """One stream, and a learner: rows and their owners (n,) -> the clusters of other rows."""

    stream: str
    learner: str
    rows: Floats
    truth: Ints
    learn: Callable[[Floats], Callable[[Floats], Ints]]
    judged_from: int = 0


def measure(seed: int, quick: bool) -> Iterator[dict[str, Any]]:
    """ARI of whole rows, learnt whole and with gaps, and of rows with gaps, case by case."""
    for case in cases(seed, quick):
        generator = np.random.default_rng([seed, 7])
        lacks = generator.random(case.rows.shape) < SHARE
        lacks[lacks.all(axis=1), 0] = False
        gaps = np.where(lacks, np.nan, case.rows)
        judged = slice(case.judged_from, None)
        truth = case.truth[judged]
        rows = case.rows[judged]
        by_whole = case.learn(case.rows)
        by_gaps = case.learn(gaps)
        ari = {
            "whole": adjusted_rand_score(truth, by_whole(rows)),
            "gaps": adjusted_rand_score(truth, by_gaps(rows)),
            "rows_with_gaps": adjusted_rand_score(truth, by_gaps(gaps[judged])),
        }
        yield {
            "stream": case.stream,
            "learner": case.learner,
            "seed": seed,
            **{k: float(v) for k, v in ari.items()},
        }


def cases(seed: int, quick: bool) -> Iterator[Case]:
    """All cases of one seed."""
    size = 2000 if quick else 8000
    for name, make in list({**stationary(size), **changing(size)}.items())[: 1 if quick else None]:
        stream = make(seed)
        for learner, kind in (("cluster_tree", ClusterTree), ("fcac", FCAC)):

            def learn(rows: Floats, kind: Any = kind) -> Callable[[Floats], Ints]:
                model = kind(clients=CLIENTS)
                for first in range(0, len(rows), BATCH_ROWS):
                    model.partial_fit(rows[first : first + BATCH_ROWS])
                return lambda other: np.asarray(model.predict(other))

            yield Case(name, learner, stream.rows, stream.truth, learn)
    made = families(4000, 4000) if quick else families()
    for name, maker in list(made.items())[: 1 if quick else None]:
        if name.startswith(LEFT_OUT):
            continue
        counted = maker(seed)
        for epsilon in EPSILONS:

            def count(
                rows: Floats, epsilon: float | None = epsilon, owner: Ints = counted.owner
            ) -> Any:
                federation = CountingFederation({}, rows.shape[1], 1, seed, epsilon, 400)
                federation.learn(rows, owner, is_last=True)
                return federation.predict

            label = f"density_tree, ε {'none' if epsilon is None else f'{epsilon:g}'}"
            yield Case(name, label, counted.rows, counted.truth, count, counted.judged_from)


def markdown(result: dict[str, Any]) -> str:
    """The page."""
    cells = result["cells"]
    lines = []
    summary = []
    keys = list(dict.fromkeys((cell["stream"], cell["learner"]) for cell in cells))

    def means(own: list[dict[str, Any]]) -> list[str]:
        whole, gaps, rows = (
            mean(cell[name] for cell in own) for name in ("whole", "gaps", "rows_with_gaps")
        )
        return [f"{whole:.3f}", f"{gaps:.3f}", f"{gaps - whole:+.3f}", f"{rows:.3f}"]

    for learner in dict.fromkeys(cell["learner"] for cell in cells):
        summary.append([learner, *means([cell for cell in cells if cell["learner"] == learner])])
    for stream, learner in keys:
        own = [cell for cell in cells if (cell["stream"], cell["learner"]) == (stream, learner)]
        lines.append([f"{stream}, {learner}", *means(own)])
    head = ["whole rows", "with gaps", "difference", "labels of rows with gaps"]
    return (
        f"# Missing values\n\nMade by `{result['made_by']}`: adjusted Rand index, mean of seeds "
        f"{', '.join(map(str, result['seeds']))}. {SHARE:.0%} of all values are missing at random."
        " The first three "
        "columns are of labels of whole rows.\n\n"
        f"{table(['all streams', *head], summary)}\n{table(['stream', *head], lines)}\n"
        f"{one_line(result['machine'])}\n"
    )


@click.command(context_settings={"max_content_width": 100})
@quick_option("One short stream of each kind and one seed")
@click.option(
    "--choosing",
    is_flag=True,
    help="The seeds on which the rules were chosen, and not those reported.",
)
@out_option("gaps")
def main(quick: bool, choosing: bool, out: Path) -> None:
    """Measure what missing values cost."""
    seeds = (CHOOSING if choosing else REPORTING)[: 1 if quick else None]
    machine = facts(("shoal", "numpy", "scikit-learn"))
    made_by = "python -m benchmarks gaps"
    cells = []
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for seed in seeds:
            for cell in measure(seed, quick):
                cells.append(cell)
                click.echo(
                    f"{cell['stream']}, {cell['learner']}: {cell['whole']:.3f} ->"
                    f" {cell['gaps']:.3f}"
                )
    made_by += " --quick" * quick + " --choosing" * choosing
    result = {"made_by": made_by, "machine": machine, "seeds": list(seeds), "cells": cells}
    write(out, "gaps", result, markdown(result))
    click.echo(f"written to {out}/gaps.json and {out}/gaps.md")
