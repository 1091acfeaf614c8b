"""Distances of readings to their clusters, from which their novelty is computed.

A reading that is not novel is known at once, and so is a novel one between two that are not. Novel
readings in a row are held back until the day after the next (UTC) begins: what has lasted for hours
only is not usual, and must not make itself so. A small cluster would take its own outliers for
normal after a few of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from shoal.client_nodes.labelling.novelty import (
    BINS,
    BLOCK,
    KNOWN_MAX,
    distance_bins,
    halve,
    rank,
)
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.kernels.constants import COUNT_MAX
from shoal.saved_state import IntArray, SavedState, Whole, require, state_type

HELD_DAYS: Final = 2
"""days, with the one on which they came, for which novel readings in a row are held back"""

NO_BIN: Final = -1

# A server may name new identities for ever; what a client keeps of them must not grow with that.
CLUSTERS_MAX = 256


class Ranked(NamedTuple):
    """What `Spread.judge` returns."""

    novelty: Floats
    """(n,) 0 to 1, NaN if unknown"""
    held: Bools
    """(n,) which of them are novel, and known of their cluster later only"""


@state_type
class NovelRunState(SavedState):
    """The newest readings of a cluster, which are novel."""

    identity: int
    bin: Annotated[int, Whole(least=NO_BIN)]

    def check(self) -> None:
        require(self.bin < BINS, "a novel reading is in no bin")


@state_type
class HeldState(SavedState):
    """Novel readings of one day and cluster that are held back."""

    day: Annotated[int, Whole(least=-COUNT_MAX)]
    identity: int
    counts: Annotated[Ints, IntArray(BINS)]


@state_type
class SpreadState(SavedState):
    """The counts above 0, which are few, and what is held back."""

    held: list[HeldState]
    runs: list[NovelRunState]
    identities: list[int]
    row: Annotated[Ints, IntArray("cells", dtype="int32")]
    """position in `identities`"""
    bin: Annotated[Ints, IntArray("cells", dtype="int32")]
    count: Annotated[Ints, IntArray("cells", least=1, dtype="int32")]

    def check(self) -> None:
        require(len(set(self.identities)) == len(self.identities), "two clusters are the same")
        require(bool((self.row < len(self.identities)).all()), "a count is of no cluster")
        require(bool((self.bin < BINS).all()), "a count is in no bin")


class Spread:
    """Distances of readings from their clusters: `CLUSTERS_MAX` histograms, those used last.

    There is one for each lasting identity.
    """

    def __init__(self) -> None:
        self._counts: dict[int, Ints] = {}
        """identity -> (BINS,); the one used last is the last"""
        self._held: dict[tuple[int, int], Ints] = {}
        """(day, identity) -> (BINS,) novel readings in a row, which are held back"""
        self._runs: dict[int, int] = {}
        """identity, where its newest readings are novel -> bin of the only one of them, which waits
        for what follows; `NO_BIN` where it does not become known, or is held back already"""

    def judge(
        self,
        reference: Ints,
        distances: Floats,
        counted: Bools,
        quantile: float = 1.0,
        day: int | None = None,
    ) -> Ranked:
        """reference (n,) identities, -1 for none; distances (n,) -> (n,) novelty, and what is held.

        Those of `counted` (n,) belong to what is known of their cluster from then on; with `day`,
        of which all of them are, those of a novelty of `quantile` or more may do so later.
        """
        novelty = np.full(len(reference), np.nan)
        held = np.zeros(len(reference), dtype=np.bool_)
        for identity in np.unique(reference[reference >= 0]).tolist():
            own = np.flatnonzero(reference == identity)
            # Taken out and put back, so that the identity used last is the last of the dict.
            counts = self._counts.pop(identity, None)
            known = np.zeros(BINS, dtype=np.int64) if counts is None else counts
            bins = distance_bins(distances[own])
            if day is None:
                novelty[own], after = rank(bins, known, counted[own])
            else:
                novelty[own], after = self._hold(identity, bins, known, counted[own], quantile, day)
                held[own] = novelty[own] >= quantile
            # A histogram without a reading would only push out one that has some.
            if counts is not None or counted[own].any():
                self._counts[identity] = after
        while len(self._counts) > CLUSTERS_MAX:
            oldest = next(iter(self._counts))
            del self._counts[oldest]
            self._runs.pop(oldest, None)
        return Ranked(novelty, held)

    def move(self, identity: int, moved: Callable[[Ints], Ints]) -> None:
        """Move what is known of a cluster: `moved` gives counts (BINS,) of distances before those
        of distances now."""
        counts = self._counts.get(identity)
        if counts is not None:
            self._counts[identity] = moved(counts)
        for key, held in self._held.items():
            if key[1] == identity:
                self._held[key] = moved(held)
        alone = self._runs.get(identity, NO_BIN)
        if alone != NO_BIN:
            of_run = np.zeros(BINS, dtype=np.int64)
            of_run[alone] = 1
            self._runs[identity] = int(moved(of_run).argmax())

    def begin_day(self, day: int) -> None:
        """Let what was held back for long enough become known."""
        due = [key for key in self._held if key[0] + HELD_DAYS <= day]
        for key in due:
            _, identity = key
            counts = self._counts.get(identity)
            held = self._held.pop(key)
            # A cluster that was not used for so long that it was forgotten.
            if counts is not None:
                self._counts[identity] = _added(counts, held)

    def _hold(
        self,
        identity: int,
        bins: Ints,
        counts: Ints,
        counted: Bools,
        quantile: float,
        day: int,
    ) -> tuple[Floats, Ints]:
        """bins (n,) of one cluster in their order, counts (BINS,) known -> (n,) novelty, and the
        counts after them."""
        novelty = np.empty(len(bins))
        at = 0
        while at < len(bins):
            piece = slice(at, at + BLOCK)
            is_counted = counted[piece]
            if identity in self._runs:
                # Nothing of a run is counted, so all of it is compared with the same.
                of_piece = rank(bins[piece], counts, np.zeros_like(is_counted)).novelty
                # NaN, where too little is known, is not novel and ends a run.
                length = _leading(of_piece >= quantile)
                own = slice(at, at + length)
                novelty[own] = of_piece[:length]
                self._lengthen(identity, length, bins[own][counted[own]], day)
                at += length
                if length < len(of_piece):
                    counts = self._end_run(identity, counts)
                continue
            ranked = rank(bins[piece], counts, is_counted)
            ordinary = _leading(~(ranked.novelty >= quantile))
            if ordinary == len(ranked.novelty):
                novelty[piece] = ranked.novelty
                counts = ranked.counts
                at += ordinary
                continue
            own = slice(at, at + ordinary)
            novelty[own], counts = rank(bins[own], counts, counted[own])
            novelty[at + ordinary] = ranked.novelty[ordinary]
            at += ordinary
            self._runs[identity] = int(bins[at]) if counted[at] else NO_BIN
            at += 1
        return novelty, counts

    def _lengthen(self, identity: int, length: int, bins: Ints, day: int) -> None:
        """Hold back what is known of `length` more readings of a run, and its first with it."""
        if not length:
            return
        counts = np.bincount(bins, minlength=BINS)
        alone = self._runs[identity]
        if alone != NO_BIN:
            counts[alone] += 1
        self._runs[identity] = NO_BIN
        if counts.any():
            self._held[day, identity] = counts + self._held.get((day, identity), 0)

    def _end_run(self, identity: int, counts: Ints) -> Ints:
        """End a run; returns the counts (BINS,) with its only reading, if it was one."""
        alone = self._runs.pop(identity)
        if alone == NO_BIN:
            return counts
        of_run = np.zeros(BINS, dtype=np.int64)
        of_run[alone] = 1
        return _added(counts, of_run)

    def state(self) -> dict[str, Any]:
        counts = np.array(list(self._counts.values())).reshape(-1, BINS)
        row, column = np.nonzero(counts)
        held = []
        for (day, identity), of_day in self._held.items():
            held.append(HeldState(day=day, identity=identity, counts=of_day))
        runs = []
        for identity, alone in self._runs.items():
            runs.append(NovelRunState(identity=identity, bin=alone))
        state = SpreadState(
            held=held,
            runs=runs,
            identities=list(self._counts),
            row=row.astype(np.int32),
            bin=column.astype(np.int32),
            count=counts[row, column].astype(np.int32),
        )
        return state.saved()

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        saved = SpreadState.read(state)
        counts = np.zeros((len(saved.identities), BINS), dtype=np.int64)
        counts[saved.row, saved.bin] = saved.count
        require(counts.sum(axis=1).max(initial=0) <= KNOWN_MAX, "a histogram has too many counts")
        # Copies, as a view would keep the whole table for one cluster.
        self._counts = {}
        for identity, histogram in zip(saved.identities, counts, strict=True):
            self._counts[identity] = histogram.copy()
        self._held = {(held.day, held.identity): held.counts.copy() for held in saved.held}
        self._runs = {run.identity: run.bin for run in saved.runs}


def _leading(marks: Bools) -> int:
    """marks (n,) -> how many at the beginning are true."""
    return len(marks) if marks.all() else int(np.argmin(marks))


def _added(counts: Ints, more: Ints) -> Ints:
    """counts (BINS,) of what is known, and more of it, halved where they become too many."""
    total = counts + more
    while total.sum() > KNOWN_MAX:
        total = halve(total)
    return total
