"""What `cluster_tree` costs: sketching, absorbing, rebuilding. Processor time of one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.results import spread
from shoal.algorithms.cluster_tree import ClusterTreeClient, ClusterTreeServer
from shoal.algorithms.streaming import Contribution, State

GOAL = {"sketched_rows_per_s": 200_000, "rebuild_ms": 15.0, "cells": 1000}
BLOBS, SD = 10, 0.02


def measure(widths: tuple[int, ...], turns: int) -> list[dict[str, Any]]:
    """For each number of features: rows sketched per second, and milliseconds of a rebuild with all cells there are."""
    measured = []
    for d in widths:
        generator = np.random.default_rng(d)
        centres = generator.uniform(size=(BLOBS, d))
        rows = centres[generator.integers(BLOBS, size=20_000)] + SD * generator.standard_normal((20_000, d))
        client = ClusterTreeClient(d)
        sketched = [_seconds(partial(_update, client, part)) for part in np.split(rows, 40)[: 4 * turns]]
        # No rebuild within `absorb`, so that one can be timed; each of the last readings is a cell.
        server = ClusterTreeServer(d, rebuild_readings=10**9)
        for number, part in enumerate(np.split(rows[:1000], 10)):
            arrays = {"point": part, "count": np.ones(len(part), dtype=np.int64)}
            server.absorb([Contribution("any", number, arrays)], b"")
        rebuilt = [_rebuilt_ms(server.state()) for _ in range(turns)]
        measured.append(
            {
                "d": d,
                "sketched_rows_per_s": spread([500 / seconds for seconds in sketched]),
                "rebuild_ms": spread(rebuilt),
                "cells": len(server.snapshot()["mass"]),
            }
        )
    return measured


def _update(client: ClusterTreeClient, rows: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    client.learn(rows)
    client.contribute()


def _rebuilt_ms(state: State) -> float:
    """A rebuild of a server in this state: a second one of the same server would have no new readings."""
    server = ClusterTreeServer(rebuild_readings=10**9)
    server.restore(state)
    return _seconds(server.rebuild) * 1000.0


def _seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return max(time.process_time() - started, 1e-9)
