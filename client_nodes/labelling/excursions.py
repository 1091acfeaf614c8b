"""Finds readings in a row that are together more likely in another state than in theirs."""

from __future__ import annotations

from typing import Annotated, Final

import numpy as np

from shoal.client_nodes.labelling.novelty import KNOWN_MAX, KNOWN_MIN
from shoal.kernels.arrays import Floats
from shoal.saved_state import FloatArray, SavedState, require, state_type

STATES_MAX: Final = 64
"""states of which is remembered what is usual and how long dwells were, those used last"""
PIECE: Final = 64
"""readings after which it is found anew what is usual in each state"""


CLEAR: Final = 2.0
"""nats for another state from which on a reading is not as in its own; their mean of an event"""


CLEAR_MAX: Final = 4.0
"""nats that one reading counts at most, for or against: an outlier alone must not decide"""


USUAL_MAX: Final = 3.5
"""standard deviations from the mean of a state beyond which a value is not usual there"""


SPREAD_MIN: Final = 1e-3
"""least standard deviation of a feature in a state, in unit coordinates"""


class _Likely:
    """Mean and spread of each feature of the readings of one state."""

    def __init__(self, width: int) -> None:
        self.sums = np.zeros((3, width))
        """number, sum and sum of squares"""

    def add(self, rows: Floats) -> None:
        """Rows (n, d), NaN where missing. Half of what was known is forgotten where it is much."""
        is_present = ~np.isnan(rows)
        values = np.nan_to_num(rows)
        added = [is_present.sum(axis=0), values.sum(axis=0), (values**2).sum(axis=0)]
        self.sums = self.sums + np.stack(added)
        if self.sums[0].max(initial=0.0) >= KNOWN_MAX:
            self.sums = self.sums / 2

    @property
    def is_known(self) -> bool:
        return bool(self.sums[0].min(initial=KNOWN_MAX) >= KNOWN_MIN)

    def log_likelihood(self, row: Floats) -> tuple[float, bool]:
        """Log-likelihood of a row (d,) up to a constant, and whether all its values are usual.

        By independent Gaussians, without the values that the row lacks.
        """
        mean = self.sums[1] / self.sums[0]
        # The difference of two nearly equal numbers can be rounded below 0.
        variance = np.maximum(self.sums[2] / self.sums[0] - mean**2, 0.0)
        spread = np.maximum(np.sqrt(variance), SPREAD_MIN)
        away = (row - mean) / spread
        is_present = ~np.isnan(row)
        likelihood = float(np.nansum(-0.5 * away**2 - np.log(spread) * is_present))
        return likelihood, bool((np.abs(away[is_present]) <= USUAL_MAX).all())


@state_type
class NatsState(SavedState):
    """The evidence for one other state, in nats."""

    identity: int
    nats: float


@state_type
class RunState(SavedState):
    """The evidence for each other state at one reading."""

    nats: list[NatsState]
    """one for each other state"""


@state_type
class ExcursionsState(SavedState):
    """Known states with their sums, and the readings that may be an excursion."""

    known: list[int]
    """identities of the states that are known"""
    sums: Annotated[Floats, FloatArray("known", 3, "d")]
    run: list[RunState]
    piece: list[int]
    piece_rows: Annotated[Floats, FloatArray("piece", "d", gaps=True)]
    open: Annotated[Floats, FloatArray("open", "d", gaps=True)]
    of: int | None
    same: int
    ordinary: int
    reported: bool

    def check(self) -> None:
        require(len(self.known) == len(self.sums), "a state has no sums")
        require(len(self.piece) == len(self.piece_rows), "a reading has no state")


