"""Clusters from masked sums: what they find by clients, features and epsilon, and what they cost.

`python -m benchmarks privacy.masked` simulates the sums in one process
(`shoal.simulation`); costs are those of the client's and the helper's own code.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final, NamedTuple

import click
import numpy as np
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.machine import facts, one_line
from benchmarks.privacy.masked_cost import costs
from benchmarks.results import out_option, quick_option, table, write
from benchmarks.steadiness.streams import centres_apart
from shoal.kernels.arrays import Floats, Ints
from shoal.simulation.counting import CountingFederation, WindowFederation
from shoal.simulation.masked import MaskedFederation, SumBudget

CHOOSING: Final = (100, 101, 102)
"""seeds on which what `shoal check` advises was chosen"""
REPORTING: Final = (9201, 9302, 9403, 9504, 9605)
"""seeds of the published figures; nothing was chosen on them"""
SHAPES: Final = ((2, 4), (4, 5), (8, 6), (16, 8))
"""features and clusters"""
WINDOW = 400
MONTH_WINDOW = 100
MONTH: Final = 120
"""windows of six hours"""
TEST_ROWS: Final = 4000
SPREAD: Final = 0.035
OPTIONS: Final = {"grow_readings": 1}


class Scheme(NamedTuple):
    """One row of a table: who adds noise, for which epsilon, over how many windows."""

    name: str
    clients: int
    budget: SumBudget
    windows: int = 50
    marks: tuple[int, ...] = (5, 20, 50)
    """windows after which clusters are compared with the true ones"""
    window: int = WINDOW
    lost: float = 0.0
    """chance that a client does not answer in a round"""
    sees: int | None = None
    """clusters that each client sees; None: all"""
    local: float | None = None
    """epsilon of a reading, where each client adds noise to its own counts"""


EPSILON_LOCAL: Final = 0.02
"""the least that counts with noise of their own allow for a reading: 8 for a user with a window of
400"""
SUMS: Final = (
    Scheme("no noise", 50, SumBudget(None)),
    Scheme("sums, epsilon 1 a window", 50, SumBudget(1.0)),
    Scheme("sums, epsilon 4 a window", 50, SumBudget(4.0)),
    Scheme("sums, epsilon 1 a window", 200, SumBudget(1.0)),
    Scheme("sums, epsilon 4 for all 50 windows", 200, SumBudget(4.0, 50)),
    Scheme(
        "each client its own noise, epsilon 8 a window", 200, SumBudget(None), local=EPSILON_LOCAL
    ),
)
LARGE: Final = (Scheme("sums, epsilon 4 for all 50 windows", 1000, SumBudget(4.0, 50)),)
MONTHS: Final = tuple(
    Scheme(
        f"a month, epsilon {epsilon:g}, two helpers",
        clients,
        SumBudget(epsilon, MONTH, helpers=2),
        MONTH,
        (12, 30, 60, 120),
        MONTH_WINDOW,
    )
    for clients, epsilon in ((100, 4.0), (200, 4.0), (1000, 1.0))
)
OTHERS: Final = (
    Scheme(
        "sums, epsilon 1 a window, a tenth does not answer",
        200,
        SumBudget(1.0),
        20,
        (5, 10, 20),
        lost=0.1,
    ),
    Scheme(
        "sums, epsilon 1 a window, a client sees two clusters",
        200,
        SumBudget(1.0),
        20,
        (5, 10, 20),
        sees=2,
    ),
)
NEEDED: Final = tuple(
    Scheme("sums, epsilon 1 a window", clients, SumBudget(1.0), 40, (1, 2, 3, 5, 8, 12, 18, 26, 40))
    for clients in (100, 200)
)
"""what the table of `shoal check` was chosen by"""


class Clusters:
    """Gaussian clusters of unequal shares and widths, wide apart, in the unit cube."""

    def __init__(self, seed: int, d: int, k: int, scheme: Scheme) -> None:
        generator = np.random.default_rng([seed, d, k])
        self._centres = centres_apart(generator, k, d, (8 if d == 2 else 12) * SPREAD)
        self._widths = SPREAD * generator.uniform(0.7, 1.3, (k, d))
        self._shares = generator.dirichlet(np.full(k, 8.0))
        self._scheme = scheme
        self._of_rounds = np.random.default_rng([seed, d, k, scheme.clients, 1])
        sees = scheme.sees or k
        self._sees = np.array(
            [self._of_rounds.choice(k, sees, replace=False) for _ in range(scheme.clients)]
        )
        self.test = self._rows(generator.choice(k, TEST_ROWS, p=self._shares), generator)

    def round(self) -> tuple[Floats, Ints]:
        """The readings of one window of every client that answers, and the client of each."""
        scheme = self._scheme
        generator = self._of_rounds
        answers = np.flatnonzero(generator.random(scheme.clients) >= scheme.lost)
        owner = np.repeat(answers, scheme.window)
        if scheme.sees is None:
            kinds = generator.choice(len(self._shares), len(owner), p=self._shares)
        else:
            kinds = self._sees[owner, generator.integers(scheme.sees, size=len(owner))]
        return self._rows(kinds, generator)[0], owner

    def _rows(self, kinds: Ints, generator: np.random.Generator) -> tuple[Floats, Ints]:
        rows = (
            self._centres[kinds]
            + generator.standard_normal((len(kinds), self._centres.shape[1])) * self._widths[kinds]
        )
        return np.clip(rows, 0.0, 1.0), kinds


def agreement(seed: int, d: int, k: int, scheme: Scheme) -> dict[int, float]:
    """windows -> adjusted Rand index of what was found after them."""
    stream = Clusters(seed, d, k, scheme)
    federation: WindowFederation
    if scheme.local is None:
        federation = MaskedFederation(OPTIONS, d, 1, seed, scheme.budget, scheme.window)
    else:
        federation = CountingFederation(OPTIONS, d, 1, seed, scheme.local, scheme.window)
    found = {}
    for number in range(scheme.windows):
        rows, owner = stream.round()
        # The sum is taken at the end of the round, as a server does that does not wait.
        federation.learn(rows, owner, is_last=True)
        if number + 1 in scheme.marks:
            found[number + 1] = float(
                adjusted_rand_score(stream.test[1], federation.predict(stream.test[0]))
            )
    return found


def _cell(job: tuple[Scheme, int, int, Sequence[int]]) -> dict[str, Any]:
    scheme, d, k, seeds = job
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a seed, and few clients
        runs = [agreement(seed, d, k, scheme) for seed in seeds]
    ari = {mark: [round(run[mark], 4) for run in runs] for mark in scheme.marks}
    cell = {"scheme": scheme.name, "clients": scheme.clients, "d": d, "k": k, "ari": ari}
    click.echo(f"{scheme.name}, {scheme.clients} clients, d={d}: {_means(cell)}")
    return cell


def _means(cell: dict[str, Any]) -> str:
    """Means over the seeds, after each mark."""
    return " / ".join(f"{np.mean(scores):.2f}" for scores in cell["ari"].values())


class Goal(NamedTuple):
    """The least mean index of a scheme after its last window."""

    scheme: str
    clients: int
    windows: int
    features_max: int = 8
    least: float = 0.95

    def is_of(self, scheme: Scheme) -> bool:
        """Whether it is the goal of this scheme."""
        return (scheme.name, scheme.clients) == (self.scheme, self.clients)


GOALS: Final = (
    Goal("sums, epsilon 1 a window", 200, 20),
    Goal("a month, epsilon 4, two helpers", 200, MONTH),
)


def judged(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each goal on each shape that was measured."""
    return [
        {**goal._asdict(), "d": cell["d"], "ari": mean, "reached": bool(mean >= goal.least)}
        for goal in GOALS
        for cell in cells
        if (cell["scheme"], cell["clients"]) == (goal.scheme, goal.clients)
        and cell["d"] <= goal.features_max
        if (mean := round(float(np.mean(cell["ari"][goal.windows])), 4)) is not None
    ]


