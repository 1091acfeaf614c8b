"""What density_tree costs a client: time and memory per window, bytes per reading. Processor time
of one thread."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.forms import FORMS, seconds_by_form, use
from benchmarks.privacy.counting import WINDOW, learn
from benchmarks.privacy.families import Stream
from benchmarks.results import spread
from benchmarks.steadiness.streams import blobs
from shoal.algorithms.density_tree import DENSITY_TREE
from shoal.algorithms.density_tree.server import DensityTreeServer
from shoal.algorithms.streaming import Contribution
from shoal.kernels.forms import COMPILED, NUMPY
from shoal.privacy.count_noise import CountMechanism, count_noise
from shoal.privacy.keyed import KEY_BYTES, SOURCE_BYTES
from shoal.protocol.codec import pack

GOAL = {"window_ms": 1.0, "compiled_window_ms": 0.2, "bytes_per_reading": 29.0}
"""a window of 400 readings with 16 features and 40 leaves, in both forms; an update as it is
published"""
EPSILON = 4.0
CLIENTS = 10
"""few, so that each has full windows"""
WINDOWS_OF_TURN = 50
LAST_UPDATES = 20
"""full windows of a stream, by when the tree is complete: their mean is what a reading costs for
good"""


def measure(cases: tuple[tuple[int, int], ...], turns: int) -> list[dict[str, Any]]:
    """Learn a tree from blobs for each (features, clusters), and measure what a window under it
    costs."""
    return [_case(d, clusters, turns) for d, clusters in cases]


def _case(d: int, clusters: int, turns: int) -> dict[str, Any]:
    generator = np.random.default_rng(d)
    rows, truth = blobs(generator, n=2000 * max(clusters, 10), k=clusters, d=d)
    stream = Stream(
        "cost", "cost", np.clip(rows, 0.0, 1.0), truth, generator.integers(CLIENTS, size=len(rows))
    )
    learnt = learn(DENSITY_TREE, stream, EPSILON, seed=0)
    noise = count_noise(EPSILON)
    options = {"noise_variance": noise.variance, "window_readings": WINDOW}
    counter = DENSITY_TREE.counter(options, d)
    counter.adopt(learnt.snapshot)
    mechanism = CountMechanism(noise, bytes(KEY_BYTES), "client", bytes(SOURCE_BYTES), "clusters")
    window = stream.rows[:WINDOW]
    valid = np.ones(WINDOW, dtype=np.bool_)

    def answer(number: int) -> None:
        counted = counter.count(window, valid, b"client", number)
        counted.update(
            mechanism.release(counted.counts, (number, 0, WINDOW - 1), counter.plan_digest)
        )

    server = DensityTreeServer(d, **options)
    server.absorb(
        [Contribution("all", number, update) for number, update in enumerate(learnt.updates)], b""
    )
    state = server.state()

    def prepare(turn: int) -> dict[str, Callable[[], object]]:
        def windows() -> None:
            for number in range(turn * WINDOWS_OF_TURN, (turn + 1) * WINDOWS_OF_TURN):
                answer(number)

        grown = DensityTreeServer(d, **options)
        grown.restore(state)
        return {"windows": windows, "grow": grown.grow}

    took = seconds_by_form(prepare, turns)
    window_ms, grow_ms = (
        {form: spread([1000.0 * seconds / parts for seconds in found[form]]) for form in FORMS}
        for found, parts in ((took["windows"], WINDOWS_OF_TURN), (took["grow"], 1))
    )
    use(NUMPY)
    tracemalloc.start()
    answer(turns)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    full = [update for update in learnt.updates if int(update["places"][0]) == WINDOW]
    last = [pack(dict(update)) for update in full[-LAST_UPDATES:]]
    readings = WINDOW * len(last)
    return {
        "d": d,
        "leaves": len(learnt.snapshot["leaf_id"]),
        "window_ms": window_ms[NUMPY],
        "compiled_window_ms": window_ms[COMPILED],
        "grow_ms": grow_ms[NUMPY],
        "compiled_grow_ms": grow_ms[COMPILED],
        "window_kib": round(most / 1024, 1),
        "bytes_per_reading": round(sum(map(len, last)) / readings, 2),
        "compressed_bytes_per_reading": round(
            sum(len(zlib.compress(message)) for message in last) / readings, 2
        ),
        "snapshot_bytes": len(pack(dict(learnt.snapshot))),
    }
