"""States from private counts: two states of streams, told from where
neighbouring blocks lie.

A client cuts each window into blocks of `block_readings`, and counts pairs of blocks by the bins
that their means lie in, one or two blocks apart. A window counts pairs of one feature at one
distance, and each block is in one pair: so one reading moves two counts by one at most, as in every
other algorithm of counts. The bins are those of the contract's bounds, so the server needs to ask
for nothing. It adds up the counts, and looks in the sums of each feature for a cut that streams
cross seldom (`shoal.algorithms.from_counts.pairs`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.claims import Claims, require_possible
from shoal.algorithms.counting import (
    FOUND_SIGNIFICANCE,
    CountingAlgorithm,
    check_private_counts,
    without_far_noise,
)
from shoal.algorithms.from_counts.pairs import (
    BINS,
    CELL_OF,
    CELLS,
    LAGS,
    MASS_MIN,
    MIDDLES,
    FeaturePairs,
    FoundCut,
    find_private_cut,
    pair_places,
)
from shoal.algorithms.options import AlgorithmOptions, option
from shoal.algorithms.shares import ClientShares, ClientSharesState
from shoal.algorithms.states.sets import CellSets
from shoal.algorithms.streaming import (
    Arrays,
    ArraySpec,
    Contribution,
    Rows,
    State,
    check_dimensions,
    check_rows,
)
from shoal.algorithms.view import ClusteringView, Cuts, StatesView
from shoal.errors import InvalidData, SettingsError
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.saved_state import FloatArray, IntArray, SavedState, Whole, require, state_type

NAME: Final = "states_from_counts"
FEATURES_MAX: Final = 8
FIRST_EVALUATION: Final = 1000
"""readings absorbed before the first evaluation"""
GROWTH: Final = 1.25
"""growth of the readings from evaluation to evaluation"""
CHANGES_MIN: Final = 20.0
"""changes seen, below which what is found is provisional"""
READINGS_POSSIBLE: Final = 1e10
"""a contract that takes more readings than this until states show is refused"""
PAIRS_NEEDED: Final = 800.0
"""pairs of each kind until states show, without noise"""
NOISE_NEEDED: Final = 80_000.0
"""pairs more for the variance of the noise, by the windows that there are to a block"""
WINDOWS_NEEDED: Final = 2
"""windows of each kind of pairs, so that each has several"""
NO_PARENT: Final = -1
NO_FEATURE: Final = -1
RECENT_READINGS: Final = 500.0
"""readings of all states that count as recent: they are those of all time, whose shares are known
"""
_LIMITS: Final = np.iinfo(np.int32)


class StatesFromCountsOptions(AlgorithmOptions):
    """Options of both halves; a federation takes all but `block_readings` from [privacy] of its
    contract."""

    ALGORITHM = NAME

    noise_variance: float = option(0.0, "variance of the noise of one published count", least=0.0)
    window_readings: int = option(400, "readings of a full window", least=1)
    windows_summed: int = option(
        1, "windows of one noise: those of a batch of masked counts", least=1
    )
    block_readings: int = option(
        16,
        "readings of a block; states that last fewer than eight blocks are not found",
        least=2,
        most=4096,
    )


UPDATE: Final = {
    "places": ArraySpec("<i8", (1,), at_least_one=True),
    "kind": ArraySpec("<i8", (1,)),
    "count": ArraySpec("<i4", ("n",)),
}
"""one window of a client: how many readings it has, rejected ones included; the kind of pairs that
it has counted, 2 x feature + distance - 1; and the private count of each two bins, which may be
negative"""

SNAPSHOT: Final = {
    "header": ArraySpec("<i8", (6,)),
    "at": ArraySpec("<f8", (1,)),
    "identity": ArraySpec("<i8", ("k",)),
    "centre": ArraySpec("<f8", ("k", "d"), rowlike=True),
    "mass": ArraySpec("<f8", ("k",)),
    "spread": ArraySpec("<f8", ("k", "d")),
    "dwell": ArraySpec("<f8", ("k",)),
    "changes": ArraySpec("<f8", ("k", "k")),
    "parent": ArraySpec("<i8", ("k",)),
    "gone": ArraySpec("<i8", ("g",)),
}
"""readings looked at, readings of a block, changes seen, whether it is provisional, the feature
that is cut (-1: none) and the readings that it takes until states show; where it is cut; and by
state its identity, mean, readings, deviation, mean dwell, changes to each other one, and the
state that it parted from. `gone`: a state that has become the first one"""


def readings_needed(options: Mapping[str, Any], d: int) -> float:
    """Readings of all clients until two states of three deviations that last a dozen blocks show,
    in most streams.

    Each kind of pairs gets one in 2 d windows, and a pair takes two blocks; the rest was measured,
    see `benchmarks/results/states_private.md`. Raises `SettingsError`.
    """
    own = StatesFromCountsOptions.parse(options)
    w = own.block_readings
    window = own.window_readings * own.windows_summed
    pairs = PAIRS_NEEDED + NOISE_NEEDED * own.noise_variance * w / window
    return max(2 * len(LAGS) * w * d * pairs, float(WINDOWS_NEEDED * len(LAGS) * d * window))


@dataclass(frozen=True)
class CountedPairs:
    """The true counts of a window, which must not leave the client before noise is added."""

    counts: Ints
    """(cells,)"""
    kind: int
    places: int
    """readings of the window, those that are not valid included"""

    def update(self, private: Ints) -> Arrays:
        """The `UPDATE` arrays with private counts (cells,) in the place of the true ones."""
        # No noise reaches the limits of 32 bits in the age of the universe; cutting it off would
        # cost no epsilon.
        return {
            "places": np.array([self.places], dtype=np.int64),
            "kind": np.array([self.kind], dtype=np.int64),
            "count": np.clip(private, _LIMITS.min, _LIMITS.max).astype(np.int32),
        }


class PairCounter:
    """Counts the pairs of blocks of a window. It keeps nothing of a reading, and its plan never
    changes."""

    def __init__(self, dimensions: int, **options: Any) -> None:
        """Raises `SettingsError`."""
        self._d = dimensions
        self._options = _checked_options(dimensions, options)
        self._w = self._options.block_readings
        self.plan_digest = hashlib.sha256(f"pairs;{dimensions};{BINS};{self._w}".encode()).digest()
        """32 bytes that identify what is counted"""

    def adopt(self, snapshot: Arrays) -> None:
        """Nothing: the bins are the same under every snapshot."""

    def count(
        self,
        rows: Rows,
        valid: Bools,
        client: bytes,
        number: int,
        cohort: tuple[bytes, int] | None = None,
    ) -> CountedPairs:
        """Count the pairs of blocks of the rows (n, d) in unit coordinates of which the `valid`
        (n,) are readings.

        Client and window, or cohort and round, decide the feature and the distance, in turns. A
        block has a mean if half of its readings or more are valid and have the feature; else its
        pair is counted nowhere. A pair is two blocks of one window, so that a window does not
        depend on readings of another.
        """
        name, turn = cohort or (client, number)
        # Each client begins with another kind, so that at any time all kinds are counted.
        start = int.from_bytes(hashlib.shake_256(b"kinds" + name).digest(4), "little")
        kind = (start + turn) % (len(LAGS) * self._d)
        feature = kind // len(LAGS)
        lag = LAGS[kind % len(LAGS)]
        known, bins = self._binned(rows[:, feature], valid)
        first = pair_places(len(bins), lag)
        # Whether a block has a mean is hidden with its pair: a pair without one changes no count.
        first = first[known[first] & known[first + lag]]
        counts = np.bincount(CELL_OF[bins[first], bins[first + lag]], minlength=CELLS)
        return CountedPairs(counts.astype(np.int64), kind, len(rows))

    def _binned(self, values: Floats, valid: Bools) -> tuple[Bools, Ints]:
        """Values (n,) -> of each block, whether it has a mean, and the bin of it."""
        blocks = len(values) // self._w
        there = valid & ~np.isnan(values)
        table = np.where(there, np.clip(values, 0.0, 1.0), 0.0)[: blocks * self._w].reshape(
            blocks, self._w
        )
        number = there[: blocks * self._w].reshape(blocks, self._w).sum(axis=1)
        means = table.sum(axis=1) / np.maximum(number, 1)
        bins = np.clip((means * BINS).astype(np.int64), 0, BINS - 1)
        return 2 * number >= self._w, bins


@state_type
class CutState(SavedState):
    """The cut that was found last."""

    feature: int
    upper: Annotated[Ints, IntArray(BINS)]
    """1 for each bin above the cut, 0 for the others"""
    changes: Annotated[Floats, FloatArray(len(LAGS), 2, 2)]
    """changes between the two parts, at each distance of blocks"""
    mass: Annotated[Floats, FloatArray(BINS)]

    @classmethod
    def of(cls, cut: FoundCut) -> CutState:
        """The state of a cut."""
        return cls(
            feature=cut.feature,
            upper=cut.sets.of_cell,
            changes=np.stack([cut.sets.changes, cut.sets.changes_2]),
            mass=cut.mass,
        )

    def restored(self) -> FoundCut:
        """The cut of which this is the state."""
        at = float(np.count_nonzero(self.upper == 0)) / BINS
        sets = CellSets(self.upper, self.changes[0], self.changes[1])
        return FoundCut(self.feature, at, sets, self.mass)

    def check(self) -> None:
        ascends = bool((np.diff(self.upper) >= 0).all())
        # With the order, one bin on each side says that all values are 0 or 1.
        require(
            ascends and self.upper[0] == 0 and self.upper[-1] == 1, "a cut has no bins on one side"
        )


@state_type
class StatesFromCountsState(SavedState):
    """The sums of counts, and what was found in them."""

    version: ClassVar[int] = 2

    sums: Annotated[Floats, FloatArray("kinds", CELLS)]
    """a sum of private counts may be negative"""
    windows: Annotated[Floats, FloatArray("kinds")]
    readings: int
    evaluated: int
    next_evaluation: Annotated[int, Whole(least=FIRST_EVALUATION)]
    seen: bool
    agreed: bool
    identity: Annotated[Ints, IntArray(2, "clusters", least=NO_PARENT)]
    """numbers of the clusters, and of their parents"""
    gone: Annotated[Ints, IntArray("gone")]
    identities: Annotated[int, Whole(least=1)]
    cut: CutState | None
    shares: ClientSharesState

    def check(self) -> None:
        require(bool((self.windows >= 0.0).all()), "counts have noise of less than no window")
        clusters = 1
        if self.cut is not None:
            clusters = 2
            is_feature = len(LAGS) * self.cut.feature < len(self.sums)
            require(is_feature, "the cut is of no feature")
        require(self.identity.shape[1] == clusters, "a part of the cut has no number")


class StatesFromCountsServer:
    """Adds up private counts of pairs, and looks for a cut whenever the readings have grown by a
    quarter.

    The state is a function of the contributions in their order, whatever their grouping; nothing is
    random.
    """

    def __init__(self, dimensions: int | None, **options: Any) -> None:
        """Raises `SettingsError`."""
        if dimensions is None:
            raise SettingsError(f"{NAME} needs the number of features before the first counts")
        self.d = dimensions
        self.options = _checked_options(dimensions, options)
        self._shares = ClientShares()
        kinds = len(LAGS) * dimensions
        self._sums: Floats = np.zeros((kinds, CELLS))
        self._windows: Floats = np.zeros(kinds)
        """windows whose noise each sum has; one that counts in part has the square of that part"""
        self._readings = 0
        self._evaluated_at = 0
        self._next_evaluation = FIRST_EVALUATION
        self._cut: FoundCut | None = None
        self._seen = False
        """whether there are any blocks, by more than noise: whether a reading is valid is hidden"""
        self._agreed = False
        """whether the last two evaluations have found the same"""
        self._identity = [0]
        self._parent = [NO_PARENT]
        self._gone: list[int] = []
        self._identities = 1

    half: Final = f"{NAME} server"

    def absorb(self, contributions: Sequence[Contribution], key: bytes) -> None:
        """Add private counts in the order given; nothing is random, so `key` is not used. Raises
        `InvalidData`."""
        for contribution in contributions:
            kind = int(contribution.arrays["kind"][0])
            if contribution.arrays["count"].shape != (CELLS,) or not 0 <= kind < len(self._sums):
                raise InvalidData(
                    f"contribution of {contribution.client}: its counts are not those of pairs of "
                    "blocks"
                )
        for contribution in contributions:
            kind = int(contribution.arrays["kind"][0])
            places = int(contribution.arrays["places"][0])
            part = self._shares.admit(contribution.client, float(places))
            counts = contribution.arrays["count"].astype(np.float64)
            self._sums[kind] += part * without_far_noise(counts, self.options.noise_variance, 1)
            self._windows[kind] += part**2
            self._readings += places
            if self._readings >= self._next_evaluation:
                self._evaluate()

    def _evaluate(self) -> None:
        self._evaluated_at = self._readings
        self._next_evaluation = math.ceil(self._readings * GROWTH)
        noise = CELLS * float(self._windows.sum()) * self.options.noise_variance
        self._seen = self._seen or float(self._sums.sum()) > FOUND_SIGNIFICANCE * math.sqrt(noise)
        before = self._cut
        cuts = self._find()
        # Another feature is taken only where the one that is cut shows nothing any more.
        if before is not None and before.feature in cuts:
            self._cut = cuts[before.feature]
        else:
            self._cut = max(cuts.values(), key=lambda cut: cut.information, default=None)
        self._agreed = self._is_same(before)
        self._name(before)

    def _find(self) -> dict[int, FoundCut]:
        """The cut of each feature that has one."""
        cuts: dict[int, FoundCut] = {}
        for feature in range(self.d):
            cut = find_private_cut(feature, self._pairs_of(feature))
            if cut is not None:
                cuts[feature] = cut
        return cuts

    def _is_same(self, before: FoundCut | None) -> bool:
        if before is None or self._cut is None:
            return before is self._cut
        return before.feature == self._cut.feature and abs(before.at - self._cut.at) <= 1.0 / BINS

    def _name(self, before: FoundCut | None) -> None:
        """Identities of the states after an evaluation: the heavier part goes on as the one before
        it."""
        cut = self._cut
        if cut is None and before is not None:
            heavier = int(np.argmax(_shares(before)))
            self._gone = [self._identity[1 - heavier]]
            self._identity = [self._identity[heavier]]
            self._parent = [NO_PARENT]
        elif cut is not None and before is None:
            heavier = int(np.argmax(_shares(cut)))
            known = self._identity[0]
            # The lower part comes first; the heavier one is the cluster that was there.
            self._identity = [known, self._identities]
            self._parent = [NO_PARENT, known]
            if heavier == 1:
                self._identity.reverse()
                self._parent.reverse()
            self._gone = []
            self._identities = self._identities + 1
        elif cut is not None and before is not None and cut.feature != before.feature:
            # Which part of another feature was which state is in no counts.
            self._identity = [self._identities, self._identities + 1]
            self._parent = [NO_PARENT] * 2
            self._identities = self._identities + 2

    def predict(self, rows: ArrayLike) -> Ints:
        """rows (n, d) in unit coordinates -> (n,) state of each by itself, -1 before there are
        any.

        Raises `InvalidData`.
        """
        return predict(self.snapshot(), check_rows(rows, self.d))

    def snapshot(self) -> Arrays:
        """The `SNAPSHOT` arrays, as copies."""
        cut = self._cut
        k = len(self._identity) if self._seen else 0
        centre, spread = self._described(k)
        share = np.ones(k) if cut is None else _shares(cut)
        moved = np.zeros((k, k))
        dwell = np.zeros(k)
        if cut is not None:
            moved = cut.sets.changes.copy()
            dwell = _dwells(cut) * self.options.block_readings
            np.fill_diagonal(moved, 0.0)
        n_changes = round(float(moved.sum()))
        needed = readings_needed(self.options.as_dict(), self.d)
        too_little = self._readings < needed if cut is None else n_changes < CHANGES_MIN
        feature = NO_FEATURE if cut is None else cut.feature
        provisional = int(too_little or not self._agreed)
        header = [
            self._evaluated_at,
            self.options.block_readings,
            n_changes,
            provisional,
            feature,
            math.ceil(needed),
        ]
        return {
            "header": np.array(header, dtype=np.int64),
            "at": np.array([0.0 if cut is None else cut.at]),
            "identity": np.array(self._identity[:k], dtype=np.int64),
            "centre": centre,
            "mass": share * self._readings,
            "spread": spread,
            "dwell": dwell,
            "changes": moved,
            "parent": np.array(self._parent[:k], dtype=np.int64),
            "gone": np.array(self._gone if k else [], dtype=np.int64),
        }

    def _pairs_of(self, feature: int) -> FeaturePairs:
        own = slice(len(LAGS) * feature, len(LAGS) * (feature + 1))
        return FeaturePairs(self._sums[own], self._windows[own] * self.options.noise_variance)

    def _described(self, k: int) -> tuple[Floats, Floats]:
        """(k, d) means and deviations of blocks by state; of a feature that is not cut, those of
        all blocks."""
        centre = np.full((k, self.d), 0.5)
        spread = np.zeros((k, self.d))
        for feature, number in np.ndindex(self.d, k):
            part = self._pairs_of(feature).mass
            if self._cut is not None and feature == self._cut.feature:
                part = np.where(self._cut.sets.of_cell == number, self._cut.mass, 0.0)
            mean = centre[number, feature] = part @ MIDDLES / part.sum()
            spread[number, feature] = math.sqrt(part @ (MIDDLES - mean) ** 2 / part.sum())
        return centre, spread

    def state(self) -> State:
        """Everything that further learning depends on, as copies."""
        state = StatesFromCountsState(
            sums=self._sums,
            windows=self._windows,
            readings=self._readings,
            evaluated=self._evaluated_at,
            next_evaluation=self._next_evaluation,
            seen=self._seen,
            agreed=self._agreed,
            identity=np.array([self._identity, self._parent], dtype=np.int64),
            gone=np.array(self._gone, dtype=np.int64),
            identities=self._identities,
            cut=None if self._cut is None else CutState.of(self._cut),
            shares=self._shares.state(),
        )
        return state.saved(**self._saved_with())

    def _saved_with(self) -> dict[str, Any]:
        """What a saved state must agree with."""
        return {"half": self.half, "options": self.options.as_dict(), "width": self.d}

    def restore(self, state: State) -> None:
        """Become the saved half and continue bit for bit. Raises `InvalidState`; then nothing has
        changed."""
        saved = StatesFromCountsState.read(state, {"kinds": len(self._sums)}, **self._saved_with())
        self._shares = ClientShares.restored(saved.shares)
        self._sums = saved.sums
        self._windows = saved.windows
        self._readings = saved.readings
        self._evaluated_at = saved.evaluated
        self._next_evaluation = saved.next_evaluation
        self._seen = saved.seen
        self._agreed = saved.agreed
        self._identity = saved.identity[0].tolist()
        self._parent = saved.identity[1].tolist()
        self._gone = saved.gone.tolist()
        self._identities = saved.identities
        self._cut = None if saved.cut is None else saved.cut.restored()


def _shares(cut: FoundCut) -> Floats:
    """(2,) part of the blocks in each state."""
    share = np.bincount(cut.sets.of_cell, cut.mass, minlength=2)
    return np.asarray(share / share.sum(), dtype=np.float64)


def _dwells(cut: FoundCut) -> Floats:
    """(2,) mean dwell in each state, in blocks: its pairs for each change out of it. Less than one
    change is none."""
    changes = cut.sets.changes
    return np.asarray(_shares(cut) * changes.sum() / max(changes[0, 1], 0.5))


def _checked_options(d: int, options: Mapping[str, Any]) -> StatesFromCountsOptions:
    """Raises `SettingsError` for what would find nothing."""
    check_dimensions(d)
    parsed = StatesFromCountsOptions.parse(options)
    if d > FEATURES_MAX:
        raise SettingsError(
            f"{NAME} is for at most {FEATURES_MAX} features, as each window counts one of them, "
            f"and there are {d}; leave some out, or take density_tree, which finds clusters in any "
            "number of features"
        )
    least = 2 * LAGS[-1] * parsed.block_readings
    if parsed.window_readings < least:
        raise SettingsError(
            f"{NAME} counts pairs of blocks of {parsed.block_readings} readings within a window, "
            f"and one of {parsed.window_readings} readings has too few: take window_readings of "
            f"{least} and more, best thousands, or a smaller block_readings"
        )
    needed = readings_needed(parsed.as_dict(), d)
    if needed > READINGS_POSSIBLE:
        raise SettingsError(
            f"{NAME} would find nothing: under this noise it takes about {needed:.0e} readings "
            "until two states show; take a larger epsilon, larger window_readings or fewer "
            "features, and with masked counts a clip of about "
            f"window_readings / {4 * parsed.block_readings}"
        )
    return parsed


def check_claims(options: Mapping[str, Any], arrays: Arrays, claims: Claims) -> None:
    """Raises `InvalidData` for counts that a window with this number of readings cannot have,
    whatever the noise."""
    own = StatesFromCountsOptions.parse(options)
    kind = int(arrays["kind"][0])
    counts = arrays["count"]
    require_possible(claims.readings <= own.window_readings, "it has more readings than a window")
    require_possible(
        int(arrays["places"][0]) == claims.readings, "its window has other readings than the update"
    )
    require_possible(0 <= kind < len(LAGS) * len(claims.low), "its pairs are of no feature")
    require_possible(len(counts) == CELLS, "its counts are not those of pairs of bins")
    pairs = len(pair_places(claims.readings // own.block_readings, LAGS[kind % len(LAGS)]))
    check_private_counts(counts, pairs, own.noise_variance)


def predict(arrays: Arrays, rows: Rows) -> Ints:
    """rows (n, d) -> (n,) state of each by the feature that is cut, by its number; -1 before there
    are any."""
    if not len(arrays["centre"]):
        return np.full(len(rows), -1, dtype=np.int64)
    feature = int(arrays["header"][4])
    if feature == NO_FEATURE:
        return np.zeros(len(rows), dtype=np.int64)
    return np.asarray(np.clip(rows[:, feature], 0.0, 1.0) >= arrays["at"][0], dtype=np.int64)


def predictor(arrays: Arrays) -> Cuts:
    """The cut of a snapshot as plain data."""
    feature = int(arrays["header"][4])
    k = len(arrays["centre"])
    features = np.array([] if feature == NO_FEATURE else [feature], dtype=np.int64)
    n = len(features)
    weight = np.ones(n)
    cluster = np.arange(2) if n else np.array([0 if k else -1])
    parts = np.tile(np.array([-1, -2], dtype=np.int64), (n, 1))
    return Cuts(features, features, weight, np.zeros(n), arrays["at"][:n].copy(), parts, cluster)


def view(arrays: Arrays) -> ClusteringView:
    """The states of a snapshot, each as one node; one that is gone is a node without mass of the
    state it became."""
    header = arrays["header"]
    centre = arrays["centre"]
    k = len(centre)
    gone = arrays["gone"]
    if len(np.unique(np.concatenate([arrays["identity"], gone]))) < k + len(gone) or (
        len(gone) and not k
    ):
        raise InvalidData("identity has an identity twice")
    if (
        k > 2
        or not NO_FEATURE <= header[4] < centre.shape[1]
        or (header[4] != NO_FEATURE) != (k == 2)
    ):
        raise InvalidData("the cut is of no feature, or has other states than its parts")
    mass = np.maximum(arrays["mass"], MASS_MIN)
    none = np.zeros((k, centre.shape[1]))
    return ClusteringView.from_nodes(
        np.concatenate([centre, centre[np.zeros(len(gone), dtype=np.int64)]]),
        np.concatenate([mass, np.zeros(len(gone))]),
        np.concatenate([np.arange(k), np.zeros(len(gone), dtype=np.int64)]),
        node_id=np.concatenate([arrays["identity"], gone]),
        centres=centre,
        centre_mass=mass,
        identity=arrays["identity"],
        parent=arrays["parent"],
        recent=mass / max(mass.sum(), MASS_MIN) * RECENT_READINGS,
        states=StatesView(
            int(header[1]),
            arrays["spread"],
            none,
            arrays["dwell"],
            arrays["changes"],
            int(header[2]),
            bool(header[0]),
            bool(header[3]),
            int(header[5]),
        ),
    )


STATES_FROM_COUNTS: Final = CountingAlgorithm(
    name=NAME,
    counter=lambda options, dimensions: PairCounter(dimensions, **options),
    server=lambda options, dimensions: StatesFromCountsServer(dimensions, **options),
    update=UPDATE,
    snapshot=SNAPSHOT,
    predict=predict,
    predictor=predictor,
    view=view,
    check_claims=check_claims,
    counted=(
        "pairs of blocks of block_readings successive readings, by the bins of the means of one "
        "feature: a reading is in one block, and a block in one pair at most"
    ),
    features_max=FEATURES_MAX,
    readings_needed=readings_needed,
    experimental=(
        "two states at most, which one feature shows by its mean, that last eight blocks and "
        "more, in streams whose sensors have the same level at every client"
    ),
)