@click.command()
@quick_option("Few windows of few clients, one seed")
@click.option(
    "--choosing", is_flag=True, help="What `shoal check` advises by, on the seeds for choosing."
)
@click.option(
    "--goals", is_flag=True, help="Only the schemes that have a goal: a quarter of an hour."
)
@click.option("--seeds", type=click.IntRange(1), help="Only the first of the seeds.")
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Processes; costs are taken in one.",
)
@out_option("privacy_masked")
def main(quick: bool, choosing: bool, goals: bool, seeds: int | None, jobs: int, out: Any) -> None:
    """Measure what masked sums find. A full run takes about an hour of one core."""
    started = time.monotonic()
    chosen = (CHOOSING if choosing else REPORTING)[:seeds]
    schemes = list(NEEDED if choosing else (*SUMS, *MONTHS, *OTHERS, *LARGE))
    shapes: tuple[tuple[int, int], ...] = SHAPES
    named = "privacy_masked"
    if goals:
        schemes = [scheme for scheme in schemes if any(goal.is_of(scheme) for goal in GOALS)]
        named = "privacy_masked_goals"
    if quick:
        chosen = chosen[:1]
        shapes = SHAPES[:1]
        schemes = [
            scheme._replace(clients=20, windows=3, marks=(3,))
            for scheme in (SUMS[1], OTHERS[0], OTHERS[1], SUMS[-1])
        ]
    work = [(scheme, d, k, chosen) for scheme in schemes for d, k in shapes]
    with ProcessPoolExecutor(jobs) as pool:
        cells = list(pool.map(_cell, work))
    with threadpool_limits(limits=1):
        cost = costs(*((20, 50, 2) if quick else (1000, 1000, 5)))
    result = {
        "made_by": "python -m benchmarks privacy.masked"
        + " --quick" * quick
        + " --choosing" * choosing
        + " --goals" * goals
        + (f" --seeds {seeds}" if seeds else ""),
        "took_s": round(time.monotonic() - started),
        "machine": facts(("shoal", "numpy", "cryptography")),
        "seeds": list(chosen),
        "cells": cells,
        "goals": judged(cells),
        "cost": cost,
    }
    write(out, named, result, markdown(result))
    click.echo(f"written to {out}/{named}.json and {out}/{named}.md")


