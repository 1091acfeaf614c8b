"""density_tree beyond separate blobs: overlapping mixtures, coarse values, and real streams beside
cluster_tree.

Mixtures: rotated Gaussians of unequal shares and widths, of eleven numbers of features and
clusters; the best labels that anyone could give, by Bayes' rule with the true densities, agree with
the truth by .993 or better. Coarse values: four clusters in whole numbers, with and without `step`.
Real streams: the number of clusters with and without noise, and that of cluster_tree, which reads
rows without noise.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any, Final

import click
import numpy as np
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.machine import facts, one_line
from benchmarks.privacy.families import CLIENTS, READINGS, rotated_gaussians
from benchmarks.privacy.page import numbers, streams_table
from benchmarks.privacy.sensors import STEPS, sensors
from benchmarks.results import out_option, quick_option, streams_option, table, write
from benchmarks.steadiness.streams import centres_apart
from shoal.estimators.cluster_tree import ClusterTree
from shoal.estimators.density_tree import DensityTree
from shoal.kernels.arrays import Floats, Ints

CHOOSING: Final = tuple(range(100, 108))
"""seeds on which shares of axes were chosen"""
REPORTING: Final = (9601, 9602, 9603, 9604, 9605)
"""seeds of the published figures"""
MIXTURES: Final = (
    (2, 4),
    (2, 7),
    (2, 10),
    (3, 5),
    (3, 8),
    (4, 4),
    (4, 8),
    (4, 12),
    (8, 8),
    (8, 16),
    (16, 8),
)
"""features and clusters"""
MEAN_GOAL = 0.95
LEAST_GOAL = 0.8
RIGHT_GOAL = 0.8
EPSILONS: Final = (1.0, 4.0, None)
COARSE_FEATURES: Final = (2, 3)
BATCH_ROWS: Final = 500


def mixture(seed: int, d: int, k: int, n: int) -> tuple[Floats, Ints, Ints]:
    """Rows (n, d), the cluster of each (n,) and its client (n,)."""
    random = np.random.default_rng([seed, d, k])
    centres = centres_apart(random, k, d, 0.3 if (d, k) == (2, 4) else 0.22)
    share = random.uniform(0.4, 1.6, size=k)
    truth = random.choice(k, size=n, p=share / share.sum())
    rows = rotated_gaussians(random, centres, truth)
    return np.clip(rows, 0.0, 1.0), truth, random.integers(CLIENTS, size=n)


def coarse(seed: int, d: int, n: int) -> tuple[Floats, Ints]:
    """Four clusters in whole numbers from 0 to 40: rows (n, d) and the cluster of each."""
    random = np.random.default_rng([seed, d])
    centres = 10 + 20 * (centres_apart(random, 4, d, 0.45) - 0.1) / 0.8
    truth = random.integers(4, size=n)
    return np.rint(centres[truth] + random.standard_normal((n, d))), truth


def measure_mixtures(seed: int, quick: bool) -> Iterator[dict[str, Any]]:
    """Agreement and number of clusters at an epsilon of 1."""
    for d, k in MIXTURES[: 1 if quick else None]:
        for n in (2000,) if quick else (READINGS, 3 * READINGS):
            rows, truth, owner = mixture(seed, d, k, n)
            model = DensityTree(epsilon=1.0, random_state=seed).fit(rows, clients=owner)
            found = model.predict(rows)
            cell = {"part": "mixtures", "d": d, "k": k, "readings": n, "seed": seed}
            yield {
                **cell,
                "ari": float(adjusted_rand_score(truth, found)),
                "clusters": len(np.unique(found)),
            }


def measure_coarse(seed: int, quick: bool) -> Iterator[dict[str, Any]]:
    """The same of whole numbers, with and without their step."""
    for epsilon in EPSILONS[: 1 if quick else None]:
        for d in COARSE_FEATURES[: 1 if quick else None]:
            rows, truth = coarse(seed, d, 2000 if quick else READINGS)
            for step in (0.0, 1.0):
                options: dict[str, Any] = {
                    "low": 0.0,
                    "high": 40.0,
                    "step": step,
                    "clients": CLIENTS,
                }
                found = (
                    DensityTree(epsilon=epsilon, random_state=seed, **options)
                    .fit(rows)
                    .predict(rows)
                )
                cell = {"part": "coarse", "d": d, "epsilon": epsilon, "step": step, "seed": seed}
                yield {
                    **cell,
                    "ari": float(adjusted_rand_score(truth, found)),
                    "clusters": len(np.unique(found)),
                }


def measure_streams(folder: Path, seeds: tuple[int, ...], quick: bool) -> Iterator[dict[str, Any]]:
    """Numbers of clusters that hold readings at the end, and agreement with classes where there are
    some."""
    for name, maker in list(sensors(folder).items())[: 1 if quick else None]:
        stream = maker(0)
        rows = stream.rows[: 2000 if quick else None]
        truth = stream.truth[: len(rows)]
        tree = ClusterTree(clients=int(stream.owner.max()) + 1)
        for first in range(0, len(rows), BATCH_ROWS):
            tree.partial_fit(rows[first : first + BATCH_ROWS])
        for steps in ({}, STEPS[name]) if name in STEPS else ({},):
            shown = f"{name}, with steps" if steps else name
            step = [steps.get(feature, 0.0) for feature in range(rows.shape[1])]
            for epsilon in EPSILONS:
                for seed in seeds if epsilon else seeds[:1]:
                    model = DensityTree(epsilon=epsilon, random_state=seed, step=step)
                    model.fit(rows, clients=stream.owner[: len(rows)])
                    yield _of_stream(shown, epsilon, seed, truth, model, rows)
            yield _of_stream(shown, "cluster_tree", 0, truth, tree, rows)


def _of_stream(
    name: str, learner: Any, seed: int, truth: Ints, model: Any, rows: Floats
) -> dict[str, Any]:
    found = np.asarray(model.predict(rows))
    agreement = float(adjusted_rand_score(truth, found)) if len(np.unique(truth)) > 1 else None
    facts_of = {
        "part": "streams",
        "stream": name,
        "learner": learner,
        "seed": seed,
        "features": rows.shape[1],
    }
    return {**facts_of, "readings": len(rows), "ari": agreement, "clusters": len(np.unique(found))}


def markdown(result: dict[str, Any]) -> str:
    """The page."""
    seeds = ", ".join(map(str, result["seeds"]))
    parts = [
        f"# density_tree beyond separate blobs\n\nMade by `{result['made_by']}`; seeds {seeds}.\n"
    ]
    for name, lines in (
        ("mixtures", _mixture_lines(result["cells"])),
        ("coarse", _coarse_lines(result["cells"])),
    ):
        if len(lines) > 1:
            parts.append(f"## {name}\n\n{TITLES[name]}\n\n{table(lines[0], lines[1:])}")
    if any(cell["part"] == "streams" for cell in result["cells"]):
        parts.append(f"## streams\n\n{TITLES['streams']}\n\n{streams_table(result['cells'])}")
    return "\n".join([*parts, one_line(result["machine"]), ""])


TITLES: Final = {
    "mixtures": (
        "Adjusted Rand index at ε 1, mean (lowest), and in how many runs the number of clusters is"
        f" right. Goals: a mean of {MEAN_GOAL}, no line below {LEAST_GOAL}, the number right in"
        f" {RIGHT_GOAL:.0%}."
    ),
    "coarse": (
        f"Whole numbers, four clusters in 2 and 3 features, {READINGS} readings of {CLIENTS}"
        " clients: adjusted Rand index, mean (lowest), and the numbers of clusters found."
    ),
    "streams": (
        "Real sensors and tables in the order of their files, dealt to five clients in turn: the"
        " number of clusters that readings fall to, least to most of the seeds, and behind it the"
        " mean adjusted Rand index with the classes of the file where it has some. *With steps*:"
        " features of few values are spread over them, as a contract would declare. cluster_tree"
        " learns from rows without noise."
    ),
}


def _mixture_lines(cells: list[dict[str, Any]]) -> list[list[str]]:
    own = [cell for cell in cells if cell["part"] == "mixtures"]
    sizes = sorted({cell["readings"] for cell in own})
    lines = [
        [
            "features, clusters",
            *(f"{n} readings{more}" for n in sizes for more in ("", ": number right")),
        ]
    ]
    shapes: list[tuple[int, int] | None] = [
        *dict.fromkeys((cell["d"], cell["k"]) for cell in own),
        None,
    ]
    for shape in shapes if own else []:
        line = ["all" if shape is None else f"{shape[0]}, {shape[1]}"]
        for n in sizes:
            some = [
                cell
                for cell in own
                if cell["readings"] == n and shape in (None, (cell["d"], cell["k"]))
            ]
            right = mean(cell["clusters"] == cell["k"] for cell in some)
            line += [_mean_and_least(some), f"{right:.0%}"]
        lines.append(line)
    return lines


def _coarse_lines(cells: list[dict[str, Any]]) -> list[list[str]]:
    lines = [["", "without step", "clusters", "with step", "clusters"]]
    for epsilon in EPSILONS:
        line = ["no noise" if epsilon is None else f"ε {epsilon:g}"]
        for step in (0.0, 1.0):
            own = [cell for cell in cells if cell["part"] == "coarse"]
            some = [cell for cell in own if (cell["epsilon"], cell["step"]) == (epsilon, step)]
            line += [_mean_and_least(some), numbers(some)] if some else []
        lines += [line] if len(line) > 1 else []
    return lines


def _mean_and_least(cells: list[dict[str, Any]]) -> str:
    scores = [cell["ari"] for cell in cells]
    return f"{mean(scores):.2f} ({min(scores):.2f})"


@click.command(context_settings={"max_content_width": 100})
@quick_option("One short stream of each part")
@click.option("--choosing", is_flag=True, help="The seeds on which was chosen, not those reported.")
@streams_option
@out_option("density_tree")
def main(quick: bool, choosing: bool, data: Path | None, out: Path) -> None:
    """Measure what density_tree finds beyond separate blobs."""
    seeds = (CHOOSING if choosing else REPORTING)[: 1 if quick else None]
    machine = facts(("shoal", "numpy", "scikit-learn"))
    made_by = (
        "python -m benchmarks privacy.density_tree" + " --quick" * quick + " --choosing" * choosing
    )
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        cells = [
            cell
            for seed in seeds
            for part in (measure_mixtures, measure_coarse)
            for cell in part(seed, quick)
        ]
        cells += measure_streams(data, seeds, quick) if data else []
    result = {"made_by": made_by, "machine": machine, "seeds": list(seeds), "cells": cells}
    write(out, "density_tree", result, markdown(result))
    click.echo(f"written to {out}/density_tree.json and {out}/density_tree.md")
