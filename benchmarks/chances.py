"""How often a change between two spans, or a cycle, is found where there is none, and where there
is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, quick_option, table, write
from shoal.kernels.arrays import Floats
from shoal.protocol.history import DAY_S, FINE_S, PLACES_S
from shoal.server_node.history.cycles import cycles_of
from shoal.server_node.history.series import Series, difference

SEED: Final = 7
"""not that of the choice of the method"""
BINS: Final = (12, 28, 60, 288)
"""bins of each span: three days, a week and two of them in bins of 6 hours, and a day in bins of 5
minutes"""
CORRELATIONS: Final = (0.0, 0.5, 0.8, 0.95)
LEVELS: Final = (0.05, 0.01, 0.001)
SHIFTS: Final = (1.0, 2.0)
"""movements, in deviations of a bin's mean"""
PERIODS: Final = (14, 30, 120)
"""days of six-hour bins in which a cycle is looked for"""
CYCLES: Final = (0.05, 0.2)
"""shares of the variance that a cycle is"""


@click.command(context_settings={"max_content_width": 100})
@quick_option("Few series")
@out_option("chances")
def main(quick: bool, out: Path) -> None:
    """Measure the chances that `shoal changes` and `shoal history cycles` state. A minute."""
    series = 100 if quick else 10_000
    result: dict[str, Any] = {
        "made_by": "python -m benchmarks chances" + " --quick" * quick,
        "machine": facts(("shoal", "numpy")),
        "series": series,
        "rows": list(measured(series)),
        "cycles": list(measured_cycles(series // 10)),
    }
    write(out, "chances", result, markdown(result))
    click.echo(f"written to {out}/chances.json and {out}/chances.md")


def measured(series: int) -> Iterator[dict[str, Any]]:
    """Measure for each length and correlation the share of series with a chance below each level,
    still and shifted."""
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
                "found": {
                    str(by): float(np.mean(chances(values, bins, width, by) < LEVELS[1]))
                    for by in SHIFTS
                },
            }


def measured_cycles(series: int) -> Iterator[dict[str, Any]]:
    """Measure the same for the day in six-hour bins, without one and with one that is a share of
    the variance."""
    rng = np.random.default_rng(SEED)
    phases = DAY_S // PLACES_S
    swings = {f"{correlation:g}": correlation for correlation in CORRELATIONS} | {
        "a period of 25 h": None,
        "a day that wanders": None,
    }
    for days in PERIODS:
        at = np.arange(days * phases)
        for name, correlation in swings.items():
            if correlation is not None:
                values = alike(rng, len(at), series, correlation)
            elif name == "a day that wanders":  # a resonance: its phase is kept for some ten days
                values = resonance(rng, len(at), series, phases)
            else:
                noise = rng.normal(size=(len(at), series)) / 3
                values = np.sin(2 * np.pi * at * PLACES_S / (25 * 3600))[:, None] + noise
            chance = [cycle_chances(values, phases)]
            for share in CYCLES:
                day = (
                    np.sin(2 * np.pi * at / phases)[:, None]
                    * np.sqrt(2 * share / (1 - share))
                    * values.std()
                )
                chance.append(cycle_chances(values + day, phases))
            yield {
                "days": days,
                "without": name,
                "false": {str(level): float(np.mean(chance[0] < level)) for level in LEVELS[:2]},
                "found": {
                    str(share): float(np.mean(p < LEVELS[1]))
                    for share, p in zip(CYCLES, chance[1:], strict=True)
                },
            }


def cycle_chances(values: Floats, phases: int) -> Floats:
    """values (n, s) -> (s,) the chance of a cycle of each."""
    found = cycles_of(values, phases)
    if found is None:
        raise ValueError("too few periods")
    return found.chances


def resonance(
    rng: np.random.Generator, bins: int, series: int, period: int, radius: float = 0.97
) -> Floats:
    """(bins, series) of AR(2) around one frequency."""
    skipped = 500
    values = rng.normal(size=(bins + skipped, series))
    for at in range(2, len(values)):
        values[at] += (
            2 * radius * np.cos(2 * np.pi / period) * values[at - 1] - radius**2 * values[at - 2]
        )
    return values[skipped:]


def alike(rng: np.random.Generator, bins: int, series: int, correlation: float) -> Floats:
    """(bins, series) of deviation 1, of which neighbours have this correlation: AR(1)."""
    values = rng.normal(size=(bins, series))
    for at in range(1, bins):
        values[at] = correlation * values[at - 1] + np.sqrt(1 - correlation**2) * values[at]
    return values


def chances(values: Floats, bins: int, width: int, by: float) -> Floats:
    """values (2 bins, s) -> (s,) the chance of the second half, moved by `by`, against the
    first."""
    at = width * np.arange(2 * bins)
    ones = np.ones(bins)
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
    cycles = [
        [
            str(row["days"]),
            row["without"],
            *(f"{100 * share:.1f}" for share in row["false"].values()),
            *(f"{100 * share:.0f}" for share in row["found"].values()),
        ]
        for row in result["cycles"]
    ]
    moved = [f"moved by {by:g}: below {100 * LEVELS[1]:g} %" for by in SHIFTS]
    return "\n".join(
        [
            "# The chances that `shoal changes` and `shoal history cycles` state\n",
            f"Made by `{result['made_by']}`; do not edit.\n",
            table(["bins of each span", "correlation of neighbours", *levels, *moved], rows),
            (
                f"Percent of {result['series']} series whose chance is below each level, where"
                " nothing has changed and where the later span has moved by deviations of a bin's"
                " mean. All but the longest have a day of three deviations. On a page, chances are"
                " multiplied by the number of comparisons.\n"
            ),
            "## Those of `shoal history cycles`\n",
            table(
                [
                    "days",
                    "correlation of neighbours, or what sways",
                    *levels[:2],
                    *(f"a day of {100 * share:g} % of the variance: below 1 %" for share in CYCLES),
                ],
                cycles,
            ),
            f"Percent of {result['series'] // 10} series of six-hour bins.\n",
            one_line(result["machine"]) + "\n",
        ]
    )
