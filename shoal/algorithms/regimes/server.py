"""The search for regimes: plans from the sums of all clients, the regimes at the best scale, and
identities that last."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.algorithms.regimes.blocks import SCALES
from shoal.algorithms.regimes.client import BlockStatistics
from shoal.algorithms.regimes.exchange import (
    SAMPLE,
    Candidate,
    Codebook,
    Columns,
    Key,
    Phase,
    Profiles,
    Query,
    Sums,
    add_answer,
)
from shoal.algorithms.regimes.messages import SETS_MAX, Packing, Unpacking
from shoal.algorithms.regimes.plan import Products, ScalePlan, Scaling, make_plan
from shoal.algorithms.regimes.sets import CellSets, find_cut, find_sets, mutual_information
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.constants import COUNT_MAX

BLOCKS_MIN = 60
"""blocks of all clients from which on a scale is considered"""
HYSTERESIS = 1.2
"""another scale must tell this many times as much about the next block to be taken"""
POOLED_GAIN = 1.1
"""regimes of pooled levels must tell this many times as much, of what each client does next, as
those of own levels"""
CHANGING_MIN = 2
"""clients that change without which no levels are pooled"""
CHANGING_INFORMATION_MIN = 0.3
"""and this many nats a block of them: levels of clients whose readings overlap look like sets that
last. They tell up to 0.16 where nothing stays, and regimes of three deviations 0.45 (streams of
`benchmarks.regimes`, other seeds)"""
SAME_OVERLAP = 1 / 3
"""share of the readings of either of two sets that both have from which on they can be one regime
"""
CHANGES_MIN = 20
"""changes seen from which on several regimes are no longer provisional"""
READINGS_MIN = 1_000
"""readings of all clients from which on a single one is no longer provisional"""
NO_PARENT = -1
PROFILE = ("count", "mean", "spread", "rough", "slope")


class RegimeSearch:
    """Finds regimes from the sums of clients, in evaluations of several phases.

    An evaluation begins (`begin`), and then each phase has a query and ends with the sum of all
    answers to it (`conclude`). `rebuild` is a whole evaluation at clients in one process.
    `centred`: whether each client's own level is taken from its blocks; None: as it tells more of
    what clients do.
    """

    def __init__(self, centred: bool | None = None, scales: tuple[int, ...] = SCALES) -> None:
        self.codebook: Codebook | None = None
        """None: one regime"""
        self.single = 0
        """the identity shown while there is one regime"""
        self.n_readings = 0
        """readings of all clients at the last evaluation that has ended; 0 before the first"""
        self.columns: Columns | None = None
        """columns by which clients standardize rows; None: they are standardized"""
        self.profiles: Profiles | None = None
        """profiles of what is shown, in the order of the sets; None before the first evaluation"""
        self.parents: dict[int, int] = {}
        """identity -> the one that it parted from, `NO_PARENT` for none"""
        self.merged: dict[int, int] = {}
        """identity that is shown no more -> the one that has most of its readings, of the last
        evaluation with any"""
        self.phase = Phase.REST
        self.evaluation = 0
        self._both_ways = centred is None
        self.keys: tuple[Key, ...] = tuple(
            (w, way) for way in ((True, False) if centred is None else (centred,)) for w in scales
        )
        self._agreed = False
        """whether the last two evaluations found the same identities"""
        self._last: Codebook | None = None
        """the last regimes that were several: they may come back"""
        self._next = 1
        self._scalings: dict[int, Scaling] = {}
        self._plans: dict[int, ScalePlan] = {}
        self._candidates: tuple[Candidate, ...] = ()
        self._sets: list[CellSets] = []
        """those of the candidates"""
        self._evaluated_at = 0
        """readings of all clients when the evaluation began"""
        self._n_clients = 0

    def rebuild(self, clients: Sequence[BlockStatistics], hysteresis: float = HYSTERESIS) -> None:
        """Find the regimes in all that the clients have learnt.

        `hysteresis`: how many times as much another scale must tell than the present one; 1 treats
        all scales alike.
        """
        if not clients:
            return
        self.begin(sum(client.memory.n_readings for client in clients), len(clients))
        while self.phase is not Phase.REST:
            query = self.query()
            totals = Sums()
            for client in clients:
                add_answer(totals, client.answer(query))
            self.conclude(totals, hysteresis)

    def begin(self, n_readings: int, n_clients: int) -> None:
        """Begin an evaluation. All plans are made anew: in an old one a stream that has moved away
        seems to rest at the border. `n_readings` of this many clients, so far."""
        self.evaluation = self.evaluation + 1
        self.phase = Phase.SCALING
        self._evaluated_at = n_readings
        self._n_clients = n_clients
        self._scalings = {}
        self._plans = {}
        self._candidates = ()
        self._sets = []

    def query(self) -> Query:
        """What clients are asked in the present phase."""
        phase = self.phase
        return Query(
            phase,
            self.evaluation,
            self.keys,
            self.columns,
            self._scalings if phase is Phase.PRODUCTS else {},
            self._plans if phase is Phase.PAIRS else {},
            self._candidates if phase is Phase.NAMES else (),
            self._last if phase is Phase.NAMES else None,
        )

    def conclude(self, totals: Sums, hysteresis: float = HYSTERESIS) -> None:
        """End the present phase with the sum of the answers."""
        if self.phase is Phase.SCALING:
            self._scalings = self._make_scalings(totals)
        elif self.phase is Phase.PRODUCTS:
            self._plans = self._make_plans(totals)
        elif self.phase is Phase.PAIRS:
            self._find(totals, hysteresis)
        else:
            before = self.identities()
            self.n_readings = self._evaluated_at
            self._show(totals)
            self._agreed = before == self.identities()
            self._scalings = {}
            self._plans = {}
            self._candidates = ()
            self._sets = []
        self.phase = self._following()
        # The last candidate has no plan: it stands for one regime.
        if self.phase is Phase.NAMES:
            self._candidates = (*self._candidates, Candidate(*self.keys[0]))

    def _following(self) -> Phase:
        """The phase after the one that has ended; the next ones are left out where they would ask
        nothing."""
        if self.phase is Phase.SCALING and self._scalings:
            return Phase.PRODUCTS
        if self.phase is Phase.PRODUCTS and self._plans:
            return Phase.PAIRS
        return Phase.REST if self.phase is Phase.NAMES else Phase.NAMES

    def _make_scalings(self, totals: Sums) -> dict[int, Scaling]:
        scalings = {}
        for place, (w, centred) in enumerate(self.keys):
            if self._both_ways and not centred and self._n_clients == 1:
                continue  # the level of a single client makes no difference
            n = totals[f"{place}/n"][0]
            if n < BLOCKS_MIN:
                continue
            mean = totals[f"{place}/total"] / n
            variance = totals[f"{place}/squares"] / n - mean**2
            # The floor: a coordinate that never varies is divided by something small and stays 0.
            scalings[place] = Scaling(w, centred, mean, np.sqrt(np.maximum(variance, 1e-12)))
        return scalings

    def _make_plans(self, totals: Sums) -> dict[int, ScalePlan]:
        plans = {}
        for place, scaling in self._scalings.items():
            total, same, lagged, sample = (
                totals[f"{place}/{name}"] for name in ("total", "same", "lagged", SAMPLE)
            )
            plan = make_plan(
                scaling, Products(round(totals[f"{place}/n"][0]), total, same, lagged, sample)
            )
            if plan is not None and len(plan.codewords) > 1:
                plans[place] = plan
        return plans

    def _find(self, totals: Sums, hysteresis: float) -> None:
        """The candidates: of both ways the scale whose sets tell most of the next block."""
        now = (
            None if self.codebook is None else (self.codebook.w, self.codebook.plan.scaling.centred)
        )
        best: dict[int, CellSets] = {}
        for centred in (True, False):
            found = self._parted(totals, centred)
            # A change of scale must tell more than the present one by the hysteresis, or sets would
            # come and go.
            information = {
                place: mutual_information(sets.changes)
                * (hysteresis if self.keys[place] == now else 1.0)
                for place, sets in found.items()
            }
            if information:
                # Of scales that tell as much the finest, which comes first.
                place = max(information, key=information.__getitem__)
                best[place] = found[place]
        self._sets = list(best.values())
        self._candidates = tuple(
            Candidate(*self.keys[place], self._plans[place], sets.of_cell)
            for place, sets in best.items()
        )

    def _parted(self, totals: Sums, centred: bool) -> dict[int, CellSets]:
        """The sets of each scale, by place: those that valleys part, or cuts where there are none
        at any scale."""
        for find in (find_sets, find_cut):
            found = {}
            for place, plan in self._plans.items():
                sets = (
                    find(plan.codewords, *totals[f"{place}/pairs"])
                    if self.keys[place][1] == centred
                    else None
                )
                if sets is not None:
                    found[place] = sets
            if found:
                return found
        return {}

    def _show(self, totals: Sums) -> None:
        """Show one of the candidates, and give its sets their identities."""
        place = self._chosen(totals)
        candidate = self._candidates[place]
        overlap = totals[f"{place}/overlap"]
        shown = self.identities()
        before = np.empty(0, np.int64) if self._last is None else self._last.identity
        self.profiles = Profiles.of(totals, place, candidate.centred)
        if candidate.plan is None:
            if self.codebook is not None:  # the regime that had most readings goes on
                self.single = int(
                    self.codebook.identity[np.argmax(self.codebook.sets.changes.sum(axis=1))]
                )
            self.codebook = None
            now = np.array([self.single])
        else:
            sets = self._sets[place]
            now = self._identified(sets, overlap, before)
            self.codebook = self._last = Codebook(candidate.plan, sets, now)
        rows = dict(zip(before.tolist(), overlap, strict=True))
        gone = [identity for identity in shown if identity not in now]
        self.merged = (
            {identity: int(now[np.argmax(rows.get(identity, np.zeros(1)))]) for identity in gone}
            if gone
            else self.merged
        )

    def _identified(self, sets: CellSets, overlap: Floats, before: Ints) -> Ints:
        """(k,) identities of sets: those before with which they share most readings, and new
        ones."""
        identity = np.full(len(sets.changes), -1, np.int64)
        if len(before):
            self._match(identity, overlap, before)
        else:  # what was one regime goes on in the largest of its parts
            identity[np.argmax(sets.changes.sum(axis=1))] = self.single
        for new in np.flatnonzero(identity < 0).tolist():
            identity[new] = self._next
            self._next += 1
            shared = overlap[:, new] if len(before) else np.ones(1)
            from_one = shared.max() > shared.sum() / 2
            origin = int(before[np.argmax(shared)]) if len(before) else self.single
            self.parents[int(identity[new])] = origin if from_one else NO_PARENT
        return identity

    @staticmethod
    def _match(identity: Ints, shared: Floats, before: Ints) -> None:
        either = shared.sum(axis=1)[:, None] + shared.sum(axis=0) - shared
        overlap = shared / np.maximum(either, 1.0)
        # The largest overlap first: a regime that has split keeps its identity in the part that is
        # most like it.
        while overlap.size and overlap.max() > SAME_OVERLAP:
            old, new = np.unravel_index(np.argmax(overlap), overlap.shape)
            identity[new] = before[old]
            overlap[old] = 0.0
            overlap[:, new] = 0.0

    def _chosen(self, totals: Sums) -> int:
        """The place of the candidate to show: of both ways that which tells most of each client's
        own blocks."""
        ways = {
            candidate.centred: place
            for place, candidate in enumerate(self._candidates)
            if candidate.plan is not None
        }
        one_regime = len(self._candidates) - 1
        if not self._both_ways or False not in ways:
            return next(iter(ways.values()), one_regime)
        own = totals[f"{ways[True]}/information"][0] if True in ways else 0.0
        pooled, of_changing, changing = totals[f"{ways[False]}/information"]
        is_lasting = changing >= CHANGING_MIN and of_changing > CHANGING_INFORMATION_MIN * changing
        return (
            ways[False] if is_lasting and pooled > POOLED_GAIN * own else ways.get(True, one_regime)
        )

    def add_changes(self, sets: CellSets) -> None:
        """Count on: the codebook's sets with the changes seen since the evaluation."""
        assert self.codebook is not None, "changes are between several regimes"
        self.codebook = self._last = Codebook(self.codebook.plan, sets, self.codebook.identity)

    def pack(self, packing: Packing) -> None:
        """Put everything that further evaluations depend on."""
        counts = (
            int(self.phase),
            self.evaluation,
            self._evaluated_at,
            self._n_clients,
            self.n_readings,
            int(self._agreed),
        )
        packing.whole += [*counts, self.single, self._next]
        for table in (self.parents, self.merged):
            packing.whole += [len(table), *(number for pair in table.items() for number in pair)]
        packing.put_columns(self.columns)
        packing.put_codebook(self.codebook, with_changes=True)
        packing.put_codebook(None if self._last is self.codebook else self._last, with_changes=True)
        packing.put_scalings(self._scalings)
        packing.put_plans(self._plans)
        packing.put_candidates(self._candidates)
        for sets in self._sets:
            packing.parts += [sets.changes, sets.changes_2]
        packing.whole.append(0 if self.profiles is None else len(self.profiles.count))
        if self.profiles is not None:
            packing.whole.append(self.profiles.mean.shape[1])
            packing.parts += [getattr(self.profiles, name) for name in PROFILE]

    def unpack(self, saved: Unpacking) -> None:
        """Become the server that `pack` was of. Raises `InvalidData`."""
        self.phase = Phase(saved.whole(1, len(Phase) - 1))
        self.evaluation = saved.whole(0, COUNT_MAX)
        self._evaluated_at, self._n_clients, self.n_readings = saved.wholes(
            3, 0, COUNT_MAX
        ).tolist()
        self._agreed = bool(saved.whole(0, 1))
        self.single, self._next = saved.wholes(2, 0, COUNT_MAX).tolist()
        tables = [
            saved.wholes(2 * saved.whole(0, COUNT_MAX), NO_PARENT, COUNT_MAX) for _ in range(2)
        ]
        self.parents, self.merged = (
            {int(identity): int(other) for identity, other in table.reshape(-1, 2)}
            for table in tables
        )
        self.columns = saved.columns()
        self.codebook = saved.codebook(with_changes=True)
        self._last = saved.codebook(with_changes=True) or self.codebook
        self._scalings = saved.scalings()
        self._plans = saved.plans()
        self._candidates = saved.candidates()
        several = [candidate for candidate in self._candidates if candidate.plan is not None]
        self._sets = [
            CellSets(
                candidate.of_cell,
                *(saved.floats(candidate.n_sets, candidate.n_sets) for _ in range(2)),
            )
            for candidate in several
        ]
        if k := saved.whole(0, SETS_MAX):
            d = saved.whole(1, COUNT_MAX)
            self.profiles = Profiles(saved.floats(k), *(saved.floats(k, d) for _ in PROFILE[1:]))

    def identities(self) -> list[int]:
        """The identities shown, ascending; none before the first evaluation."""
        if not self.n_readings:
            return []
        return [self.single] if self.codebook is None else sorted(self.codebook.identity.tolist())

    @property
    def provisional(self) -> bool:
        """Whether too little was seen, or the last two evaluations disagree."""
        too_little = (
            self.n_readings < READINGS_MIN
            if self.codebook is None
            else self.codebook.n_changes() < CHANGES_MIN
        )
        return too_little or not self._agreed
