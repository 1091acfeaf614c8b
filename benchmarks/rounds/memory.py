"""Memory of an answer besides its rows, in a process of its own."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.process import MIB
from benchmarks.rounds.answers import OPTIONS
from shoal.algorithms.registry import rounds_algorithm
from shoal.kernels.forms import PROCESS
from shoal.simulation.rounds import bounding_box

D = 2
K = 3
SEED = 3
PEAK = Path("/proc/self/clear_refs")
"""the file that resets the kernel's peak"""
spawn = multiprocessing.get_context("spawn")


def measured_memory(shapes: Mapping[str, tuple[int, ...]]) -> list[dict[str, Any]]:
    """algorithm -> numbers of rows; for each the peak memory beyond the rows, and the time. Empty
    if not on Linux."""
    found: list[dict[str, Any]] = []
    if not PEAK.exists():
        return found
    for name, sizes in shapes.items():
        for rows in sizes:
            # One process each: memory that an earlier answer has left in the heap would hide that
            # of this one.
            with spawn.Pool(1) as pool:
                beyond, seconds = pool.apply(_answer, (name, rows))
            found.append(
                {
                    "algorithm": name,
                    "rows": rows,
                    "rows_mib": round(rows * D * 8 / MIB, 1),
                    "beyond_mib": round(beyond / MIB, 2),
                    "cpu_s": round(seconds, 2),
                }
            )
    return found


def _answer(name: str, n: int) -> tuple[int, float]:
    """Peak resident bytes during the answer beyond those before it, and its processor seconds."""
    PROCESS.prefer_numpy()
    generator = np.random.default_rng(SEED)
    centres = generator.normal(size=(K, D)) * 3
    rows = generator.normal(size=(n, D))
    rows += centres[np.arange(n) % K]
    algorithm = rounds_algorithm(name)
    asked = {"clusters": K} if algorithm.takes("clusters") else {}
    params = algorithm.start(
        {**asked, **OPTIONS.get(name, {})}, D, bounding_box([rows[:1000]], SEED)
    )
    # Two rounds with a few rows, so that what is loaded on first use is not counted.
    for _ in range(2):
        params = algorithm.combine(params, [algorithm.answer(params, rows[:1000])])
    PEAK.write_text("5", encoding="ascii")
    before = _status("VmRSS")
    begun = time.process_time()
    algorithm.answer(params, rows)
    return max(0, _status("VmHWM") - before), time.process_time() - begun


def _status(field: str) -> int:
    lines = (
        line.partition(":")
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    )
    return next(int(value.split()[0]) * 1024 for name, _, value in lines if name == field)
