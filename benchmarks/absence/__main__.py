"""Whether density_tree keeps the numbers of clusters that go away and come back, at any pace.

Streams of an office, of made-up rooms and of blobs, whose states go and come back, are learnt from
windows that are counted under the plan of 0 to 20 windows ago. Deterministic: one process without
a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, Final, NamedTuple

import click
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.absence.federation import run
from benchmarks.absence.judge import Judged, judge
from benchmarks.absence.streams import Stream, bent, day, daynew, merge, new, office
from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, quick_option, table, write

EPSILON: Final = 4.0
CHOOSING: Final = 0
"""first of the seeds on which constants were chosen"""
REPORTING: Final = 5000
"""first of the seeds of the published figures"""
HEAD: Final = (
    "states lost",
    "false merges",
    "specks",
    "false events per 1 000",
    "ARI",
    "new found",
    "after readings",
    "merges found",
    "counts taken",
)


class Kind(NamedTuple):
    """A kind of stream, with what it is measured with."""

    make: Callable[[int], Stream]
    delays: tuple[int, ...]
    """in windows"""
    seeds: int


KINDS: Final = {
    "office": Kind(office, (0, 1, 5, 20), 6),
    "day": Kind(day, (0, 5), 4),
    "daynew": Kind(daynew, (0, 5), 4),
    "bent": Kind(bent, (0, 5), 2),
    "new": Kind(new, (0, 5), 3),
    "merge": Kind(merge, (0,), 3),
}
QUICK: Final = {"office": Kind(office, (0, 20), 1)}


def measure(kinds: dict[str, Kind], first_seed: int) -> Iterator[tuple[str, int, int, Judged]]:
    """Kind, delay and seed of each run, and what it got right."""
    for name, kind in kinds.items():
        for seed in range(first_seed, first_seed + kind.seeds):
            stream = kind.make(seed)
            for delay in kind.delays:
                yield name, delay, seed, judge(stream, run(stream, EPSILON, delay, seed))


def summed(runs: Sequence[Judged]) -> dict[str, Any]:
    """The figures of several runs."""
    found_after = [readings for judged in runs for readings in judged.found_after]
    readings = sum(judged.readings for judged in runs)
    return {
        "runs": len(runs),
        "away": sum(judged.away for judged in runs),
        "lost": sum(judged.lost for judged in runs),
        "false_merges": sum(judged.false_merges for judged in runs),
        "specks": sum(judged.specks for judged in runs),
        "false_events_per_1000": 1000 * sum(judged.false_events for judged in runs) / readings,
        "ari": mean(judged.ari for judged in runs),
        "new": sum(judged.new for judged in runs),
        "new_found": len(found_after),
        "found_after": median(found_after) if found_after else None,
        "merges": sum(judged.merges for judged in runs),
        "merges_found": sum(judged.merges_found for judged in runs),
        "taken": mean(judged.taken for judged in runs),
    }


def line(name: str, figures: dict[str, Any]) -> list[str]:
    """One line of the table."""
    after = figures["found_after"]
    return [
        name,
        f"{figures['lost']} of {figures['away']}",
        str(figures["false_merges"]),
        str(figures["specks"]),
        f"{figures['false_events_per_1000']:.3f}",
        f"{figures['ari']:.3f}",
        f"{figures['new_found']} of {figures['new']}",
        "" if after is None else f"{after:.0f}",
        f"{figures['merges_found']} of {figures['merges']}",
        f"{figures['taken']:.0%}",
    ]


def markdown(result: dict[str, Any]) -> str:
    """The page."""
    lines = [line(f"{cell['stream']}, delay {cell['delay']}", cell) for cell in result["cells"]]
    lines.append(line("all", result["all"]))
    same = []
    for name, (equal, seeds) in result["same"].items():
        same.append(f"{equal} of {seeds} seeds of {name}")
    return (
        f"# States that go and come back\n\nMade by `{result['made_by']}`: density_tree, ε"
        f" {EPSILON:g}, seeds from {result['first_seed']} on. A delay is of windows.\n\n"
        f"{table(['stream', *HEAD], lines)}\n"
        f"The same result at all delays: {', '.join(same)}.\n\n{one_line(result['machine'])}\n"
    )


@click.command(context_settings={"max_content_width": 100})
@quick_option("The office once at two delays")
@click.option(
    "--choosing",
    is_flag=True,
    help="The seeds on which constants were chosen, and not those reported.",
)
@out_option("absence")
def main(quick: bool, choosing: bool, out: Path) -> None:
    """Measure whether states that go and come back keep their numbers."""
    kinds = QUICK if quick else KINDS
    first_seed = CHOOSING if choosing else REPORTING
    machine = facts(("shoal", "numpy", "scikit-learn"))
    runs: dict[tuple[str, int], list[Judged]] = {}
    results: dict[tuple[str, int], set[Any]] = {}
    with threadpool_limits(limits=1):
        for name, delay, seed, judged in measure(kinds, first_seed):
            runs.setdefault((name, delay), []).append(judged)
            results.setdefault((name, seed), set()).add(judged.result)
            click.echo(f"{name}, delay {delay}, seed {seed}: ARI {judged.ari:.3f}")
    cells = []
    for (name, delay), own in runs.items():
        cells.append({"stream": name, "delay": delay, **summed(own)})
    same = {}
    for name, kind in kinds.items():
        equal = [len(found) == 1 for (stream, _), found in results.items() if stream == name]
        if len(kind.delays) > 1:
            same[name] = (sum(equal), len(equal))
    result = {
        "made_by": "python -m benchmarks absence" + " --quick" * quick + " --choosing" * choosing,
        "machine": machine,
        "first_seed": first_seed,
        "cells": cells,
        "all": summed([judged for own in runs.values() for judged in own]),
        "same": same,
    }
    write(out, "absence", result, markdown(result))
    click.echo(f"written to {out}/absence.json and {out}/absence.md")


if __name__ == "__main__":
    main()
