"""A small plant: a pump fills a tank, a heater warms it, the works draw it down; five correlated sensors, with faults.

One block is one working cycle of half an hour: fill (10 min), heat (12 min), draw (8 min). Where a cycle begins and
ends is drawn from (seed, client, cycle), so cycles join without a jump and any cycle can be made without the others.
The equations are the usual ones of a first course: head proportional to level, pressure drop to flow squared,
warming exponential, vibration proportional to the square of the speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.config.contract import Feature

FILL_S, HEAT_S, DRAW_S = 600, 720, 480
CYCLE_S = FILL_S + HEAT_S + DRAW_S
FAULTS = ("stuck", "spike", "drift", "leak", "cavitation")
FAULT_PROBABILITY = 0.25
"""per cycle; the first cycle of every client is sound"""
FAULT_S = (90, 420)
"""how long one lasts, from and to"""
TEMPERATURE, PRESSURE, FLOW, VIBRATION, LEVEL = range(5)
NOISE = (0.15, 0.02, 0.4, 0.06, 0.25)
"""standard deviation of each sensor, in its unit"""

Rows = NDArray[np.float64]


class Cycle(NamedTuple):
    """What one cycle is set to."""

    low: float
    """level at its beginning, %"""
    full: float
    """level when filled, %"""
    cold: float
    """temperature when filled, °C"""
    hot: float
    """temperature when heated, °C"""
    warm: float
    """temperature at its beginning, °C"""
    speed: float
    """of the pump while it fills, 0 to 1"""


class Plant:
    """A `Stream`; each client is a plant of its own, a little different. Labels: fill, heat, draw or a fault."""

    features: tuple[Feature, ...] = (
        Feature(name="temperature", unit="°C", low=0.0, high=100.0),
        Feature(name="pressure", unit="bar", low=0.0, high=6.0),
        Feature(name="flow", unit="L/min", low=0.0, high=80.0),
        Feature(name="vibration", unit="mm/s", low=0.0, high=20.0),
        Feature(name="level", unit="%", low=0.0, high=100.0),
    )
    block_readings = CYCLE_S
    interval_s = 1.0
    moving = False

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def block(self, client: int, number: int) -> tuple[Rows, Sequence[str]]:
        """See `Stream.block`."""
        generator = np.random.default_rng([self._seed, 1, client, number])
        readings = self._sound(self._cycle(client, number), self._cycle(client, number + 1))
        labels = ["fill"] * FILL_S + ["heat"] * HEAT_S + ["draw"] * DRAW_S
        noise = generator.standard_normal(readings.shape) * NOISE
        fault = FAULTS[generator.integers(len(FAULTS))]
        seconds = int(generator.integers(*FAULT_S))
        begin = int(generator.integers(0, CYCLE_S - seconds))
        readings += noise
        if number > 0 and generator.random() < FAULT_PROBABILITY:
            touched = break_down(readings, fault, begin, seconds, generator)
            for place in touched:
                labels[place] = fault
        bounds = np.array([(feature.low, feature.high) for feature in self.features])
        return np.clip(readings, bounds[:, 0], bounds[:, 1]), labels

    def _cycle(self, client: int, number: int) -> Cycle:
        own = np.random.default_rng([self._seed, 2, client]).uniform(-1, 1, 3)
        drawn = np.random.default_rng([self._seed, 0, client, number]).uniform(-1, 1, 6)
        return Cycle(
            low=22 + 4 * drawn[0],
            full=82 + 4 * own[0] + 3 * drawn[1],
            cold=24 + 2 * drawn[2],
            hot=66 + 4 * own[1] + 2 * drawn[3],
            warm=48 + 3 * drawn[4],
            speed=0.85 + 0.06 * own[2] + 0.04 * drawn[5],
        )

    @staticmethod
    def _sound(now: Cycle, then: Cycle) -> Rows:
        """(CYCLE_S, 5): the sensors without noise and faults."""
        level = np.concatenate(
            [
                np.linspace(now.low, now.full, FILL_S, endpoint=False),
                np.full(HEAT_S, now.full),
                np.linspace(now.full, then.low, DRAW_S, endpoint=False),
            ]
        )
        temperature = np.concatenate(
            [
                _towards(now.warm, now.cold, FILL_S, 3.0),
                _towards(now.cold, now.hot, HEAT_S, 2.0),
                _towards(now.hot, then.warm, DRAW_S, 1.0),
            ]
        )
        phases = [FILL_S, HEAT_S, DRAW_S]
        speed = _settled(np.repeat([now.speed, 0.35, 0.6], phases))
        flow = _settled(np.repeat([52 * now.speed, 9.0, 30.0], phases))
        pressure = 0.4 + 0.012 * level + 3.2 * speed**2 - 4e-4 * flow**2
        vibration = 0.8 + 4.5 * speed**2 + 0.01 * flow
        return np.stack([temperature, pressure, flow, vibration, level], axis=1)


def break_down(readings: Rows, fault: str, begin: int, seconds: int, generator: np.random.Generator) -> Sequence[int]:
    """Put `fault` into readings (n, 5), in place, for `seconds` from place `begin` on; the places that it touches."""
    hurt = readings[begin : begin + seconds]
    ramp = np.linspace(0, 1, len(hurt))
    sensor = int(generator.integers(5))
    places: Sequence[int] = range(begin, begin + len(hurt))
    if fault == "stuck":
        hurt[:, sensor] = hurt[0, sensor]
    elif fault == "spike":
        spiked = np.flatnonzero(generator.random(len(hurt)) < 0.05)
        hurt[spiked, sensor] *= generator.choice([0.1, 3.0], len(spiked))
        places = [begin + int(place) for place in spiked]
    elif fault == "drift":
        hurt[:, sensor] += ramp * 0.35 * (1 + np.abs(hurt[:, sensor]))
    elif fault == "leak":
        # The tank runs low and is refilled when the leak is mended; the head goes with it.
        lost = 30 * np.minimum(1, 4 * np.minimum(ramp, 1 - ramp))
        hurt[:, LEVEL] -= lost
        hurt[:, PRESSURE] -= 0.012 * lost + 0.3 * (lost > 0)
    elif fault == "cavitation":
        hurt[:, VIBRATION] += 4 + 2.5 * np.abs(generator.standard_normal(len(hurt)))
        hurt[:, PRESSURE] *= 0.7 + 0.1 * generator.standard_normal(len(hurt))
        hurt[:, FLOW] *= 0.75 + 0.08 * generator.standard_normal(len(hurt))
    return places


def _towards(start: float, end: float, seconds: int, speed: float) -> Rows:
    """From start to end, first fast, then slowly; it arrives."""
    done = np.arange(seconds) / seconds
    way: Rows = (1 - np.exp(-speed * done)) / (1 - np.exp(-speed))
    return start + (end - start) * way


def _settled(steps: Rows, seconds: float = 20.0) -> Rows:
    """The steps as a pump follows them: each is approached with a time constant. The last leads to the first."""
    follows = np.empty_like(steps)
    value = steps[-1]
    keep = float(np.exp(-1 / seconds))
    for place, wanted in enumerate(steps.tolist()):
        value = wanted + (value - wanted) * keep
        follows[place] = value
    return follows
