"""How well clusters are found from private readings: density_tree and others, by epsilon."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.machine import facts
from benchmarks.privacy import cost
from benchmarks.privacy.families import Stream, families
from benchmarks.privacy.goals import judged
from benchmarks.privacy.learners import (
    FCAC_ROWS,
    K_MEANS_ROWS,
    OBLIQUE,
    ON_A_GRID,
    OURS,
    Learner,
    central,
    running,
)
from benchmarks.privacy.page import markdown
from benchmarks.privacy.sensors import sensors
from benchmarks.results import out_option, quick_option, streams_option, write

CHOOSING = (100, 101, 102, 103, 104, 105, 106, 107, 108)
"""seeds on which options and rules were chosen"""
REPORTING = (9201, 9302, 9403, 9504, 9605)
"""seeds of the published figures; nothing was chosen on them"""
QUICK_EPSILONS = (4.0, None)
QUICK_READINGS = 12_000
QUICK = ("blobs d=2", "moons d=2")


@click.command(context_settings={"max_content_width": 100})
@quick_option("Two short streams, two epsilons")
@click.option(
    "--choosing", is_flag=True, help="The seeds for choosing instead of those for reporting."
)
@click.option("--ours", "ours_alone", is_flag=True, help="Private counts alone, without the peers.")
@click.option("--stream", "wanted", multiple=True, help="Only streams whose name contains this.")
@streams_option
@click.option(
    "--diffprivlib",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A Python that has diffprivlib, for central k-means; without it that is left out.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Processes; times are taken in one.",
)
@out_option("privacy")
def main(
    quick: bool,
    choosing: bool,
    ours_alone: bool,
    wanted: tuple[str, ...],
    data: Path | None,
    diffprivlib: Path | None,
    jobs: int,
    out: Path,
) -> None:
    """Measure how well clusters are found from private readings, and what that costs a client.

    A full run takes about ten minutes of one core.
    """
    started = time.monotonic()
    machine = facts(("shoal", "numpy", "scikit-learn"))
    seeds = (CHOOSING if choosing else REPORTING)[: 1 if quick else None]
    run = Run(seeds, quick, ours_alone, data, diffprivlib)
    names = [name for name in run.streams() if not wanted or any(part in name for part in wanted)]
    with ProcessPoolExecutor(jobs) as pool:
        cells = [cell for found in pool.map(run.cells, names) for cell in found]
    with threadpool_limits(limits=1):
        costs = cost.measure(
            ((2, 6),) if quick else ((2, 6), (4, 6), (8, 6), (16, 6), (16, 40)), 2 if quick else 25
        )
    learners = run.learners()
    result = {
        "made_by": (
            "python -m benchmarks privacy"
            + " --quick" * quick
            + " --choosing" * choosing
            + " --ours" * ours_alone
            + "".join(f" --stream {name!r}" for name in wanted)
            + " --data FOLDER" * (data is not None)
            + " --diffprivlib PYTHON" * (diffprivlib is not None)
        ),
        "took_s": round(time.monotonic() - started),
        "machine": machine,
        "seeds": list(seeds),
        "learners": {learner.name: learner.parameters for learner in learners},
        "cells": cells,
        "goals": judged(cells),
        "cost_goal": cost.GOAL,
        "cost": costs,
    }
    write(out, "privacy", result, markdown(result))
    click.echo(f"written to {out}/privacy.json and {out}/privacy.md")


@dataclass(frozen=True)
class Run:
    """What is measured in one run."""

    seeds: tuple[int, ...]
    quick: bool
    ours_alone: bool
    data: Path | None
    diffprivlib: Path | None

    def streams(self) -> dict[str, Callable[[int], Stream]]:
        """Every stream by its name. Of sensors the rows are always the same, and only the noise
        differs."""
        if self.quick:
            made = families(QUICK_READINGS, QUICK_READINGS)
            return {name: made[name] for name in QUICK}
        return families() | (sensors(self.data) if self.data is not None else {})

    def learners(self) -> list[Learner]:
        """All that are run."""
        peers = [] if self.ours_alone else [FCAC_ROWS, K_MEANS_ROWS]
        if self.diffprivlib is not None and not self.ours_alone:
            peers.append(central(running(self.diffprivlib)))
        return [OURS, ON_A_GRID, OBLIQUE, *peers]

    def cells(self, name: str) -> list[dict[str, Any]]:
        """What each learner finds in one stream."""
        make = self.streams()[name]
        with threadpool_limits(limits=1), warnings.catch_warnings():
            # raised within the peers
            warnings.simplefilter("ignore", (RuntimeWarning, UserWarning, FutureWarning))
            streams = [make(seed) for seed in self.seeds]
            return list(
                cells_of(
                    streams, self.seeds, self.learners(), QUICK_EPSILONS if self.quick else None
                )
            )


def cells_of(
    streams: Sequence[Stream],
    seeds: Sequence[int],
    learners: Sequence[Learner],
    epsilons: Sequence[float | None] | None = None,
) -> Iterator[dict[str, Any]]:
    """What each learner finds in a stream at each of its epsilons (or of those given), over its
    seeds."""
    first = streams[0]
    without_noise = [
        OURS.label(stream, None, seed) for stream, seed in zip(streams, seeds, strict=True)
    ]
    for learner in learners:
        if not learner.takes(first):
            continue
        own = list(zip(streams, seeds, without_noise, strict=True))[: learner.seeds]
        for epsilon in learner.epsilons if epsilons is None else epsilons:
            if learner is OURS and epsilon is None:
                labels = without_noise
            else:
                labels = [learner.label(stream, epsilon, seed) for stream, seed, _ in own]
            found = _scores(
                first, [stream for stream, _, _ in own], labels, [quiet for _, _, quiet in own]
            )
            cell = {
                "stream": first.name,
                "family": first.family,
                "d": first.rows.shape[1],
                "learner": learner.name,
            }
            cell |= {"epsilon": epsilon, "seeds": len(own), **found}
            click.echo(_progress(cell))
            yield cell


def _scores(
    first: Stream, streams: Sequence[Stream], labels: Sequence[Any], quiet: Sequence[Any]
) -> dict[str, Any]:
    part = slice(first.judged_from, None)
    agreement = [adjusted_rand_score(a[part], b[part]) for a, b in zip(labels, quiet, strict=True)]
    truth = [
        adjusted_rand_score(s.truth[part], a[part]) for s, a in zip(streams, labels, strict=True)
    ]
    return {
        "k": first.k_told if first.known else None,
        "ari": _mean(truth) if first.known else None,
        "ari_to_no_noise": _mean(agreement),
        "clusters": [len(np.unique(found[part])) for found in labels],
    }


def _mean(scores: Sequence[float]) -> dict[str, float]:
    return {
        "mean": round(float(np.mean(scores)), 4),
        "low": round(min(scores), 4),
        "high": round(max(scores), 4),
    }


def _progress(cell: dict[str, Any]) -> str:
    score = cell["ari"] or cell["ari_to_no_noise"]
    return (
        f"{cell['stream']}, {cell['learner']}, epsilon {cell['epsilon'] or 'none'}: "
        f"{score['mean']:.3f}, {cell['clusters']} clusters"
    )
