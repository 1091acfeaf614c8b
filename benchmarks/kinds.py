"""What kinds of features gain: circular features and categories, beside the same values taken for
plain numbers.

Circular: a direction or an hour as a number from 0, as a circle that is cut at 0 or where the first
readings are fewest, and as two coordinates, its cosine and sine. Category: over how much of the
distance between two values each is spread, and one coordinate for each value. Rows of streams go to
five clients in turn.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import Any, Final, NamedTuple

import click
import numpy as np
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, quick_option, table, write
from shoal.estimators.cluster_tree import ClusterTree
from shoal.estimators.fcac import FCAC
from shoal.kernels.arrays import Floats, Ints
from shoal.producers.features import cut_of
from shoal.simulation.counting import CountingFederation

CHOOSING: Final = (100, 101)
"""seeds on which the treatments were chosen"""
REPORTING: Final = (9401, 9402, 9403)
"""seeds of the published figures"""
CLIENTS: Final = 5
BATCH_ROWS: Final = 500
FIRST_ROWS: Final = 500
"""rows from which the place of the cut is taken, as by `shoal init`"""
EPSILONS: Final = (1.0, None)
SPREADS: Final = (0.0, 0.1, 0.25, 0.5)
"""shares of the distance between two values of a category"""


class Stream(NamedTuple):
    """Rows (n, d) in unit coordinates, of which feature 0 is of the kind, and their clusters
    (n,)."""

    rows: Floats
    truth: Ints


def sectors(random: np.random.Generator, n: int) -> Stream:
    """Four directions, one of them north."""
    of = random.integers(4, size=n)
    return _turned(
        355 / 360 + of / 4 + random.normal(0, 15 / 360, n), 0.4 + random.normal(0, 0.1, n), of
    )


def calm(random: np.random.Generator, n: int) -> Stream:
    """North and south winds, and calm air, which comes from anywhere."""
    of = random.integers(3, size=n)
    way = np.where(
        of == 0, random.random(n), np.where(of == 1, 352, 170) / 360 + random.normal(0, 18 / 360, n)
    )
    speed = np.where(of == 0, 0.08 + random.normal(0, 0.03, n), 0.5 + random.normal(0, 0.08, n))
    return _turned(way, speed, of)


def rings(random: np.random.Generator, n: int) -> Stream:
    """Two speeds, each from every direction."""
    of = random.integers(2, size=n)
    return _turned(random.random(n), np.array([0.25, 0.7])[of] + random.normal(0, 0.06, n), of)


def shifts(random: np.random.Generator, n: int) -> Stream:
    """Three times of day with a load each, one of them around midnight."""
    of = random.choice(3, n, p=[0.4, 0.4, 0.2])
    hour = np.array([0.5, 10.0, 17.5])[of] + random.normal(0, 1, n) * np.array([1.6, 1.2, 1.0])[of]
    return _turned(hour / 24, np.array([0.2, 0.6, 0.5])[of] + random.normal(0, 0.08, n), of)


def all_around(random: np.random.Generator, n: int) -> Stream:
    """A north wind, and a weaker one from everywhere else: no direction without readings."""
    of = random.integers(2, size=n)
    way = np.where(of == 0, random.normal(3, 14, n), random.uniform(50, 316, n)) / 360
    return _turned(way, np.array([0.65, 0.3])[of] + random.normal(0, 0.07, n), of)


def _turned(way: Floats, other: Floats, of: Ints) -> Stream:
    return Stream(np.column_stack([way % 1.0, np.clip(other, 0, 1)]), of)


CIRCULAR: Final[Mapping[str, Callable[[np.random.Generator, int], Stream]]] = {
    "four directions": sectors,
    "calm and two winds": calm,
    "two speeds from anywhere": rings,
    "three shifts": shifts,
    "one wind, and others around": all_around,
}


def modes(values: int, clusters: int, alike: bool) -> Callable[[np.random.Generator, int], Stream]:
    """Clusters of a category of this many values and two numbers; `alike`: two differ in the
    category alone."""

    def make(random: np.random.Generator, n: int) -> Stream:
        of = random.integers(clusters, size=n)
        middles = random.uniform(0.15, 0.85, (clusters, 2))
        if alike:
            middles = np.repeat(middles[: (clusters + 1) // 2], 2, axis=0)[:clusters]
        return Stream(
            np.column_stack(
                [of % values, np.clip(middles[of] + random.normal(0, 0.04, (n, 2)), 0, 1)]
            ),
            of,
        )

    return make


CATEGORIES: Final[Mapping[str, tuple[int, Callable[[np.random.Generator, int], Stream]]]] = {
    "open or closed, 2 clusters": (2, modes(2, 2, alike=True)),
    "4 modes, 4 clusters": (4, modes(4, 4, alike=True)),
    "3 modes, 6 clusters": (3, modes(3, 6, alike=False)),
    "6 modes, 6 clusters": (6, modes(6, 6, alike=True)),
}


def circular_forms(rows: Floats) -> Iterator[tuple[str, Floats, dict[str, Any]]]:
    """What the feature is taken for -> rows as models learn them, and the options of
    density_tree."""
    way = rows[:, 0]
    others = rows[:, 1:]
    yield "a number", rows, {}
    yield "a circle, cut at 0", rows, {"circular": "0"}
    yield (
        "a circle, cut in a gap",
        np.column_stack([(way - cut_of(way[:FIRST_ROWS], 1.0)) % 1.0, others]),
        {"circular": "0"},
    )
    angle = 2 * np.pi * way
    yield (
        "cosine and sine",
        np.column_stack([0.5 + 0.5 * np.cos(angle), 0.5 + 0.5 * np.sin(angle), others]),
        {},
    )


def category_forms(
    rows: Floats, values: int, random: np.random.Generator
) -> Iterator[tuple[str, Floats, dict[str, Any]]]:
    """Forms as of `circular_forms`, for a category of this many values."""
    place = rows[:, 0]
    others = rows[:, 1:]
    for share in SPREADS:
        spread = (place + 0.5 + share * (random.random(len(place)) - 0.5)) / values
        yield f"spread over {share:g} of a step", np.column_stack([spread, others]), {}
    # Two values are then as far apart as two neighbours at the ends of a feature of half the range.
    yield (
        "one coordinate a value",
        np.column_stack([0.5 * (place[:, None] == np.arange(values)), others]),
        {},
    )


def measure(seed: int, quick: bool) -> Iterator[dict[str, Any]]:
    """The adjusted Rand index of each stream, learner and form."""
    n = 2000 if quick else 8000
    for name, make in list(CIRCULAR.items())[: 1 if quick else None]:
        stream = make(np.random.default_rng([seed, 1]), n)
        yield from _measured("circular", name, seed, stream, circular_forms(stream.rows))
    for name, (values, make) in list(CATEGORIES.items())[: 1 if quick else None]:
        stream = make(np.random.default_rng([seed, 2]), n)
        forms = category_forms(stream.rows, values, np.random.default_rng([seed, 3]))
        yield from _measured("category", name, seed, stream, forms)


def _measured(
    kind: str,
    name: str,
    seed: int,
    stream: Stream,
    forms: Iterator[tuple[str, Floats, dict[str, Any]]],
) -> Iterator[dict[str, Any]]:
    for form, rows, options in forms:
        for learner, found in _labelled(rows, options, seed):
            cell = {"kind": kind, "stream": name, "form": form, "learner": learner, "seed": seed}
            yield {
                **cell,
                "ari": float(adjusted_rand_score(stream.truth, found)),
                "clusters": len(np.unique(found)),
            }


def _labelled(rows: Floats, options: dict[str, Any], seed: int) -> Iterator[tuple[str, Ints]]:
    for epsilon in EPSILONS:
        federation = CountingFederation(options, rows.shape[1], 1, seed, epsilon, 400)
        federation.learn(rows, np.arange(len(rows)) % CLIENTS, is_last=True)
        yield (
            f"density_tree, ε {'none' if epsilon is None else f'{epsilon:g}'}",
            federation.predict(rows),
        )
    for name, kind in (("cluster_tree", ClusterTree), ("fcac", FCAC)):
        model = kind(clients=CLIENTS)
        for first in range(0, len(rows), BATCH_ROWS):
            model.partial_fit(rows[first : first + BATCH_ROWS])
        yield name, np.asarray(model.predict(rows))


def markdown(result: dict[str, Any]) -> str:
    """The page."""
    parts = [
        f"# Kinds of features\n\nMade by `{result['made_by']}`: adjusted Rand index, mean of seeds "
        f"{', '.join(map(str, result['seeds']))}; behind it the lowest.\n"
    ]
    for kind in ("circular", "category"):
        cells = [cell for cell in result["cells"] if cell["kind"] == kind]
        forms, learners = (
            list(dict.fromkeys(cell[key] for cell in cells)) for key in ("form", "learner")
        )
        lines = []
        for stream in (*dict.fromkeys(cell["stream"] for cell in cells), "all"):
            for learner in learners:
                line = [stream, learner]
                for form in forms:
                    own = [
                        cell["ari"]
                        for cell in cells
                        if (cell["form"], cell["learner"]) == (form, learner)
                        and stream in (cell["stream"], "all")
                    ]
                    line.append(f"{mean(own):.2f} ({min(own):.2f})")
                lines.append(line)
        parts.append(f"## {kind}\n\n{table(['stream', 'learner', *forms], lines)}")
    return "\n".join([*parts, one_line(result["machine"]), ""])


@click.command(context_settings={"max_content_width": 100})
@quick_option("One short stream of each kind and one seed")
@click.option(
    "--choosing",
    is_flag=True,
    help="The seeds on which the treatments were chosen, not those reported.",
)
@out_option("kinds")
def main(quick: bool, choosing: bool, out: Path) -> None:
    """Measure what kinds of features gain."""
    seeds = (CHOOSING if choosing else REPORTING)[: 1 if quick else None]
    machine = facts(("shoal", "numpy", "scikit-learn"))
    made_by = "python -m benchmarks kinds"
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        cells = [cell for seed in seeds for cell in measure(seed, quick)]
    made_by += " --quick" * quick + " --choosing" * choosing
    result = {"made_by": made_by, "machine": machine, "seeds": list(seeds), "cells": cells}
    write(out, "kinds", result, markdown(result))
    click.echo(f"written to {out}/kinds.json and {out}/kinds.md")
