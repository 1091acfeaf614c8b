"""Judges how steady a learner is on a stream: agreement, count, changes, switches, delays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from sklearn.metrics import adjusted_rand_score

from benchmarks.steadiness.streams import Event, Stream
from shoal.kernels.arrays import Floats, Ints

STEP_ROWS = 500
"""rows between two checks"""
WARM_ROWS = 2000
"""rows before the first check that counts"""
SAMPLE_ROWS = 1500
"""rows whose labels are compared with the truth at a check, evenly chosen"""
LATELY_ROWS = 1000
KNOWN_ROWS = 30
"""smallest number of rows of a true cluster from which its label is determined"""
UNJUDGED = -1


class Learner(Protocol):
    """What is judged."""

    def learn(self, rows: Floats) -> None: ...

    def predict(self, rows: Floats) -> Ints:
        """rows (n, d) -> (n,) label of each row."""
        ...

    def count(self) -> int:
        """The number of clusters it shows."""
        ...


@dataclass
class Verdict:
    """What was measured on one stream, at checks after the warm-up."""

    rows: int
    ari: float
    """mean over checks"""
    ari_end: float
    count_end: int
    count_error: float
    """mean over checks of how far the count is outside [present lately, ever seen], as a share of
    those present"""
    changes: float
    """changes of the count per 1 000 rows"""
    still: float
    """share of spans of 1 000 rows in which the count did not change"""
    switches: int
    """how often the label of a true cluster became another one"""
    switches_possible: int
    """labels of true clusters that were compared with the one at an earlier check"""
    delays: list[int | None]
    """rows from each event to the first check that shows it; None: never"""
    delays_own: list[int | None]
    """number of these rows that are of the cluster that the event is about"""
    delays_modes: list[int | None]
    """rows from the moment when the density has another number of modes to the first check that
    shows the event"""
    counts: list[int]
    """the count at every check, also during the warm-up"""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(learner: Learner, stream: Stream, step: int = STEP_ROWS) -> Verdict:
    """The verdict on a learner that learns the stream and is checked every `step` rows."""
    checks = _Checks(learner, stream)
    for end in range(step, len(stream.rows) + 1, step):
        learner.learn(stream.rows[end - step : end])
        checks.check(end)
    return checks.verdict(step)


class _Checks:
    """What has been found at the checks so far."""

    def __init__(self, learner: Learner, stream: Stream) -> None:
        self._learner = learner
        self._stream = stream
        self._counts: list[int] = []
        self._agreement: list[float] = []
        self._errors: list[float] = []
        self._label_of: dict[int, int] = {}
        """true cluster -> the label that most of its rows had last"""
        self._switches = self._switches_possible = 0
        self._delays: dict[Event, int | None] = dict.fromkeys(stream.events)

    def check(self, end: int) -> None:
        """Compare the learner with the truth after `end` rows of the stream."""
        learner = self._learner
        stream = self._stream
        self._counts.append(learner.count())
        chosen = _judged(stream, end)
        truth = stream.truth[chosen]
        found = learner.predict(stream.rows[chosen])
        for event, delay in self._delays.items():
            if delay is None and end > event.at and _shows(event, stream, learner, end):
                self._delays[event] = end - event.at
        if end < WARM_ROWS:
            return
        self._agreement.append(float(adjusted_rand_score(truth, found)))
        self._errors.append(_count_error(self._counts[-1], stream, end))
        for cluster in np.unique(truth).tolist():
            label = _majority(found[truth == cluster])
            if label is not None:
                self._switches_possible += cluster in self._label_of
                self._switches += self._label_of.get(cluster, label) != label
                self._label_of[cluster] = label

    def verdict(self, step: int) -> Verdict:
        """The verdict after the last check, with `step` rows between two checks."""
        after = np.array(self._counts[max(0, WARM_ROWS // step - 1) :])
        moved = np.flatnonzero(np.diff(after))
        per_span = max(1, 1000 // step)
        spans = max(1, -(-(len(after) - 1) // per_span))
        own = [
            None if n is None else _rows_of(event, self._stream, n)
            for event, n in self._delays.items()
        ]
        since_modes = [
            None
            if n is None
            else n + event.at - (event.at if event.modes_at is None else event.modes_at)
            for event, n in self._delays.items()
        ]
        return Verdict(
            rows=len(self._stream.rows),
            ari=float(np.mean(self._agreement)),
            ari_end=self._agreement[-1],
            count_end=self._counts[-1],
            count_error=float(np.mean(self._errors)),
            changes=len(moved) * 1000.0 / max(1, (len(after) - 1) * step),
            still=1.0 - len(np.unique(moved // per_span)) / spans,
            switches=self._switches,
            switches_possible=self._switches_possible,
            delays=list(self._delays.values()),
            delays_own=own,
            delays_modes=since_modes,
            counts=self._counts,
        )


def _judged(stream: Stream, end: int) -> Ints:
    """Positions of the rows that are judged after `end` rows."""
    first = 0 if stream.window is None else max(0, end - stream.window)
    known = first + np.flatnonzero(stream.truth[first:end] != UNJUDGED)
    return known[np.linspace(0, len(known) - 1, min(len(known), SAMPLE_ROWS)).astype(np.int64)]


def _majority(labels: Ints) -> int | None:
    if len(labels) < KNOWN_ROWS:
        return None
    values, n = np.unique(labels, return_counts=True)
    return int(values[n.argmax()]) if 2 * n.max() > len(labels) else None


def _count_error(count: int, stream: Stream, end: int) -> float:
    """A learner that forgets shows the recent clusters, one that does not all clusters so far: both
    are right."""
    lately = stream.truth[max(0, end - LATELY_ROWS) : end]
    present = len(np.unique(lately[lately != UNJUDGED]))
    seen = (
        len(np.unique(stream.truth[_judged(stream, end)])) if stream.window else _seen(stream, end)
    )
    low = min(present, seen)
    high = max(present, seen)
    return max(low - count, count - high, 0) / max(1, present)


def _seen(stream: Stream, end: int) -> int:
    seen = stream.truth[:end]
    return len(np.unique(seen[seen != UNJUDGED]))


def _shows(event: Event, stream: Stream, learner: Learner, end: int) -> bool:
    """Whether the rows since the event have the right label, and the other rows another one."""
    since = slice(max(event.at, end - 2 * LATELY_ROWS), end)
    rows = stream.rows[since]
    truth = stream.truth[since]
    found = learner.predict(rows)
    if event.kind == "merge":
        return len(np.unique(found[truth == event.other])) == 1
    own = found[truth == event.label]
    if not len(own):
        return False
    values, n = np.unique(own, return_counts=True)
    before = stream.truth[: event.at]
    others = stream.rows[: event.at][before != event.label]
    if event.kind == "split" or event.at == 0:
        others = rows[truth != event.label]
    name = values[n.argmax()]
    alone = np.mean(learner.predict(others[-LATELY_ROWS:]) == name) < 0.02
    return bool(alone and name != UNJUDGED and n.max() > 0.8 * len(own))


def _rows_of(event: Event, stream: Stream, delay: int) -> int:
    return int((stream.truth[event.at : event.at + delay] == event.label).sum())


Make = Callable[[Stream], Learner]
