"""Gaussians that arrive, drift and vanish: a stream whose true clusters are known at every moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.config.contract import Feature

LOW, HIGH = 0.0, 100.0
MARGIN = 15.0
"""centres keep this far from the bounds: five standard deviations of the widest"""
SPREAD = (1.5, 3.0)
"""standard deviation of a component, from and to"""
SEASON = 6000
"""ticks from one arrival of a component to its next, elsewhere"""
ALIVE = (1.0, 1.0, 0.75, 0.6, 0.5)
"""part of a season that each component is there; the first two never leave"""
DRIFT = 25.0
"""how far a component may drift per feature while it is there"""
LIVES_KEPT = 64


class Life(NamedTuple):
    """One component from one arrival to its end."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    spread: float


class Gaussians:
    """A `Stream` of readings (d,) in [0, 100]; all clients draw from the same components at the same tick.

    The components arrive one after the other, drift in a straight line, and vanish; a label is
    "component.generation", for example "3.0". The first two stay, and turn where a season ends.
    """

    block_readings = 250
    interval_s = 1.0
    moving = True

    def __init__(self, seed: int = 0, width: int = 2) -> None:
        names = ["x", "y", "z"] if width <= 3 else [f"x{number}" for number in range(1, width + 1)]
        self.features = tuple(Feature(name=name, low=LOW, high=HIGH) for name in names[:width])
        self._seed, self._width = seed, width
        self._lives: dict[tuple[int, int], Life] = {}

    def block(self, client: int, number: int) -> tuple[NDArray[np.float64], Sequence[str]]:
        """See `Stream.block`."""
        generator = np.random.default_rng([self._seed, 1, client, number])
        ticks = np.arange(number * self.block_readings, (number + 1) * self.block_readings)
        chosen = self._chosen(ticks, generator.random(self.block_readings))
        noise = generator.standard_normal((self.block_readings, self._width))
        readings, labels = np.empty_like(noise), []
        for place, (tick, component) in enumerate(zip(ticks.tolist(), chosen.tolist(), strict=True)):
            centre, spread, label = self.state(component, tick)
            readings[place] = centre + spread * noise[place]
            labels.append(label)
        return readings, labels

    def present(self, tick: int) -> list[int]:
        """The components that are there at `tick`."""
        return [
            component
            for component, part in enumerate(ALIVE)
            if tick >= self._arrival(component) and (tick - self._arrival(component)) % SEASON < part * SEASON
        ]

    def state(self, component: int, tick: int) -> tuple[NDArray[np.float64], float, str]:
        """Centre (d,), standard deviation and label of a component that is there at `tick`."""
        generation, age = divmod(tick - self._arrival(component), SEASON)
        if (component, generation) not in self._lives:
            if len(self._lives) > LIVES_KEPT:
                self._lives.clear()
            self._lives[component, generation] = self._life(component, generation)
        life = self._lives[component, generation]
        done = age / (ALIVE[component] * SEASON)
        return life.start + done * (life.end - life.start), life.spread, f"{component}.{generation}"

    def _chosen(self, ticks: NDArray[np.int64], draws: NDArray[np.float64]) -> NDArray[np.int64]:
        there = [self.present(tick) for tick in ticks.tolist()]
        return np.array([some[int(draw * len(some))] for some, draw in zip(there, draws.tolist(), strict=True)])

    @staticmethod
    def _arrival(component: int) -> int:
        """Two are there from the beginning, the others come a sixth of a season apart."""
        return max(0, component - 1) * SEASON // 6

    def _life(self, component: int, generation: int) -> Life:
        generator = np.random.default_rng([self._seed, 0, component, generation])
        inner = (LOW + MARGIN, HIGH - MARGIN)
        start = generator.uniform(*inner, self._width)
        spread = float(generator.uniform(*SPREAD))
        if ALIVE[component] == 1.0:
            # One that never leaves goes on from where its last season ended.
            end = self._life_start(component, generation + 1)
            return Life(start, end, float(np.mean(SPREAD)))
        end = np.clip(start + generator.uniform(-DRIFT, DRIFT, self._width), *inner)
        return Life(start, end, spread)

    def _life_start(self, component: int, generation: int) -> NDArray[np.float64]:
        generator = np.random.default_rng([self._seed, 0, component, generation])
        return generator.uniform(LOW + MARGIN, HIGH - MARGIN, self._width)