def markdown(result: dict[str, Any]) -> str:
    """The whole page."""
    parts = [f"# Clusters from masked sums\n\nMade by `{result['made_by']}`; do not edit.\n"]
    parts.append(
        "Adjusted Rand index between the true clusters and those found in rows that were not"
        f" learnt, mean over {len(result['seeds'])} seeds. Noise protects all readings of a client"
        f" in a window, at delta 10⁻⁶; windows have {WINDOW} readings, in a month {MONTH_WINDOW}. d"
        " features, K clusters.\n"
    )
    parts += [f"## {title}\n\n{body}" for title, body in _tables(result["cells"])]
    lines = [
        [
            goal["scheme"],
            str(goal["clients"]),
            str(goal["d"]),
            f"{goal['ari']:.3f}",
            f"{goal['least']:g}",
            "yes" if goal["reached"] else "**no**",
        ]
        for goal in result["goals"]
    ]
    if lines:
        parts.append(
            "## Goals\n\n" + table(["scheme", "clients", "d", "ARI", "goal", "reached"], lines)
        )
    figures = [_figures(cost) for cost in result["cost"]]
    parts.append(
        "## Cost, processor time\n\n" + table(["what", "measured", "goal", "reached"], figures)
    )
    return "\n".join([*parts, one_line(result["machine"]) + "\n"])


def _figures(cost: dict[str, Any]) -> list[str]:
    """A cost, its goal, and whether that is reached."""
    measured = f"{cost['figure']:,.4g} {cost['unit']}"
    goal = cost["goal"]
    if goal is None:
        return [cost["what"], measured, "", ""]
    return [
        cost["what"],
        measured,
        f"{goal:g} {cost['unit']}",
        "yes" if cost["figure"] <= goal else "**no**",
    ]


def _tables(cells: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """A table for all schemes that were compared after the same windows."""
    by_marks: dict[tuple[int, ...], list[dict[str, Any]]] = {}
    for cell in cells:
        by_marks.setdefault(tuple(cell["ari"]), []).append(cell)
    for marks, own in by_marks.items():
        shapes = list(dict.fromkeys((cell["d"], cell["k"]) for cell in own))
        rows: dict[tuple[str, int], dict[tuple[int, int], str]] = {}
        for cell in own:
            rows.setdefault((cell["scheme"], cell["clients"]), {})[cell["d"], cell["k"]] = _means(
                cell
            )
        lines = [
            [name, str(clients), *(of[shape] for shape in shapes)]
            for (name, clients), of in rows.items()
        ]
        head = ["", "clients", *(f"d={d} K={k}" for d, k in shapes)]
        yield f"After {', '.join(map(str, marks))} windows", table(head, lines)
