"""How much longer a step of the server takes because of the history: by what is done for it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.history.plant import CONTRACT, FEATURES, MODEL, Plant
from benchmarks.results import spread
from shoal.server_node.history.attribution import WaitingUpdate, WaitingUpdates
from shoal.server_node.history.recorder import Recorder
from shoal.server_node.history.sources import NOTHING_PUBLISHED
from shoal.server_node.history.store import HistoryRecord, HistoryStore
from shoal.server_node.models.publisher import ModelPublisher

WORK: Mapping[str, tuple[tuple[type, str], ...]] = {
    "which clusters readings fell to": (
        (ModelPublisher, "record"),
        (ModelPublisher, "_count_waiting"),
    ),
    "bins, names and their records": (
        *((Recorder, name) for name in ("name", "take_changed")),
        *((HistoryStore, name) for name in ("expired", "forgotten")),
        (HistoryRecord, "outbox_record"),
    ),
    "the file": ((HistoryStore, "apply"),),
    "the checkpoint": ((Recorder, "state"),),
}
"""what is done -> the functions that do it"""


class Stopwatch:
    """Adds up the time within functions, by what they do; one that another calls counts with
    that."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        self._running = False

    def around(self, function: Callable[..., Any], what: str) -> Callable[..., Any]:
        """The same function, timed."""

        def timed(*given: Any, **named: Any) -> Any:
            if self._running:
                return function(*given, **named)
            self._running = True
            began = time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                self.spent[what] += time.perf_counter() - began
                self._running = False

        return timed


@contextmanager
def timed_history() -> Iterator[Stopwatch]:
    """Time whatever is done for the history while it is open."""
    stopwatch = Stopwatch()
    parts = [(place, name, what) for what, functions in WORK.items() for place, name in functions]
    kept = [(place, name, getattr(place, name)) for place, name, _ in parts]
    for place, name, what in parts:
        setattr(place, name, stopwatch.around(getattr(place, name), what))
    try:
        yield stopwatch
    finally:
        for place, name, function in kept:
            setattr(place, name, function)


def measured_steps(folder: Path, updates_per_step: int, steps: int) -> dict[str, Any]:
    """Milliseconds of each part in steps of `updates_per_step` updates, after each client has sent
    some."""
    plant = Plant(folder)
    found = []
    plant.step(plant.updates(2 * updates_per_step))
    with timed_history() as stopwatch:
        for _ in range(steps):
            updates = plant.updates(updates_per_step)
            stopwatch.spent.clear()
            plant.step(updates)
            found.append({what: 1000 * stopwatch.spent[what] for what in WORK})
    return {
        "updates_per_step": updates_per_step,
        "steps": steps,
        "clusters": len(plant.status.lineage.known),
        "ms": {what: spread([step[what] for step in found]) for what in WORK},
    }


SPANS_H: Final = (0, 1, 5, 40, 400)
UPDATES_OF_SNAPSHOT: Final = (1, 5)
"""the most that there can be to do, and as `shoal init` sets it"""


def measured_spans(updates: int, together: int) -> dict[str, float]:
    """Hours that an update's readings span -> milliseconds of processor time for each update of one
    slow sensor.

    `together`: updates of a snapshot.

    No two updates share the bins of others, which is the most that there can be to do.
    """
    rng = np.random.default_rng(0)
    spent = {}
    for hours in SPANS_H:
        recorder = Recorder(CONTRACT, MODEL, NOTHING_PUBLISHED)
        waiting = WaitingUpdates()
        took = 0.0
        for first in range(0, updates, together):
            for number in range(first, first + together):
                span = 3600.0 * hours
                points = rng.random((40, FEATURES))
                at = 1.7e9 + number * max(span, 60.0)
                waiting.add(WaitingUpdate(at, "attic", 400, number + 1, points, np.ones(40), span))
            began = time.process_time()
            found = waiting.take(
                lambda points: (6 * points[:, 0]).astype(np.int64), {n: n for n in range(6)}
            )
            assert found is not None
            recorder.count(found)
            for message in recorder.take_changed(first + together):
                message.encode()
            took += time.process_time() - began
        spent[str(hours)] = 1000 * took / updates
    return spent
