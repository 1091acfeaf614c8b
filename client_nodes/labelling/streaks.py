"""Streaks: runs in which one reading after the other of a device is novel.

A client may carry several devices in turn: the readings of one do not interrupt those of another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shoal.config.contract import Contract, names_without_units, range_text
from shoal.protocol.events import SiteEvent
from shoal.protocol.labels import Label, Reason
from shoal.saved_state import SavedState, state_type

FEATURES_MAX: Final = 3
"""features that an event names"""
DEVICES_MAX: Final = 256
"""devices whose streaks are remembered, those that began last"""


@state_type
class OutsideState(SavedState):
    """Readings of a streak in which one feature was above or below its usual values."""

    feature: int
    above: bool
    readings: int


@state_type
class DeviceState(SavedState):
    """The streak of one device that goes on, or may become one."""

    device: str
    begun: bool
    novel: int
    ordinary: int
    outside: list[OutsideState]


@state_type
class StreaksState(SavedState):
    """The streaks of one model that go on."""

    devices: list[DeviceState]


@dataclass
class _Run:
    """The newest readings of a device, from the first novel one on."""

    begun: bool = False
    """whether they are a streak"""
    novel: int = 0
    ordinary: int = 0
    """readings in a row that are not novel, since the newest novel one"""
    outside: Counter[tuple[int, bool]] = field(default_factory=Counter)
    """(feature, above) -> novel readings that lay outside there"""


class Streaks:
    """Follows the labels of one model in the order of the readings.

    A streak begins with the `length`-th novel reading in a row of a device, and ends with the
    `length`-th in a row that is not.
    """

    def __init__(self, contract: Contract, client: str, model: str, length: int) -> None:
        self._contract = contract
        self._client = client
        self._model = model
        self._length = length
        self._runs: dict[str, _Run] = {}
        """device -> its run, where its newest reading is novel or a streak goes on"""

    def follow(
        self,
        labels: Sequence[Label],
        places: Sequence[tuple[int, int]],
        devices: Sequence[str],
    ) -> list[SiteEvent]:
        """The events found in the labels (n,) of readings at these places, of these devices."""
        events = []
        for label, place, device in zip(labels, places, devices, strict=True):
            run = self._runs.get(device)
            if label.usual_in:
                if run is None:
                    run = self._runs[device] = _Run()
                run.novel += 1
                run.ordinary = 0
                for reason in label.reasons:
                    run.outside[reason.feature, reason.above] += 1
                if not run.begun and run.novel == self._length:
                    run.begun = True
                    events.append(self._event("novel_streak", run, label, place))
            elif run is not None and not run.begun:
                del self._runs[device]
            elif run is not None:
                run.ordinary += 1
                if run.ordinary == self._length:
                    events.append(self._event("novel_streak_ended", run, label, place))
                    del self._runs[device]
        while len(self._runs) > DEVICES_MAX:
            # A dict keeps the order of insertion: the first is the one that began first.
            del self._runs[next(iter(self._runs))]
        return events

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        devices = []
        for device, run in self._runs.items():
            outside = []
            for (feature, above), readings in run.outside.items():
                outside.append(OutsideState(feature=feature, above=above, readings=readings))
            devices.append(
                DeviceState(
                    device=device,
                    begun=run.begun,
                    novel=run.novel,
                    ordinary=run.ordinary,
                    outside=outside,
                )
            )
        return StreaksState(devices=devices).saved()

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        saved = StreaksState.read(state)
        self._runs = {}
        for device in saved.devices:
            run = _Run(device.begun, device.novel, device.ordinary)
            for outside in device.outside:
                run.outside[outside.feature, outside.above] = outside.readings
            self._runs[device.device] = run

    def _event(self, kind: str, run: _Run, label: Label, place: tuple[int, int]) -> SiteEvent:
        features = self._contract.features
        outside: dict[str, str] = {}
        for (feature, above), _ in run.outside.most_common(FEATURES_MAX):
            # The more frequent side comes first, and stays.
            outside.setdefault(features[feature].name, "above" if above else "below")
        partition, offset = place
        return SiteEvent(
            id=f"{self._model}/{partition}/{offset}/{kind}",
            kind=kind,
            federation=self._contract.federation,
            client=self._client,
            model=self._model,
            version=label.version,
            readings=run.novel,
            at=label.time,
            cluster=label.identity,
            name=label.name,
            outside=outside,
            text=self._text(kind, run, label),
        )

    def _text(self, kind: str, run: _Run, label: Label) -> str:
        if kind == "novel_streak_ended":
            return f"the streak of {run.novel} novel readings has ended"
        begin = f"{run.novel} readings in a row are novel"
        if not label.reasons:
            return f"{begin}: each feature is usual, their combination is not"
        return f"{begin}: {beyond_text(label, self._contract)}"


def beyond_text(label: Label, contract: Contract) -> str:
    """The features of a novel reading that are not usual, with the usual values of each."""
    beyond = []
    for reason in label.reasons:
        beyond.append(f"{_beyond(reason, contract)} in {label.usual_in}")
    return "; ".join(beyond)


def _beyond(reason: Reason, contract: Contract) -> str:
    feature = contract.features[reason.feature]
    side = "above" if reason.above else "below"
    # On a circle, and among categories, there is no above.
    if feature.kind == "category":
        side = "not"
    elif feature.kind == "circular":
        side = "outside"
    usual = range_text(reason.low, reason.high, feature)
    name = names_without_units(contract.features)[reason.feature]
    return f"{name} {side} its usual {usual}"
