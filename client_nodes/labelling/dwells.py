"""Site events of states: what a client finds in the order of its own labelled readings.

A change is reported once the client has stayed elsewhere for a while, and not while the states are
provisional. Whether a change or a dwell is rare is a p-value, as for novelty: of all earlier
changes from that state, the share of those that were as rare; of the dwells, the share of those at
least as long. The counts of changes and the mean dwell are those of the federation; the dwells that
a long one is compared with are the client's own as well.

Around a change, readings have the label of the state that fills most of their window. So a reading
counts for what is usual in a state, or for an excursion from it (`excursions`), only where no
change was reported around it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np

from shoal.algorithms.streaming import Rows
from shoal.algorithms.view import StatesView
from shoal.client_nodes.labelling.excursions import STATES_MAX, Excursions, ExcursionsState
from shoal.config.contract import Contract
from shoal.config.sections import ClientSettings
from shoal.kernels.arrays import Floats, Ints
from shoal.protocol.events import SiteEvent, duration
from shoal.protocol.labels import Label
from shoal.saved_state import SavedState, state_type

DWELLS_MAX: Final = 200
"""completed dwells in each state that are remembered"""
CHANGED_MIN: Final = 5
"""fewest readings elsewhere before a change is reported: where a window is one reading, single ones
go astray"""


class States(NamedTuple):
    """The states of one snapshot, as far as events need them."""

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
    def of(cls, view: StatesView, identity: Sequence[int], digest: int, window: int) -> Self:
        """Those of a view, whose clusters have these lasting identities."""
        settled = len(identity) > 1 and view.evaluated and not view.provisional
        return cls(digest, window, np.array(identity, np.int64), view.dwell, view.changes, settled)

    def rarity(self, before: int, after: int) -> float:
        """The share of the changes from a state that were as rare as this one; 1 if not known.

        Of few counted changes some are mistakes: those count that are more than two deviations of
        such a number.
        """
        of_before = np.flatnonzero(self.identity == before)
        of_after = np.flatnonzero(self.identity == after)
        if not len(of_before) or not len(of_after):
            return 1.0
        start = of_before[0]
        row = np.delete(self.changes[start], start)
        rare = row[row <= self.changes[start, of_after[0]]]
        # The deviation of a count is its square root, as of a Poisson variable.
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
    """Successive readings of one state."""

    identity: int | None = None
    readings: int = 0
    since: float | None = None
    """event time of the first; None without one"""
    seen: bool = False
    """whether its beginning was seen"""
    reported: bool = False
    """whether it was reported as long"""


def _called(label: Label) -> str:
    return label.name or f"state {label.identity}"


def _span(dwell: _Dwell, until: float | None) -> str:
    """How long a dwell was, in time where its readings have it.

    It was more than that if its beginning was not seen.
    """
    more = "" if dwell.seen else "more than "
    if dwell.since is None or until is None:
        return f"{more}{dwell.readings} readings"
    return f"{more}{duration(until - dwell.since)}"


@state_type
class DwellState(SavedState):
    """One dwell: the state, its readings so far, and what was reported of it."""

    identity: int | None
    readings: int
    since: float | None
    seen: bool
    reported: bool


@state_type
class LengthsState(SavedState):
    """The lengths of the newest dwells in one state, in readings."""

    identity: int
    readings: list[int]


@state_type
class DwellsState(SavedState):
    """The dwell that goes on, the one that may follow it, and usual lengths."""

    digest: str | None
    """hexadecimal, as it has 63 bits and a whole number of a state at most 53"""
    dwell: DwellState
    next: DwellState
    lengths: list[LengthsState]
    excursions: ExcursionsState


class Dwells:
    """Follows the labels of one model of states in the order of the readings."""

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
        """identity -> readings of completed dwells; the state left last is the last"""
        self._excursions = Excursions(len(contract.features))

    def follow(
        self,
        labels: Sequence[Label],
        unit: Rows,
        places: Sequence[tuple[int, int]],
        states: States,
    ) -> list[SiteEvent]:
        """The events in the labels (n,) of readings (n, d) in unit coordinates, at these places."""
        is_first = states.digest != self._digest
        if is_first:
            # A label by other states that differs from the one before is no change.
            self._digest = states.digest
            self._next = _Dwell()
            self._dwell = self._dwell._replace(seen=False)
            self._excursions.interrupt()
        events: list[SiteEvent] = []
        for label, row, place in zip(labels, unit, places, strict=True):
            if label.identity is None:
                continue
            if is_first and label.identity != self._dwell.identity:
                self._dwell = _Dwell(label.identity, 0, label.time)
            is_first = False
            reported = [*self._follow_dwell(label, states), *self._follow_excursion(row, states)]
            if states.settled:
                events += [self._event(finding, label, place) for finding in reported]
        return events

    def _follow_dwell(self, label: Label, states: States) -> list[_Finding]:
        dwell = self._dwell
        identity = int(label.identity or 0)
        if identity == dwell.identity:
            self._dwell = dwell._replace(readings=dwell.readings + self._next.readings + 1)
            self._next = _Dwell()
            return self._long(label, states)
        if identity != self._next.identity:
            self._dwell = dwell._replace(readings=dwell.readings + self._next.readings)
            self._next = _Dwell(identity, 0, label.time, seen=True)
        self._next = self._next._replace(readings=self._next.readings + 1)
        if self._next.readings < self._confirming(states):
            return []
        left = self._dwell
        self._dwell = self._next
        self._next = _Dwell()
        # Of a dwell whose beginning was not seen only a least length is known.
        if left.seen:
            self._remember(left)
        return self._changed(left, label, states)

    def _confirming(self, states: States) -> int:
        """Readings elsewhere after which a client has changed its state."""
        return max(CHANGED_MIN, round(self._settings.state_changed_windows * states.window))

    def _remember(self, left: _Dwell) -> None:
        identity = int(left.identity or 0)
        self._lengths[identity] = [*self._lengths.pop(identity, []), left.readings][-DWELLS_MAX:]
        while len(self._lengths) > STATES_MAX:
            # A dict keeps the order of insertion, and `pop` moves the state left last to the end.
            del self._lengths[next(iter(self._lengths))]

    def _changed(self, left: _Dwell, label: Label, states: States) -> list[_Finding]:
        way = f"from state {left.identity} to {_called(label)}"
        text = f"changed {way} after {_span(left, self._dwell.since)}"
        reported = [_Finding("state_changed", text, self._dwell.readings, left.identity)]
        rarity = states.rarity(int(left.identity or 0), int(label.identity or 0))
        if rarity <= self._settings.unseen_change_share:
            text = f"changed {way}; of the changes from there, {rarity:.1%} were as rare"
            reported.append(_Finding("unseen_change", text, self._dwell.readings, left.identity))
        return reported

    def _long(self, label: Label, states: States) -> list[_Finding]:
        dwell = self._dwell
        share = self._settings.unusual_dwell_share
        mean = states.mean_dwell(int(dwell.identity or 0))
        if dwell.reported or not share or not mean:
            return []
        # Dwells of a chain of states without memory are exponential; those of most sensors are
        # less spread.
        if dwell.readings <= -mean * math.log(share):
            return []
        own = self._lengths.get(int(dwell.identity or 0), [])
        as_long = sum(length >= dwell.readings for length in own)
        if as_long > share * len(own):
            return []
        self._dwell = dwell._replace(reported=True)
        lasted = _span(dwell, label.time)
        text = f"in {_called(label)} for {lasted}; the mean dwell is {mean:.0f} readings"
        return [_Finding("unusual_dwell", text, dwell.readings, None)]

    def _follow_excursion(self, unit: Floats, states: States) -> list[_Finding]:
        n = self._settings.novel_streak
        dwell = int(self._dwell.identity or 0)
        other = self._excursions.follow(dwell, unit, states.window + self._confirming(states), n)
        if other is None:
            return []
        text = f"{n} readings in a row are as in state {other}, and not as in state {dwell}"
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
        lengths = []
        for identity, of_state in self._lengths.items():
            lengths.append(LengthsState(identity=identity, readings=of_state))
        state = DwellsState(
            digest=None if self._digest is None else f"{self._digest:x}",
            dwell=DwellState(**self._dwell._asdict()),
            next=DwellState(**self._next._asdict()),
            lengths=lengths,
            excursions=self._excursions.state(),
        )
        return state.saved()

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        saved = DwellsState.read(state, {"d": len(self._contract.features)})
        self._digest = None if saved.digest is None else int(saved.digest, 16)
        self._dwell = _Dwell(**vars(saved.dwell))
        self._next = _Dwell(**vars(saved.next))
        self._lengths = {lengths.identity: lengths.readings for lengths in saved.lengths}
        self._excursions.restore(saved.excursions)
