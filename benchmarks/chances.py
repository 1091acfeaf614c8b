"""How often a change between two spans is found where nothing has changed, and where something has moved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, table, write
from server_node.clusters.history.comparison import Series, difference
from shoal.kernels.arrays import Floats
from shoal.protocol.history import DAY_S, FINE_S, PLACES_S

SEED: Final = 7
"""not that of the choice of the method"""
BINS: Final = (12, 28, 60, 288)
"""bins of each span: three days, a week and two of them in bins of 6 hours, and a day in bins of 5 minutes"""
CORRELATIONS: Final = (0.0, 0.5, 0.8, 0.95)
LEVELS: Final = (0.05, 0.01, 0.001)
SHIFTS: Final = (1.0, 2.0)
"""movements, in deviations of a bin's mean"""


@click.command(context_settings={"max_content_width": 100})
@click.option("--quick", is_flag=True, help="Few series: shows that it runs; no figures to keep.")
@out_option("chances")
def main(quick: bool, out: Path) -> None:
    """Measure the chances that `shoal changes` states. Some seconds."""
    series = 100 if quick else 10_000
    result: dict[str, Any] = {
        "made_by": "python -m benchmarks.chances" + " --quick" * quick,
        "machine": facts(("shoal", "numpy")),
        "series": series,
        "rows": list(measured(series)),
    }
    write(out, "chances", result, markdown(result))
    click.echo(f"written to {out}/chances.json and {out}/chances.md")


def measured(series: int) -> Iterator[dict[str, Any]]:
    """Measure for each length and correlation the share of series with a chance below each level, still and shifted."""
    rng = np.random.default_rng(SEED)
    for bins in BINS:
        width = FINE_S if bins == max(BINS) else PLACES_S
        for correlation in CORRELATIONS:
            values = alike(rng, 2 * bins, series, correlation)
            if width == PLACES_S:  # a day, which is taken off
                day = 2 * np.pi * np.arange(2 * bins) * width / DAY_S
                values += 3 * np.sin(day)[:, None]
            still = chances(values, bins, width, 0.0)
            yield {
                "bins": bins,
                "correlation": correlation,
                "false": {str(level): float(np.mean(still < level)) for level in LEVELS},
                "found": {str(by): float(np.mean(chances(values, bins, width, by) < LEVELS[1])) for by in SHIFTS},
            }


def alike(rng: np.random.Generator, bins: int, series: int, correlation: float) -> Floats:
    """(bins, series) of deviation 1, of which neighbours have this correlation: AR(1)."""
    values = rng.normal(size=(bins, series))
    for at in range(1, bins):
        values[at] = correlation * values[at - 1] + np.sqrt(1 - correlation**2) * values[at]
    return values


def chances(values: Floats, bins: int, width: int, by: float) -> Floats:
    """values (2 bins, s) -> (s,) the chance of the second half, moved by `by`, against the first."""
    at, ones = width * np.arange(2 * bins), np.ones(bins)
    halves = Series(at[:bins], values[:bins], ones), Series(at[bins:], values[bins:] + by, ones)
    return difference(*halves, width).chance


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    rows = [
        [
            str(row["bins"]),
            f"{row['correlation']:g}",
            *(f"{100 * share:.2f}" for share in row["false"].values()),
            *(f"{100 * share:.0f}" for share in row["found"].values()),
        ]
        for row in result["rows"]
    ]
    levels = [f"below {100 * level:g} %" for level in LEVELS]
    moved = [f"moved by {by:g}: below {100 * LEVELS[1]:g} %" for by in SHIFTS]
    return "\n".join(
        [
            f"# The chances that `shoal changes` states\n\nMade by `{result['made_by']}`; do not edit.\n",
            table(["bins of each span", "correlation of neighbours", *levels, *moved], rows),
            f"Percent of {result['series']} series whose chance is below each level, where nothing has changed and "
            "where the later span has moved by deviations of a bin's mean. All but the longest have a day of three "
            "deviations. On a page, chances are multiplied by the number of comparisons.\n",
            one_line(result["machine"]) + "\n",
        ]
    )


if __name__ == "__main__":
    main()
