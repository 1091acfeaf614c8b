"""Site events of regimes: what a client finds in the order of its own readings, once they have the
labels of a model.

A change is reported once the client has stayed elsewhere for a while, and not while the regimes are
provisional. Whether a change or a dwell is rare is a p-value, as for novelty: of all earlier
changes from that regime, the share of those that were as rare; of the dwells, the share of those at
least as long. The counts of changes and the mean dwell are those of the federation; the dwells that
a long one is compared with are the client's own as well.

Around a change, readings have the label of the regime that fills most of their window. So a reading
counts for what is usual in a regime, or for an excursion from it, only where no change was reported
around it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np

from shoal.algorithms.streaming import Rows
from shoal.algorithms.view import RegimeView
from shoal.client_nodes.labelling.novelty import KNOWN_MAX, KNOWN_MIN
from shoal.config.contract import Contract
from shoal.config.sections import ClientSettings
from shoal.errors import InvalidState
from shoal.kernels.arrays import Floats, Ints
from shoal.protocol.checks import is_count
from shoal.protocol.events import SiteEvent, duration
from shoal.protocol.labels import Label

DWELLS_MAX: Final = 200
"""completed dwells in each regime that are remembered"""
REGIMES_MAX: Final = 64
"""regimes whose dwells are remembered, those that were left last"""
CHANGED_MIN: Final = 5
"""readings elsewhere before a change is reported, at least: where a window is one reading, single
ones go astray"""
PIECE: Final = 64
"""readings after which it is found anew what is usual in each regime"""


class Regimes(NamedTuple):
    """The regimes of one snapshot, as far as events need them."""

    digest: int
    """equal for snapshots that label rows alike"""
    window: int
    """readings of a window"""
    identity: Ints
    """(k,) -1 for one without a lasting identity"""
    dwell: Floats
    """(k,) mean dwell, in readings; 0 where it is not known"""
    changes: Floats
    """(k, k) changes seen from each to each other one"""
    settled: bool
    """whether they can be relied on: more than one, and not provisional"""

    @classmethod
    def of(cls, view: RegimeView, identity: Sequence[int], digest: int, window: int) -> Self:
        """Those of a view, whose clusters have these lasting identities."""
        settled = len(identity) > 1 and view.evaluated and not view.provisional
        return cls(digest, window, np.array(identity, np.int64), view.dwell, view.changes, settled)

    def rarity(self, before: int, after: int) -> float:
        """The share of the changes from a regime that were as rare as this one; 1 where it is not
        known.

        Of few counted changes some are mistakes: those count that are more than two deviations of
        such a number.
        """
        places = [np.flatnonzero(self.identity == one) for one in (before, after)]
        if not all(map(len, places)):
            return 1.0
        row = np.delete(self.changes[places[0][0]], places[0][0])
        rare = row[row <= self.changes[places[0][0], places[1][0]]]
        as_rare = np.maximum(rare - 2.0 * np.sqrt(rare), 0.0).sum()
        # One more in both, as in any p-value from counts: what was never seen has a small share,
        # and not none.
        return float((1 + as_rare) / (1 + row.sum()))

    def mean_dwell(self, identity: int) -> float:
        """0 where it is not known."""
        return float(self.dwell[self.identity == identity].sum())


class _Finding(NamedTuple):
    """What an event says."""

    kind: str
    text: str
    readings: int
    other: int | None


class _Dwell(NamedTuple):
    """Successive readings of one regime."""

    identity: int | None = None
    readings: int = 0
    since: float | None = None
    """event time of the first; None without one"""
    seen: bool = False
    """whether its beginning was seen"""
    reported: bool = False
    """whether it was reported as long"""


def _called(label: Label) -> str:
    return label.name or f"regime {label.identity}"


def _span(dwell: _Dwell, until: float | None) -> str:
    """How long a dwell was, in time where its readings have it; "more than" that if its beginning
    was not seen."""
    more = "" if dwell.seen else "more than "
    if dwell.since is None or until is None:
        return f"{more}{dwell.readings} readings"
    return f"{more}{duration(until - dwell.since)}"


class Dwells:
    """Follows the labels of one model of regimes in the order of the readings."""

    def __init__(
        self, contract: Contract, client: str, model: str, settings: ClientSettings
    ) -> None:
        self._contract = contract
        self._client = client
        self._model = model
        self._settings = settings
        self._digest: int | None = None
        self._dwell = _Dwell()
        self._next = _Dwell()
        """readings in a row elsewhere, which may become a dwell"""
        self._lengths: dict[int, list[int]] = {}
        """identity -> readings of completed dwells; the regime left last is the last"""
        self._excursions = Excursions(len(contract.features))

    def follow(
        self,
        labels: Sequence[Label],
        unit: Rows,
        places: Sequence[tuple[int, int]],
        regimes: Regimes,
    ) -> list[SiteEvent]:
        """The events found in the labels (n,) of readings (n, d), in unit coordinates, at these
        places."""
        if regimes.digest != self._digest:
            # A label by other regimes that differs from the one before is no change.
            self._digest = regimes.digest
            self._next = _Dwell()
            self._dwell = self._dwell._replace(seen=False)
            self._excursions.interrupt()
            is_first = True
        else:
            is_first = False
        events: list[SiteEvent] = []
        for label, row, place in zip(labels, unit, places, strict=True):
            if label.identity is None:
                continue
            if is_first and label.identity != self._dwell.identity:
                self._dwell = _Dwell(label.identity, 0, label.time)
            is_first = False
            reported = [*self._follow_dwell(label, regimes), *self._follow_excursion(row, regimes)]
            if regimes.settled:
                events += [self._event(one, label, place) for one in reported]
        return events

    def _follow_dwell(self, label: Label, regimes: Regimes) -> list[_Finding]:
        dwell = self._dwell
        identity = int(label.identity or 0)
        if identity == dwell.identity:
            self._dwell = dwell._replace(readings=dwell.readings + self._next.readings + 1)
            self._next = _Dwell()
            return self._long(label, regimes)
        if identity != self._next.identity:
            self._dwell = dwell._replace(readings=dwell.readings + self._next.readings)
            self._next = _Dwell(identity, 0, label.time, seen=True)
        self._next = self._next._replace(readings=self._next.readings + 1)
        if self._next.readings < self._confirming(regimes):
            return []
        left = self._dwell
        self._dwell = self._next
        self._next = _Dwell()
        # Of a dwell whose beginning was not seen only a least length is known.
        if left.seen:
            self._remember(left)
        return self._changed(left, label, regimes)

    def _confirming(self, regimes: Regimes) -> int:
        """Readings elsewhere after which a client has changed its regime."""
        return max(CHANGED_MIN, round(self._settings.regime_changed_windows * regimes.window))

    def _remember(self, left: _Dwell) -> None:
        identity = int(left.identity or 0)
        self._lengths[identity] = [*self._lengths.pop(identity, []), left.readings][-DWELLS_MAX:]
        while len(self._lengths) > REGIMES_MAX:
            # A dict keeps the order of insertion, and `pop` moves the regime left last to the end.
            del self._lengths[next(iter(self._lengths))]

    def _changed(self, left: _Dwell, label: Label, regimes: Regimes) -> list[_Finding]:
        way = f"from regime {left.identity} to {_called(label)}"
        text = f"changed {way} after {_span(left, self._dwell.since)}"
        reported = [_Finding("regime_changed", text, self._dwell.readings, left.identity)]
        rarity = regimes.rarity(int(left.identity or 0), int(label.identity or 0))
        if rarity <= self._settings.unseen_change_share:
            text = f"changed {way}; of the changes from there, {rarity:.1%} were as rare"
            reported.append(_Finding("unseen_change", text, self._dwell.readings, left.identity))
        return reported

    def _long(self, label: Label, regimes: Regimes) -> list[_Finding]:
        dwell = self._dwell
        share = self._settings.unusual_dwell_share
        mean = regimes.mean_dwell(int(dwell.identity or 0))
        # Stays of a chain of regimes without memory are exponential; those of most sensors are less
        # spread.
        if dwell.reported or not share or not mean or dwell.readings <= -mean * math.log(share):
            return []
        own = self._lengths.get(int(dwell.identity or 0), [])
        if sum(one >= dwell.readings for one in own) > share * len(own):
            return []
        self._dwell = dwell._replace(reported=True)
        lasted = _span(dwell, label.time)
        text = f"in {_called(label)} for {lasted}; the mean dwell is {mean:.0f} readings"
        return [_Finding("unusual_dwell", text, dwell.readings, None)]

    def _follow_excursion(self, unit: Floats, regimes: Regimes) -> list[_Finding]:
        n = self._settings.novel_streak
        dwell = int(self._dwell.identity or 0)
        other = self._excursions.follow(dwell, unit, regimes.window + self._confirming(regimes), n)
        if other is None:
            return []
        text = f"{n} readings in a row are as in regime {other}, and not as in regime {dwell}"
        return [_Finding("usual_elsewhere", text, n, other)]

    def _event(self, reported: _Finding, label: Label, place: tuple[int, int]) -> SiteEvent:
        partition, offset = place
        return SiteEvent(
            id=f"{self._model}/{partition}/{offset}/{reported.kind}",
            kind=reported.kind,
            federation=self._contract.federation,
            client=self._client,
            model=self._model,
            version=label.version,
            readings=reported.readings,
            at=label.time,
            cluster=self._dwell.identity,
            name=label.name if label.identity == self._dwell.identity else "",
            other=reported.other,
            text=reported.text,
        )

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        return {
            "digest": self._digest,
            "dwell": list(self._dwell),
            "next": list(self._next),
            "lengths": [[one, *lengths] for one, lengths in self._lengths.items()],
            "excursions": self._excursions.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        try:
            self._digest = state["digest"]
            self._dwell = _Dwell(*state["dwell"])
            self._next = _Dwell(*state["next"])
            if not (is_count(self._dwell.readings) and is_count(self._next.readings)):
                raise ValueError("impossible counts")
            self._lengths = {
                int(one): [int(each) for each in lengths] for one, *lengths in state["lengths"]
            }
            self._excursions.restore(state["excursions"])
        except (KeyError, TypeError, ValueError) as broken:
            raise InvalidState(
                f"the checkpoint of dwells in regimes is damaged: {broken}"
            ) from None


CLEAR: Final = 2.0
"""nats for another regime from which on a reading speaks against its own; as many in the mean of a
run are an event"""
CLEAR_MAX: Final = 4.0
"""nats that one reading counts at most, for or against: an outlier alone must not decide"""
USUAL_MAX: Final = 3.5
"""standard deviations from the mean of a regime beyond which a value is not usual there"""
SPREAD_MIN: Final = 1e-3
"""least standard deviation of a feature in a regime, in unit coordinates"""


class _Likely:
    """Mean and spread of each feature of the readings of one regime."""

    def __init__(self, width: int) -> None:
        self.sums = np.zeros((3, width))
        """number, sum and sum of squares"""

    def add(self, rows: Floats) -> None:
        """Rows (n, d), NaN where missing. Half of what was known is forgotten where it is much."""
        there = ~np.isnan(rows)
        known = np.nan_to_num(rows)
        self.sums = self.sums + np.stack(
            [there.sum(axis=0), known.sum(axis=0), (known**2).sum(axis=0)]
        )
        if self.sums[0].max(initial=0.0) >= KNOWN_MAX:
            self.sums = self.sums / 2

    @property
    def is_known(self) -> bool:
        return bool(self.sums[0].min(initial=KNOWN_MAX) >= KNOWN_MIN)

    def log_likelihood(self, row: Floats) -> tuple[float, bool]:
        """Log-likelihood of a row (d,) up to a constant, by independent Gaussians; whether all its
        values are usual.

        Without the values that it lacks.
        """
        mean = self.sums[1] / self.sums[0]
        # The difference of two nearly equal numbers can be rounded below 0.
        spread = np.maximum(
            np.sqrt(np.maximum(self.sums[2] / self.sums[0] - mean**2, 0.0)), SPREAD_MIN
        )
        away = (row - mean) / spread
        there = ~np.isnan(row)
        return float(np.nansum(-0.5 * away**2 - np.log(spread) * there)), bool(
            (np.abs(away[there]) <= USUAL_MAX).all()
        )


class Excursions:
    """Finds readings in a row that are together more likely in another regime than in theirs.

    A reading counts once as many readings before and after it as show a change are of one dwell: at
    a change those of the next regime have the label of the one before for up to half a window, and
    a change is reported later still.
    """

    def __init__(self, width: int) -> None:
        """`width` is the number of features d."""
        self._width = width
        self._known: dict[int, _Likely] = {}
        """identity -> readings of it as of the last whole piece; the one used last is the last"""
        self._piece: list[tuple[int, Floats]] = []
        """readings that are not counted yet: regime and values"""
        self._of: int | None = None
        """regime of the newest readings"""
        self._same = 0
        """readings in a row of it"""
        self._open: list[Floats] = []
        """the newest of them, of which it is not known yet whether their window is of one regime"""
        self._run: list[dict[int, float]] = []
        """nats for each other regime, of the newest readings"""
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
        """A reading (d,) of a dwell -> the other regime in which `length` readings in a row are
        usual, when they are.

        `window`: readings before and after one that must be of the same stay.
        """
        if identity != self._of:
            self.interrupt()
            self._of = identity
        self._same += 1
        # The first readings of a dwell may have the label of the regime before.
        if self._same <= window:
            return None
        self._open.append(unit)
        # Another model of regimes may have another window.
        while len(self._open) > window + 1:
            del self._open[0]
        if len(self._open) <= window:
            return None
        return self._judge(identity, self._open.pop(0), length)

    def _judge(self, identity: int, unit: Floats, length: int) -> int | None:
        nats = self._nats(identity, unit)
        if max(nats.values(), default=0.0) < CLEAR:
            self._count(identity, unit)  # an excursion must not become usual here
        self._run = [*self._run, nats][-length:]
        # A regime that was not known yet at a reading of the run counts as most unlikely there.
        together = {one: sum(each.get(one, -CLEAR_MAX) for each in self._run) for one in nats}
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
        """Other regime -> how much more likely a reading is in it than in its own; empty where that
        is not known."""
        own = self._known.get(identity)
        if own is None or not own.is_known:
            return {}
        here, _ = own.log_likelihood(unit)
        nats = {}
        for one, known in self._known.items():
            if one != identity and known.is_known:
                there, is_usual = known.log_likelihood(unit)
                nats[one] = (
                    float(np.clip(there - here, -CLEAR_MAX, CLEAR_MAX)) if is_usual else -CLEAR_MAX
                )
        return nats

    def _count(self, identity: int, unit: Floats) -> None:
        self._piece.append((identity, unit))
        if len(self._piece) < PIECE:
            return
        identities = np.array([one for one, _ in self._piece])
        rows = np.array([row for _, row in self._piece])
        for one in np.unique(identities).tolist():
            known = self._known.pop(one, None) or _Likely(self._width)
            known.add(rows[identities == one])
            self._known[one] = known
        while len(self._known) > REGIMES_MAX:
            del self._known[next(iter(self._known))]
        self._piece = []

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        numbers = [self._of, self._same, self._ordinary, self._reported]
        run = [[[one, nats] for one, nats in each.items()] for each in self._run]
        return {
            "known": list(self._known),
            "sums": np.array([one.sums for one in self._known.values()]).reshape(
                -1, 3, self._width
            ),
            "run": run,
            "piece": [one for one, _ in self._piece],
            "piece_rows": np.array([row for _, row in self._piece]).reshape(-1, self._width),
            "open": np.array(self._open).reshape(-1, self._width),
            "numbers": numbers,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `KeyError`, `TypeError`, `ValueError` or `InvalidState` for a damaged state."""
        sums = np.asarray(state["sums"], np.float64).reshape(len(state["known"]), 3, self._width)
        self._known = {int(one): _Likely(self._width) for one in state["known"]}
        for known, own in zip(self._known.values(), sums, strict=True):
            known.sums = own.copy()
        self._run = [{int(one): float(nats) for one, nats in each} for each in state["run"]]
        rows = np.asarray(state["piece_rows"], np.float64).reshape(-1, self._width)
        self._piece = [(int(one), row) for one, row in zip(state["piece"], rows, strict=True)]
        self._open = list(np.asarray(state["open"], np.float64).reshape(-1, self._width))
        self._of, self._same, self._ordinary, self._reported = state["numbers"]
        if not (is_count(self._same) and is_count(self._ordinary)):
            raise ValueError("impossible counts")
