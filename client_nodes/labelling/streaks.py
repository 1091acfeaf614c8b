"""Streaks: runs in which one reading after the other is novel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.config.contract import Contract, range_text
from shoal.protocol.events import SiteEvent
from shoal.protocol.labels import Label, Reason
from shoal.saved_state import SavedState

FEATURES_MAX = 3
"""features that an event names"""


@dataclass(frozen=True, kw_only=True)
class OutsideState(SavedState):
    """Readings of a streak in which one feature was above or below its usual values."""

    feature: int
    above: bool
    readings: int


@dataclass(frozen=True, kw_only=True)
class StreakState(SavedState):
    """The streak of one model that goes on, if any."""

    begun: bool
    novel: int
    ordinary: int
    outside: list[OutsideState]


class Streak:
    """Follows the labels of one model in the order of the readings.

    A streak begins with the `length`-th novel reading in a row, and ends with the `length`-th in a
    row that is not.
    """

    def __init__(self, contract: Contract, client: str, model: str, length: int) -> None:
        self._contract = contract
        self._client = client
        self._model = model
        self._length = length
        self._begun = False
        self._novel = 0
        """novel readings of the streak, or of the run that may become one"""
        self._ordinary = 0
        """readings in a row that are not novel, since the newest novel one"""
        self._outside: Counter[tuple[int, bool]] = Counter()
        """(feature, above) -> novel readings that lay outside there"""

    def follow(self, labels: Sequence[Label], places: Sequence[tuple[int, int]]) -> list[SiteEvent]:
        """The events found in the labels (n,) of readings at these places."""
        events = []
        for label, place in zip(labels, places, strict=True):
            if label.usual_in:
                self._novel = self._novel + 1
                self._ordinary = 0
                for reason in label.reasons:
                    self._outside[reason.feature, reason.above] += 1
                if not self._begun and self._novel == self._length:
                    self._begun = True
                    events.append(self._event("novel_streak", label, place))
            elif self._begun:
                self._ordinary += 1
                if self._ordinary == self._length:
                    events.append(self._event("novel_streak_ended", label, place))
                    self._forget()
            elif self._novel:
                self._forget()
        return events

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        outside = []
        for (feature, above), readings in self._outside.items():
            outside.append(OutsideState(feature=feature, above=above, readings=readings))
        state = StreakState(
            begun=self._begun, novel=self._novel, ordinary=self._ordinary, outside=outside
        )
        return state.saved()

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        saved = StreakState.read(state)
        self._begun = saved.begun
        self._novel = saved.novel
        self._ordinary = saved.ordinary
        self._outside = Counter()
        for outside in saved.outside:
            self._outside[outside.feature, outside.above] = outside.readings

    def _forget(self) -> None:
        self._begun = False
        self._novel = 0
        self._ordinary = 0
        self._outside.clear()

    def _event(self, kind: str, label: Label, place: tuple[int, int]) -> SiteEvent:
        features = self._contract.features
        outside = {}
        for (feature, above), _ in self._outside.most_common(FEATURES_MAX):
            outside[features[feature].name] = "above" if above else "below"
        partition, offset = place
        return SiteEvent(
            id=f"{self._model}/{partition}/{offset}/{kind}",
            kind=kind,
            federation=self._contract.federation,
            client=self._client,
            model=self._model,
            version=label.version,
            readings=self._novel,
            at=label.time,
            cluster=label.identity,
            name=label.name,
            outside=outside,
            text=self._text(kind, label),
        )

    def _text(self, kind: str, label: Label) -> str:
        if kind == "novel_streak_ended":
            return f"the streak of {self._novel} novel readings has ended"
        begin = f"{self._novel} readings in a row are novel"
        if not label.reasons:
            return f"{begin}: each feature is usual, their combination is not"
        beyond = [f"{self._beyond(reason)} in {label.usual_in}" for reason in label.reasons]
        return f"{begin}: {'; '.join(beyond)}"

    def _beyond(self, reason: Reason) -> str:
        feature = self._contract.features[reason.feature]
        side = "above" if reason.above else "below"
        # On a circle, and among categories, there is no above.
        if feature.kind == "category":
            side = "not"
        elif feature.kind == "circular":
            side = "outside"
        usual = range_text(reason.low, reason.high, feature)
        return f"{feature.name} {side} its usual {usual}"
