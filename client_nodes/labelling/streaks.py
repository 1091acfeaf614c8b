"""Streaks of novel readings: begins and ends of runs in which one reading after the other is novel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from shoal.config.contract import Contract
from shoal.config.feature_text import range_text
from shoal.errors import InvalidState
from shoal.protocol.checks import is_count
from shoal.protocol.labels import Label, Reason
from shoal.protocol.site_events import SiteEvent

FEATURES_MAX = 3
"""features that an event names"""


class Streak:
    """Follows the labels of one model in the order of the readings.

    A streak begins with the `length`-th novel reading in a row, and ends with the `length`-th in a row that is not.
    """

    def __init__(self, contract: Contract, client: str, model: str, length: int) -> None:
        self._contract, self._client, self._model = contract, client, model
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
                self._novel, self._ordinary = self._novel + 1, 0
                self._outside.update((one.feature, one.above) for one in label.reasons)
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
        outside = [[feature, above, readings] for (feature, above), readings in self._outside.items()]
        return {"begun": self._begun, "novel": self._novel, "ordinary": self._ordinary, "outside": outside}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        try:
            begun, novel, ordinary = state["begun"], state["novel"], state["ordinary"]
            if not (isinstance(begun, bool) and is_count(novel) and is_count(ordinary)):
                raise ValueError("impossible counts")
            self._begun, self._novel, self._ordinary = begun, novel, ordinary
            self._outside = Counter({(int(one), bool(above)): int(n) for one, above, n in state["outside"]})
        except (KeyError, TypeError, ValueError) as broken:
            raise InvalidState(f"the checkpoint of streaks of novel readings is damaged: {broken}") from None

    def _forget(self) -> None:
        self._begun, self._novel, self._ordinary = False, 0, 0
        self._outside.clear()

    def _event(self, kind: str, label: Label, place: tuple[int, int]) -> SiteEvent:
        most = [one for one, _ in self._outside.most_common(FEATURES_MAX)]
        features = self._contract.features
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
            outside={features[feature].name: "above" if above else "below" for feature, above in most},
            text=self._text(kind, label),
        )

    def _text(self, kind: str, label: Label) -> str:
        if kind == "novel_streak_ended":
            return f"the streak of {self._novel} novel readings has ended"
        begin = f"{self._novel} readings in a row are novel"
        if not label.reasons:
            return f"{begin}: each feature is usual, their combination is not"
        named = "; ".join(f"{self._beyond(one)} in {label.usual_in}" for one in label.reasons)
        return f"{begin}: {named}"

    def _beyond(self, reason: Reason) -> str:
        feature = self._contract.features[reason.feature]
        side = "above" if reason.above else "below"
        usual = range_text(reason.low, reason.high, feature)
        return f"{feature.name} {'not' if feature.kind == 'category' else side} its usual {usual}"
