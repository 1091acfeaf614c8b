"""Streams whose states go and come back, in the unit cube, with the true state of each reading."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Final

import numpy as np

from benchmarks.privacy.sensors import OFFICE_BOUNDS
from shoal.kernels.arrays import Floats, Ints

NO_STATE: Final = -1
"""of readings between two states, as those of dusk"""
WINDOW: Final = 400
"""readings of one window of a client"""
SPREAD: Final = 0.035
"""standard deviation of a state of blobs in each feature"""
OFFICE_LIT: Final = 350.0
OFFICE_DARK: Final = 20.0
OFFICE_STUFFY: Final = 1057.0
"""lux and ppm that part the states of the office. It is dark and stuffy in the last 900 readings,
and hardly ever before: a state that is new there"""
OFFICE_STUFFY_FROM: Final = 19_500
READINGS_A_DAY: Final = 1400
DAYS: Final = 28
DAY_OFF_FIRST: Final = 14
DAY_OFF_LAST: Final = 20


@dataclass(frozen=True)
class Stream:
    """Readings in the order of time, and what is to be found in them."""

    name: str
    rows: Floats
    """(n, d)"""
    truth: Ints
    """(n,) state of each"""
    probes: Mapping[int, Floats]
    """state -> (m, d) places where it is"""
    back: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """state -> readings between which it is absent; it is the same state afterwards"""
    new: Mapping[int, int] = field(default_factory=dict)
    """state -> the reading from which on it is there first"""
    merges: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """two states -> the reading from which on readings fill the valley between them"""

    @property
    def compared_at(self) -> int:
        """Readings after which results at several delays are compared: before a state that begins
        last, which a longer delay finds later."""
        return min(self.new.values(), default=len(self.rows))


def office(seed: int) -> Stream:
    """Sixteen days of a real office, the same for every seed."""
    packed = files("shoal.onebox.demo").joinpath("occupancy.csv.gz").read_bytes()
    records = list(csv.DictReader(gzip.decompress(packed).decode("utf-8").splitlines()))
    values = np.array([[float(record[name]) for name in OFFICE_BOUNDS] for record in records])
    low, high = np.array(list(OFFICE_BOUNDS.values()), dtype=np.float64).T
    rows = np.clip((values - low) / (high - low), 0.0, 1.0)
    light = values[:, 2]
    is_dark = light < OFFICE_DARK
    is_stuffy = is_dark & (values[:, 3] >= OFFICE_STUFFY)
    is_late = np.arange(len(rows)) >= OFFICE_STUFFY_FROM
    truth = np.full(len(rows), NO_STATE)
    truth[is_dark & ~is_stuffy] = 0
    truth[light >= OFFICE_LIT] = 1
    truth[is_stuffy & is_late] = 2
    probes = {state: rows[truth == state][::60] for state in range(3)}
    return Stream("office", rows, truth, probes, {1: (8000, 12_000)}, {2: OFFICE_STUFFY_FROM})


class _Blobs:
    """States that are blobs, in spells of windows in which some of them are there."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng([20261, seed])
        self.k = int(self.generator.integers(2, 6))
        self.d = int(self.generator.choice([2, 4, 8]))
        self.away_windows = int(self.generator.integers(10, 81))
        self.spell_windows = int(self.generator.integers(25, 45))
        self.centres = self._centres()
        share = np.maximum(self.generator.dirichlet(np.full(self.k, 6.0)), 0.12)
        # The state that is new later has the share of the one that goes.
        self.share = np.append(share, share[-1])
        away = 1 if self.k < 4 else 2
        self.states = list(range(self.k))
        self.rest = self.states[:-away]
        self.away = self.states[-away:]
        distance = np.linalg.norm(self.centres[self.rest] - self.centres[self.k - 1], axis=1)
        self.near = self.rest[int(distance.argmin())]
        """the state that is nearest to the last one that goes"""
        self._rows: list[Floats] = []
        self._truth: list[Ints] = []

    @property
    def readings(self) -> int:
        return sum(len(rows) for rows in self._rows)

    def spell(
        self,
        windows: int,
        states: Sequence[int],
        between: Callable[[int], Floats] | None = None,
        part: float = 0.0,
    ) -> None:
        """Readings of some states; `part` of them lie `between`, in no state."""
        n = windows * WINDOW
        share = self.share[list(states)]
        truth = self.generator.choice(list(states), p=share / share.sum(), size=n)
        rows = self.centres[truth] + self.generator.normal(0.0, SPREAD, (n, self.d))
        if between is not None:
            is_between = self.generator.random(n) < part
            rows[is_between] = between(int(is_between.sum()))
            truth[is_between] = NO_STATE
        self._rows.append(np.clip(rows, 0.0, 1.0))
        self._truth.append(truth)

    def daylight(self, n: int) -> Floats:
        """(n, d) on a bent path from the near state to the last, the fewer the farther: half of the
        features go first."""
        along = np.minimum(self.generator.exponential(0.45, n), 1.15)[:, None]
        start = self.centres[self.near]
        way = self.centres[self.k - 1] - start
        is_first = np.arange(self.d) < max(1, self.d // 2)
        first = np.minimum(2.0 * along, 1.1)
        second = np.maximum(2.0 * along - 1.0, 0.0)
        rows = start + np.where(is_first, first, second) * way
        return np.asarray(rows + self.generator.normal(0.0, 0.7 * SPREAD, (n, self.d)))

    def filling(self, n: int) -> Floats:
        """(n, d) evenly between the near state and the last one, as dense as these."""
        along = self.generator.uniform(-0.1, 1.1, n)[:, None]
        ends = self.centres[self.k - 1] * (1.0 - along) + self.centres[self.near] * along
        return np.asarray(ends + self.generator.normal(0.0, SPREAD, (n, self.d)))

    def stream(
        self,
        name: str,
        back: Mapping[int, tuple[int, int]],
        new: Mapping[int, int],
        merges: Mapping[tuple[int, int], int],
    ) -> Stream:
        probes = {}
        for state in [*self.states, *new]:
            places = self.generator.normal(0.0, 0.6 * SPREAD, (60, self.d))
            probes[state] = np.clip(self.centres[state] + places, 0.0, 1.0)
        rows = np.concatenate(self._rows)
        return Stream(name, rows, np.concatenate(self._truth), probes, back, new, merges)

    def _centres(self) -> Floats:
        """(k + 1, d) that a feature parts by 7.5 standard deviations, each two; fewer where they
        have no room."""
        while True:
            for _ in range(20_000):
                centres = self.generator.uniform(0.12, 0.88, (self.k + 1, self.d))
                differences = np.abs(centres[:, None] - centres)
                distance = np.linalg.norm(differences, axis=2) + 9.0 * np.eye(self.k + 1)
                by_feature = differences.max(axis=2) + 9.0 * np.eye(self.k + 1)
                if distance.min() >= 9.0 * SPREAD and by_feature.min() >= 7.5 * SPREAD:
                    return np.asarray(centres)
            self.k -= 1


def bent(seed: int) -> Stream:
    """Blobs, of which some are away twice; meanwhile daylight lies between two."""
    blobs = _Blobs(seed)
    blobs.spell(blobs.spell_windows, blobs.states)
    back: dict[int, tuple[int, int]] = {}
    for _ in range(2):
        start = blobs.readings
        blobs.spell(blobs.away_windows, blobs.rest, blobs.daylight, 0.3)
        back = back or dict.fromkeys(blobs.away, (start, blobs.readings))
        blobs.spell(blobs.spell_windows, blobs.states)
    return blobs.stream("bent", back, {}, {})


def new(seed: int) -> Stream:
    """Blobs, of which some go, and another comes where none was."""
    blobs = _Blobs(seed)
    blobs.spell(blobs.spell_windows, blobs.states)
    blobs.spell(blobs.away_windows, blobs.rest)
    begins = blobs.readings
    blobs.spell(blobs.spell_windows, [*blobs.rest, blobs.k])
    return blobs.stream("new", {}, {blobs.k: begins}, {})


def merge(seed: int) -> Stream:
    """Blobs, the valley between two of which fills."""
    blobs = _Blobs(seed)
    blobs.spell(12, blobs.states)
    begins = blobs.readings
    pair = [blobs.k - 1, blobs.near]
    part = float(blobs.share[pair].sum() / blobs.share[: blobs.k].sum())
    rest = [state for state in blobs.states if state not in pair] or pair
    blobs.spell(150, rest, blobs.filling, 1.0 if rest == pair else part)
    return blobs.stream("merge", {}, {}, {(pair[0], pair[1]): begins})


def day(seed: int) -> Stream:
    """Four weeks of a room with nights, work, weekends, a week off, daylight and slow features."""
    return _room(seed, has_new=False)


def daynew(seed: int) -> Stream:
    """The same, with another state of work in the early mornings of the last week."""
    return _room(seed, has_new=True)


def _room(seed: int, has_new: bool) -> Stream:
    generator = np.random.default_rng([515, seed])
    k = int(generator.integers(2, 4))
    light = [0.0, generator.uniform(0.22, 0.5), generator.uniform(0.6, 0.85), 0.97]
    slow = generator.uniform(30, 120), generator.uniform(100, 400)
    gas_of = [0.08, generator.uniform(0.25, 0.5), generator.uniform(0.2, 0.7), 0.9]
    heat_of = [0.35, generator.uniform(0.42, 0.6), generator.uniform(0.42, 0.7), 0.3]
    sun_most = generator.uniform(0.15, 0.45) * light[1] / 0.35 * 0.8
    begin = int(READINGS_A_DAY * generator.uniform(0.3, 0.36))
    end = int(READINGS_A_DAY * generator.uniform(0.68, 0.75))
    gas = gas_of[0]
    heat = heat_of[0]
    wet = 0.4
    rows = []
    truth = []
    for number in range(DAYS):
        is_off = number % 7 >= 5 or DAY_OFF_FIRST <= number <= DAY_OFF_LAST
        cloud = generator.beta(2, 2)
        moved = int(generator.normal(0, 25))
        for minute in range(READINGS_A_DAY):
            state = _state_at(minute, begin + moved, end + moved, k, is_off)
            if has_new and number > DAY_OFF_LAST and not is_off and minute < begin - 60:
                state = 3
            turn = 2.0 * math.pi * minute / READINGS_A_DAY
            sun = max(0.0, -math.cos(turn)) * sun_most * cloud
            level = light[state] + sun * (1.0 if state == 0 else 0.15)
            noise = 0.004 + 0.025 * (state > 0) + 0.1 * sun
            gas += (gas_of[state] - gas) / slow[0] + generator.normal(0, 0.004)
            heat += (heat_of[state] - heat) / slow[1] + generator.normal(0, 0.001)
            heat += 0.0003 * math.sin(turn)
            wet += generator.normal(0, 0.004) - (wet - 0.4) / 300
            lit = abs(level + generator.normal(0, noise))
            rows.append((lit, gas, heat + generator.normal(0, 0.004), wet))
            is_daylight = state == 0 and sun > 0.15 * light[1]
            truth.append(NO_STATE if is_daylight else state)
    return _room_stream(np.array(rows), np.array(truth), k, has_new)


def _state_at(minute: int, begin: int, end: int, k: int, is_off: bool) -> int:
    """Night, work from `begin` to `end`, and in some rooms a second kind of work after it."""
    if is_off or minute < begin:
        return 0
    if minute < end:
        return 1
    return 2 if k == 3 and minute < int(0.9 * READINGS_A_DAY) else 0


def _room_stream(rows: Floats, truth: Ints, k: int, has_new: bool) -> Stream:
    unit = np.clip(rows, 0.0, 1.0)
    probes = {}
    for state in sorted(set(truth.tolist()) - {NO_STATE}):
        own = unit[truth == state]
        probes[state] = own[:: max(1, len(own) // 80)]
    absent = (DAY_OFF_FIRST * READINGS_A_DAY, (DAY_OFF_LAST + 1) * READINGS_A_DAY)
    back = dict.fromkeys(range(1, k), absent)
    if not has_new:
        return Stream("day", unit, truth, probes, back)
    return Stream("daynew", unit, truth, probes, back, {3: absent[1]})
