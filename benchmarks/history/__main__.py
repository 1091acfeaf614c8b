"""Disk, time and memory that the history and the page add to a server with 60 clusters and 200
clients."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Final

import click
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.history.memory import measured_memory
from benchmarks.history.plant import CLIENTS, CLUSTERS, NODES
from benchmarks.history.steps import (
    SPANS_H,
    UPDATES_OF_SNAPSHOT,
    WORK,
    measured_spans,
    measured_steps,
)
from benchmarks.history.year import measured_year
from benchmarks.machine import facts, one_line
from benchmarks.process import check_proc
from benchmarks.results import out_option, quick_option, rounded, table, write
from shoal.protocol.history import BINS_KEPT, COARSE_S

GOALS: Final = {"file_mib": 20.0, "added_mib": 10.0, "ms": 1.0, "ms_of_update": 1.0}
"""most that the file has after a year, that memory grows, that the history takes in one step, and
of one update"""


@click.command(context_settings={"max_content_width": 100})
@quick_option("Few bins and steps, in seconds")
@out_option("history")
def main(quick: bool, out: Path) -> None:
    """Measure what history and page cost a server. Linux; a full run takes about five minutes."""
    check_proc()
    started = time.monotonic()
    machine = facts(("shoal", "numpy", "starlette"))
    steps = 3 if quick else 50
    with tempfile.TemporaryDirectory() as scratch:
        found = []
        for number in (20, 200):
            folder = Path(scratch) / f"steps-{number}"
            folder.mkdir()
            # As `shoal server` does.
            with threadpool_limits(limits=1):
                found.append(measured_steps(folder, number, steps))
        year = measured_year(Path(scratch), 4 if quick else BINS_KEPT[COARSE_S])
    result: dict[str, Any] = {
        "made_by": "python -m benchmarks history" + " --quick" * quick,
        "took_s": 0,
        "machine": machine,
        "model": {"clusters": CLUSTERS, "clients": CLIENTS, "nodes": NODES},
        "year": year,
        "steps": found,
        "spans": {
            str(updates): measured_spans(20 if quick else 400, updates)
            for updates in UPDATES_OF_SNAPSHOT
        },
        "memory": measured_memory(1 if quick else 5),
        "goal": GOALS,
    }
    result["reached"] = reached(result)
    result["took_s"] = round(time.monotonic() - started)
    write(out, "history", result, markdown(result))
    click.echo(f"written to {out}/history.json and {out}/history.md")


def reached(result: dict[str, Any]) -> dict[str, bool | None]:
    """goal -> whether it is reached; None for the year of a run that was too short for one."""
    whole = result["year"]["bins"] >= BINS_KEPT[COARSE_S]
    live = result["steps"][0]["ms"]
    return {
        "file_mib": result["year"]["file_mib"] <= GOALS["file_mib"] if whole else None,
        "added_mib": result["memory"]["added_mib"] <= GOALS["added_mib"],
        "ms_of_update": (
            max(ms for spans in result["spans"].values() for ms in spans.values())
            <= GOALS["ms_of_update"]
        ),
        **{what: live[what]["median"] <= GOALS["ms"] for what in WORK},
    }


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    year = result["year"]
    memory = result["memory"]
    model = result["model"]
    lines = [
        [what, *(_median_and_most(step["ms"][what]) for step in result["steps"])] for what in WORK
    ]
    numbers = [f"{step['updates_per_step']} updates" for step in result["steps"]]
    head = ["milliseconds in a step, median (most)", *numbers]
    words = {True: "reached", False: "missed", None: "not measured"}
    goals = ", ".join(
        f"{what} {words[is_reached]}" for what, is_reached in result["reached"].items()
    )
    return "\n".join(
        [
            (
                f"# What history and page cost the server\n\nMade by `{result['made_by']}`; do not"
                " edit.\n"
            ),
            (
                f"{model['clusters']} clusters of {model['nodes']} nodes, {model['clients']}"
                " clients, all of which send readings of all clusters.\n"
            ),
            table(
                ["", "MiB"],
                [
                    [
                        f"file of the server after {year['days']:.0f} days",
                        rounded(year["file_mib"]),
                    ],
                    ["of it the bins of 5 minutes", rounded(year["fine_bins_mib"])],
                    ["of it places", rounded(year["places_mib"])],
                    ["the embedded log with the topic of the history", rounded(year["log_mib"])],
                    ["memory of a process with the model alone", rounded(memory["alone_mib"])],
                    ["added by history and page", rounded(memory["added_mib"])],
                ],
            ),
            f"A bin of 30 minutes takes {year['coarse_bytes_per_bin']:.0f} bytes.\n",
            (
                "Memory is the median of five runs, with a history of a month, all of which the"
                " browser reads.\n"
            ),
            table(head, lines),
            (
                "20 updates are those of one snapshot with default settings, 200 those of a step"
                f" that catches up. Each has {model['clusters']} points, some of which are looked"
                " at (docs/reference/history.md).\n"
            ),
            table(
                [
                    "milliseconds of processor time an update, by the hours that its readings span",
                    *map(str, SPANS_H),
                ],
                [
                    [
                        f"one slow sensor, updates a snapshot: {together}",
                        *map(rounded, spans.values()),
                    ]
                    for together, spans in result["spans"].items()
                ],
            ),
            (
                f"Goals: the file {GOALS['file_mib']:g} MiB, memory {GOALS['added_mib']:g} MiB,"
                f" each part of a step {GOALS['ms']:g} ms at 20 updates, an update"
                f" {GOALS['ms_of_update']:g} ms: {goals}.\n"
            ),
            one_line(result["machine"]) + "\n",
        ]
    )


def _median_and_most(figures: dict[str, float]) -> str:
    return f"{rounded(figures['median'])} ({rounded(figures['high'])})"
