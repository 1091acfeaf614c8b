"""What the keyed noise of readings and of counts costs, in both forms of the kernels, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.forms import use
from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, quick_option, rounded, spread, table, write
from shoal.kernels.forms import COMPILED, NUMPY
from shoal.privacy import Bounds, load_mode
from shoal.privacy.count_noise import count_noise

SEED = 6
CHUNK_ROWS = 1000
"""rows that a client makes private in one step"""
CASES = ((2, 1.0), (16, 1.0), (16, 20.0), (64, 1.0))
"""features, epsilon of each"""
CELLS = (256, 4096)
EPSILON_OF_COUNTS = 4.0
FORMS = (NUMPY, COMPILED)


@click.command(context_settings={"max_content_width": 100})
@quick_option("Few turns, in seconds")
@out_option("noise")
def main(quick: bool, out: Path) -> None:
    """Measure the noise of the mode `formal`, and of counts. A quarter of a minute."""
    turns = 2 if quick else 25
    machine = facts(("shoal", "numpy", "numba"))
    rows = [of_rows(d, epsilon, turns) for d, epsilon in (CASES[:1] if quick else CASES)]
    counts = [of_counts(cells, turns) for cells in CELLS]
    result = {
        "made_by": "python -m benchmarks noise" + " --quick" * quick,
        "machine": machine,
        "rows": rows,
        "counts": counts,
    }
    write(out, "noise", result, markdown(result))
    click.echo(f"written to {out}/noise.json and {out}/noise.md")


def of_rows(d: int, epsilon: float, turns: int) -> dict[str, Any]:
    """Microseconds of processor time for a reading. Raises RuntimeError if the forms do not give
    the same bits."""
    mode = load_mode("formal")(Bounds([0.0] * d, [1.0] * d), {"epsilon_per_reading": epsilon * d})
    mechanism = mode.mechanism(bytes(32), "measured", bytes(16))
    readings = np.random.default_rng(SEED).random((CHUNK_ROWS, d))
    places = np.stack([np.zeros(CHUNK_ROWS, dtype=np.int64), np.arange(CHUNK_ROWS)], axis=1)

    def make_private() -> bytes:
        return mechanism.privatise(readings, places).rows.tobytes()

    took = in_turns(make_private, turns)
    return {"d": d, "epsilon_per_feature": epsilon, **compared(took)}


def of_counts(cells: int, turns: int) -> dict[str, Any]:
    """Microseconds of processor time for a window."""
    noise = count_noise(EPSILON_OF_COUNTS)
    took = []
    for turn in range(turns):
        began = time.process_time()
        noise.draw(turn.to_bytes(4, "little"), cells)
        took.append(1e6 * (time.process_time() - began))
    return {"cells": cells, "epsilon": EPSILON_OF_COUNTS, "us": spread(took)}


def in_turns(work: Callable[[], bytes], turns: int) -> dict[str, list[float]]:
    """Processor seconds of each turn, by form."""
    took: dict[str, list[float]] = {form: [] for form in FORMS}
    results = set()
    for turn in range(turns + 1):
        for form, seconds in took.items():
            use(form)
            began = time.process_time()
            results.add(work())
            if turn:  # the first one loads what it needs
                seconds.append(time.process_time() - began)
    if len(results) != 1:
        raise RuntimeError("the two forms do not give the same bits")
    return took


def compared(took: dict[str, list[float]]) -> dict[str, Any]:
    """Microseconds for a reading in each form, and how many times as fast the compiled one is."""
    ratios = [numpy / compiled for numpy, compiled in zip(took[NUMPY], took[COMPILED], strict=True)]
    each = {
        form: spread([1e6 * chunk / CHUNK_ROWS for chunk in seconds])
        for form, seconds in took.items()
    }
    return each | {"ratio": spread(ratios)}


def markdown(result: dict[str, Any]) -> str:
    """The result as a Markdown page."""
    rows = [
        [
            f"d = {row['d']}, epsilon {row['epsilon_per_feature']:g} each",
            *(rounded(row[name]["median"]) for name in (NUMPY, COMPILED, "ratio")),
        ]
        for row in result["rows"]
    ]
    counts = [
        [f"{row['cells']} cells, epsilon {row['epsilon']:g}", rounded(row["us"]["median"])]
        for row in result["counts"]
    ]
    return "\n".join(
        [
            f"# Keyed noise\n\nMade by `{result['made_by']}`; do not edit.\n",
            table(
                [
                    "a reading in the mode `formal`",
                    "NumPy form, µs",
                    "compiled, µs",
                    "times as fast",
                ],
                rows,
            ),
            table(["noise of a window of counts", "µs"], counts),
            (
                f"Processor time of one thread, the median of all turns; {CHUNK_ROWS} readings at"
                " once. Both forms gave the same bits. The noise of counts has one form: one"
                " digest makes all of its bits, so that nothing can be computed side by side.\n"
            ),
            one_line(result["machine"]) + "\n",
        ]
    )
