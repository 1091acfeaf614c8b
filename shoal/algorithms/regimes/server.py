"""The server half: plans from the sums of all clients, the regimes at the best scale, and identities that last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.algorithms.regimes.blocks import SCALES
from shoal.algorithms.regimes.client import RegimeClient
from shoal.algorithms.regimes.plan import ScalePlan, Scaling, generalised_eigh, make_plan
from shoal.algorithms.regimes.sets import CellSets, find_sets, told_of_next
from shoal.kernels.arrays import Floats, Ints

BLOCKS_MIN = 60
"""blocks of all clients from which on a scale is considered"""
HYSTERESIS = 1.2
"""another scale must tell this many times as much about the next block to be taken"""
POOLED_GAIN = 1.1
"""regimes of pooled levels must tell this many times as much, of what each client does next, as those of own levels"""
CHANGING = 0.01
"""nats a block from which on a client counts as one that changes"""
CHANGING_MIN = 2
"""clients that change, of which pooled levels need this many"""
CHANGING_TOLD_MIN = 0.3
"""and this many nats a block of them: levels of clients whose readings overlap look like sets that last. They tell
up to 0.16 where nothing stays, and regimes of three deviations 0.45 (streams of `benchmarks.regimes`, other seeds)"""
SAME_OVERLAP = 1 / 3
"""share of the readings of either of two sets that both have from which on they can be one regime"""
CHANGES_MIN = 20
"""changes seen from which on several regimes are no longer provisional"""
READINGS_MIN = 1_000
"""readings of all clients from which on a single one is no longer provisional"""

Key = tuple[int, bool]
"""a scale, and whether clients' own levels are taken from their blocks"""


@dataclass(frozen=True, eq=False)
class Book:
    """The regimes that were found: the plan of their scale, the sets of its cells, and the identity of each set."""

    plan: ScalePlan
    sets: CellSets
    identity: Ints
    """(k,) of each set"""

    @property
    def w(self) -> int:
        """Readings of a block."""
        return self.plan.scaling.w

    def order(self) -> Ints:
        """(k,) sets in the order of their identities."""
        return np.argsort(self.identity)

    def dwell(self) -> Floats:
        """(k,) mean stay in each set, in readings, from what the changes at both lags have in common.

        The counts at one block alone see a stay end whenever a block is taken for one of another regime.
        """
        one, two = self.sets.changes, self.sets.changes_2
        stay = np.diag(np.linalg.pinv(one + one.T) @ (two + two.T))
        return self.w / np.clip(1.0 - stay, 1e-6, 1.0)

    def n_changes(self) -> int:
        """Changes from one regime to another that were seen."""
        return round(float(self.sets.changes.sum() - np.trace(self.sets.changes)))


