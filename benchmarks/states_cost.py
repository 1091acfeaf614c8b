"""What states cost a client: time to learn, time of an evaluation, and what is kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from benchmarks.results import rounded, table
from shoal.algorithms.states.learner import StateLearner

READINGS: Final = 100_000
COLUMNS: Final = (1, 8)
WINDOW: Final = 35


def measure_cost(quick: bool) -> Iterator[dict[str, Any]]:
    """Processor time and memory of a stream of noise, of one column and of eight."""
    n = 5_000 if quick else READINGS
    for columns in COLUMNS:
        rows = np.random.default_rng(0).normal(size=(n, columns))
        learner = StateLearner(columns, window=WINDOW, evaluate_every=10 * n)
        begun = time.process_time()
        for first in range(0, n, 500):
            learner.add(rows[first : first + 500])
        learnt = time.process_time()
        learner.evaluate()
        evaluated = time.process_time()
        kept = sum(array.nbytes for array in learner.state().values())
        yield {
            "columns": columns,
            "readings_per_s": n / (learnt - begun),
            "evaluation_s": evaluated - learnt,
            "kept_bytes": kept,
        }


def cost_page(cells: list[dict[str, Any]]) -> str:
    """The section of the page."""
    if not cells:
        return ""
    lines = [
        [
            str(cell["columns"]),
            rounded(cell["readings_per_s"]),
            f"{cell['evaluation_s']:.2f}",
            f"{cell['kept_bytes'] / 2**20:.2f}",
        ]
        for cell in cells
    ]
    head = ["columns", "readings/s", "an evaluation, s", "kept, MiB"]
    return (
        f"\n## Cost\n\nProcessor time on one core, after {READINGS:,} readings in calls of 500,"
        f" windows of {WINDOW}.\n\n{table(head, lines)}"
    )
