"""What `cluster_tree` costs in both forms of its kernels: sketching and rebuilding. Processor time
of one thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.forms import FORMS, seconds_by_form
from benchmarks.results import rounded, spread, table
from shoal.algorithms.cluster_tree import ClusterTreeClient, ClusterTreeServer
from shoal.algorithms.streaming import Contribution, State
from shoal.kernels.arrays import Floats
from shoal.kernels.forms import COMPILED

CELLS = 1000
GOAL = {"sketched_rows_per_s": 500_000, "rebuild_ms": 5.0}
"""goals of the compiled form, with `CELLS` cells"""
BLOBS = 10
SD = 0.02
UPDATE_ROWS = 500
UPDATES = 10
"""rows of an update, and updates of a turn"""
REBUILDS = 3
"""rebuilds of a turn, each of a server of its own"""
PART_ROWS = 100
"""rows of an update that the servers have absorbed"""
ROWS = 20_000


def measure(widths: tuple[int, ...], turns: int) -> list[dict[str, Any]]:
    """Measure for each number of features and form: rows sketched per second, and milliseconds of a
    rebuild with all cells there are and none merged; and of one in the course of a stream, when as
    many readings as there are between two rebuilds have come from several clients, each of them a
    point."""
    return [_measured(d, turns) for d in widths]


def _measured(d: int, turns: int) -> dict[str, Any]:
    generator = np.random.default_rng(d)
    centres = generator.uniform(size=(BLOBS, d))
    rows = centres[generator.integers(BLOBS, size=ROWS)] + SD * generator.standard_normal((ROWS, d))
    updates = np.split(rows, ROWS // UPDATE_ROWS)
    # Each of the last readings is a cell.
    full = _server(d, np.split(rows[:CELLS], 10)).state()
    later = _just_before_a_rebuild(d, np.split(rows, ROWS // PART_ROWS))

    def prepare(turn: int) -> dict[str, Callable[[], object]]:
        client = ClusterTreeClient(d)
        some = [updates[(UPDATES * turn + number) % len(updates)] for number in range(UPDATES)]
        return {
            "sketch": partial(_sketch, client, some),
            "rebuild": partial(_rebuild, [_restored(full) for _ in range(REBUILDS)]),
            "rebuild later": partial(_rebuild, [_restored(later) for _ in range(REBUILDS)]),
        }

    took = seconds_by_form(prepare, turns)
    rates = {
        form: [UPDATES * UPDATE_ROWS / seconds for seconds in took["sketch"][form]]
        for form in FORMS
    }
    return {
        "d": d,
        "cells": len(full["cell_mass"]),
        "cells_later": len(later["cell_mass"]),
        "sketched_rows_per_s": {form: spread(rates[form]) for form in FORMS},
        "rebuild_ms": _each_ms(took["rebuild"]),
        "later_rebuild_ms": _each_ms(took["rebuild later"]),
    }


def _server(d: int, parts: list[Floats]) -> ClusterTreeServer:
    """A server that has absorbed these rows."""
    server = ClusterTreeServer(d)
    for number, part in enumerate(parts):
        server.absorb(
            [
                Contribution(
                    "any", number, {"point": part, "count": np.ones(len(part), dtype=np.int64)}
                )
            ],
            b"",
        )
    return server


def _just_before_a_rebuild(d: int, parts: list[Floats]) -> State:
    """The state of a server that has absorbed most of these rows; the next ones would make it
    rebuild its tree."""
    waiting = ClusterTreeServer(d).options.rebuild_readings - PART_ROWS
    kept = len(parts) - waiting // PART_ROWS
    for end in range(kept, len(parts) + 1):
        state = _server(d, parts[:end]).state()
        if state["block_mass"].sum() == waiting:
            return state
    raise AssertionError(f"no state has {waiting} readings that came since a rebuild")


def _restored(state: State) -> ClusterTreeServer:
    server = ClusterTreeServer()
    server.restore(state)
    return server


def _each_ms(took: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    return {form: spread([1000.0 * seconds / REBUILDS for seconds in took[form]]) for form in FORMS}


def _rebuild(servers: list[ClusterTreeServer]) -> None:
    for server in servers:
        server.rebuild()


def _sketch(client: ClusterTreeClient, updates: list[Floats]) -> None:
    for rows in updates:
        client.learn(rows)
        client.contribute()


def cost_table(costs: list[dict[str, Any]]) -> str:
    """The costs of both forms as a Markdown table, and the goals."""

    def figures(cost: dict[str, Any], name: str) -> list[str]:
        return [rounded(cost[name][form]["median"]) for form in FORMS]

    lines = [
        [
            str(cost["d"]),
            *figures(cost, "sketched_rows_per_s"),
            *figures(cost, "rebuild_ms"),
            *figures(cost, "later_rebuild_ms"),
            f"{cost['cells']}, {cost['cells_later']}",
        ]
        for cost in costs
    ]
    head = [
        "d",
        "sketched rows/s",
        "compiled",
        "rebuild, ms",
        "compiled",
        "later, ms",
        "compiled",
        "cells, later",
    ]
    reached = [
        f"d = {cost['d']}:"
        f" {_word(cost['sketched_rows_per_s'][COMPILED]['median'] >= GOAL['sketched_rows_per_s'])},"
        f" {_word(cost['rebuild_ms'][COMPILED]['median'] <= GOAL['rebuild_ms'])}"
        for cost in costs
    ]
    return (
        table(head, lines)
        + f"\nNumPy form, then the compiled one, in turns. Later: after {rounded(ROWS)} readings,"
        " when cells have been merged, just before a rebuild, with the readings of several"
        " clients since the last one. Goals of the compiled form:"
        f" {rounded(GOAL['sketched_rows_per_s'])} rows/s, and a rebuild within"
        f" {GOAL['rebuild_ms']:g} ms with {rounded(CELLS)} cells ({'; '.join(reached)}).\n"
    )


def _word(holds: bool) -> str:
    return "reached" if holds else "missed"