class RegimeServer:
    """Finds regimes from the sums of clients. `rebuild` is the whole exchange with clients in one process.

    `centred`: whether each client's own level is taken from its blocks; None: as it tells more of what clients do.
    """

    def __init__(self, centred: bool | None = None, scales: tuple[int, ...] = SCALES) -> None:
        generalised_eigh()  # what is missing is reported before anything is learnt
        self.book: Book | None = None
        """None: one regime"""
        self.single = 0
        """the identity shown while there is one regime"""
        self.n_readings = 0
        """of all clients at the last rebuild; 0 before the first"""
        self._agreed = False
        """whether the last two rebuilds found the same identities"""
        self._both_ways = centred is None
        self._keys = [(w, way) for way in ((True, False) if centred is None else (centred,)) for w in scales]
        self._last: Book | None = None
        self._next = 1
        self._plans: dict[Key, ScalePlan] = {}

    def rebuild(self, clients: Sequence[RegimeClient], hysteresis: float = HYSTERESIS) -> None:
        """Find the regimes in all that the clients have learnt.

        `hysteresis`: how many times as much another scale must tell than the present one; 1 treats all scales alike.
        """
        if not clients:
            return
        before = self.identities()
        self.n_readings = sum(client.memory.n_readings for client in clients)
        self._make_plans(clients)
        sets = {
            key: find_sets(plan.codebook, *np.sum([client.pairs(plan) for client in clients], axis=0))
            for key, plan in self._plans.items()
        }
        self._show(self._best({key: several for key, several in sets.items() if several}, clients, hysteresis), clients)
        self._agreed = before == self.identities()

    def _make_plans(self, clients: Sequence[RegimeClient]) -> None:
        """Make all plans anew: in an old one a stream that has moved away seems to rest in its border cells."""
        self._plans = {}
        for client in clients:
            client.find_level()
        for w, centred in self._keys:
            if self._both_ways and not centred and len(clients) == 1:
                continue  # the level of a single client makes no difference
            sums = [client.scaling_sums(w, centred) for client in clients]
            n = sum(part[0] for part in sums)
            if n < BLOCKS_MIN:
                continue
            mean = np.sum([part[1] for part in sums], axis=0) / n
            variance = np.sum([part[2] for part in sums], axis=0) / n - mean**2
            scaling = Scaling(w, centred, mean, np.sqrt(np.maximum(variance, 1e-12)))
            plan = make_plan(scaling, [client.products(scaling) for client in clients])
            if plan is not None and len(plan.codebook) > 1:
                self._plans[w, centred] = plan

    def _best(
        self, found: dict[Key, CellSets], clients: Sequence[RegimeClient], hysteresis: float
    ) -> tuple[Key, CellSets] | None:
        """The scale whose sets tell most of the next block, and of both ways that which tells most of own blocks."""
        now = None if self.book is None else (self.book.w, self.book.plan.scaling.centred)
        best: dict[bool, Key] = {}
        for centred in (True, False):
            told = {key: told_of_next(sets.changes) for key, sets in found.items() if key[1] == centred}
            if told:
                best[centred] = max(told, key=lambda key: told[key] * (hysteresis if key == now else 1.0))
        if self._both_ways and False in best:
            own, pooled = (self._own_information(best, found, way, clients) for way in (True, False))
            changing = pooled[pooled > CHANGING]
            is_lasting = len(changing) >= CHANGING_MIN and changing.mean() > CHANGING_TOLD_MIN
            best.pop(bool(is_lasting and pooled.sum() > POOLED_GAIN * own.sum()), None)
        return next(((key, found[key]) for key in best.values()), None)

    def _own_information(
        self, best: dict[bool, Key], found: dict[Key, CellSets], centred: bool, clients: Sequence[RegimeClient]
    ) -> Floats:
        """(clients,) nats that sets tell of each client's next block; what differs for good tells none."""
        if centred not in best:
            return np.zeros(len(clients))
        key = best[centred]
        return np.array([client.own_information(self._plans[key], found[key].of_cell) for client in clients])

    def _show(self, best: tuple[Key, CellSets] | None, clients: Sequence[RegimeClient]) -> None:
        """Give the sets their identities: those of the sets before with which they share most readings."""
        if best is None:
            if self.book is not None:  # the regime that had most readings goes on
                self.single = int(self.book.identity[np.argmax(self.book.sets.changes.sum(axis=1))])
            self.book = None
        else:
            key, sets = best
            plan = self._plans[key]
            identity = np.full(len(sets.changes), -1, np.int64)
            if self._last is not None:  # the last book with several regimes: they may come back
                self._match(identity, _overlap(clients, self._last, plan, sets), self._last.identity)
            elif len(identity):  # what was one regime goes on in the largest of its parts
                identity[np.argmax(sets.changes.sum(axis=1))] = self.single
            for one in np.flatnonzero(identity < 0):
                identity[one], self._next = self._next, self._next + 1
            self.book = self._last = Book(plan, sets, identity)

    @staticmethod
    def _match(identity: Ints, shared: Floats, before: Ints) -> None:
        either = shared.sum(axis=1)[:, None] + shared.sum(axis=0) - shared
        overlap = shared / np.maximum(either, 1.0)
        while overlap.size and overlap.max() > SAME_OVERLAP:
            old, new = np.unravel_index(np.argmax(overlap), overlap.shape)
            identity[new] = before[old]
            overlap[old], overlap[:, new] = 0.0, 0.0

    def identities(self) -> list[int]:
        """The identities shown, ascending; none before the first rebuild."""
        if not self.n_readings:
            return []
        return [self.single] if self.book is None else sorted(self.book.identity.tolist())

    @property
    def provisional(self) -> bool:
        """Whether too little was seen, or the last two rebuilds disagree."""
        too_little = self.n_readings < READINGS_MIN if self.book is None else self.book.n_changes() < CHANGES_MIN
        return too_little or not self._agreed


def _overlap(clients: Sequence[RegimeClient], old: Book, plan: ScalePlan, sets: CellSets) -> Floats:
    """(k, l) readings in the memories of clients by their set in the old book and among the new sets."""
    k, m = len(old.identity), len(sets.changes)
    table = np.zeros((k, m))
    for client in clients:
        before, first = client.sets_over_time(old.plan, old.sets.of_cell)
        now, start = client.sets_over_time(plan, sets.of_cell)
        begin, end = max(first, start), min(first + len(before), start + len(now))
        if end <= begin:
            continue
        before, now = before[begin - first : end - first], now[begin - start : end - start]
        known = (before >= 0) & (now >= 0)
        table += np.bincount(before[known] * m + now[known], minlength=k * m).reshape(k, m)
    return table