class Excursions:
    """Finds readings in a row that are together more likely in another state than in theirs.

    A reading counts once as many readings before and after it as show a change are of one dwell: at
    a change those of the next state have the label of the one before for up to half a window, and
    a change is reported later still.
    """

    def __init__(self, width: int) -> None:
        """`width` is the number of features d."""
        self._width = width
        self._known: dict[int, _Likely] = {}
        """identity -> readings of it as of the last whole piece; the one used last is the last"""
        self._piece: list[tuple[int, Floats]] = []
        """readings that are not counted yet: state and values"""
        self._of: int | None = None
        """state of the newest readings"""
        self._same = 0
        """readings in a row of it"""
        self._open: list[Floats] = []
        """the newest of them, of which it is not known yet whether their window is of one state"""
        self._run: list[dict[int, float]] = []
        """nats for each other state, of the newest readings"""
        self._ordinary = 0
        self._reported = False

    def interrupt(self) -> None:
        """The next reading does not follow those before it."""
        self._of = None
        self._same = 0
        self._open = []
        self._run = []
        self._ordinary = 0
        self._reported = False

    def follow(self, identity: int, unit: Floats, window: int, length: int) -> int | None:
        """A reading (d,) of a dwell -> the other state in which `length` readings in a row are
        usual, when they are.

        `window`: readings before and after one that must be of the same dwell.
        """
        if identity != self._of:
            self.interrupt()
            self._of = identity
        self._same += 1
        # The first readings of a dwell may have the label of the state before.
        if self._same <= window:
            return None
        self._open.append(unit)
        # Another model of states may have another window.
        while len(self._open) > window + 1:
            del self._open[0]
        if len(self._open) <= window:
            return None
        # `window` readings of the same dwell have followed it: its own window reaches no other
        # state.
        return self._judge(identity, self._open.pop(0), length)

    def _judge(self, identity: int, unit: Floats, length: int) -> int | None:
        nats = self._nats(identity, unit)
        # An excursion must not become usual here.
        if max(nats.values(), default=0.0) < CLEAR:
            self._count(identity, unit)
        self._run = [*self._run, nats][-length:]
        together = {}
        for other in nats:
            # A state that was not known yet at a reading of the run counts as most unlikely there.
            together[other] = sum(reading.get(other, -CLEAR_MAX) for reading in self._run)
        where = max(together, key=together.__getitem__, default=identity)
        if len(self._run) < length or together.get(where, 0.0) < CLEAR * length:
            self._ordinary += 1
            # An excursion that goes on is one event: only as many ordinary readings as it takes to
            # be found end it.
            self._reported = self._reported and self._ordinary < length
            return None
        is_new = not self._reported
        self._reported = True
        self._ordinary = 0
        return where if is_new else None

    def _nats(self, identity: int, unit: Floats) -> dict[int, float]:
        """Other state -> how much more likely a reading is in it than in its own.

        Empty where that is not known.
        """
        own = self._known.get(identity)
        if own is None or not own.is_known:
            return {}
        here, _ = own.log_likelihood(unit)
        nats = {}
        for other, known in self._known.items():
            if other == identity or not known.is_known:
                continue
            there, is_usual = known.log_likelihood(unit)
            # A reading that is unusual everywhere is novel, and no excursion.
            nats[other] = -CLEAR_MAX
            if is_usual:
                nats[other] = float(np.clip(there - here, -CLEAR_MAX, CLEAR_MAX))
        return nats

    def _count(self, identity: int, unit: Floats) -> None:
        self._piece.append((identity, unit))
        if len(self._piece) < PIECE:
            return
        identities = np.array([of_state for of_state, _ in self._piece])
        rows = np.array([row for _, row in self._piece])
        for of_state in np.unique(identities).tolist():
            # Taken out and put back, so that the state used last is the last of the dict.
            known = self._known.pop(of_state, None) or _Likely(self._width)
            known.add(rows[identities == of_state])
            self._known[of_state] = known
        while len(self._known) > STATES_MAX:
            del self._known[next(iter(self._known))]
        self._piece = []

    def state(self) -> ExcursionsState:
        """What a checkpoint holds of it."""
        run = []
        for reading in self._run:
            nats = [NatsState(identity=other, nats=nats) for other, nats in reading.items()]
            run.append(RunState(nats=nats))
        sums = np.array([known.sums for known in self._known.values()])
        rows = np.array([row for _, row in self._piece])
        return ExcursionsState(
            known=list(self._known),
            sums=sums.reshape(-1, 3, self._width),
            run=run,
            piece=[identity for identity, _ in self._piece],
            piece_rows=rows.reshape(-1, self._width),
            open=np.array(self._open).reshape(-1, self._width),
            of=self._of,
            same=self._same,
            ordinary=self._ordinary,
            reported=self._reported,
        )

    def restore(self, saved: ExcursionsState) -> None:
        """Become the saved one."""
        self._known = {}
        for identity, sums in zip(saved.known, saved.sums, strict=True):
            self._known[identity] = _Likely(self._width)
            self._known[identity].sums = sums.copy()
        self._run = []
        for reading in saved.run:
            self._run.append({state.identity: state.nats for state in reading.nats})
        self._piece = list(zip(saved.piece, saved.piece_rows, strict=True))
        self._open = list(saved.open)
        self._of = saved.of
        self._same = saved.same
        self._ordinary = saved.ordinary
        self._reported = saved.reported
