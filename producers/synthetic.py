"""Synthetic streams as sources: endless and seeded, each with a federation file that fits; the
source type `synthetic`.

A stream is made in blocks, each from its own generator keyed by (seed, client, block), so any
reading can be made without those before it, and `skip` costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import click
import numpy as np

from shoal.config.contract import Contract, Feature
from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats, Ints
from shoal.producers.files.split import CLIENTS_MAX, numbered
from shoal.producers.source import Source, SourceReading, identity_of
from shoal.producers.source_type import CLIENTS, PUMP_PARAMETERS, SEED, PumpedSource

BEGINNING_S = 1767225600.0
"""event time of the first readings, 2026-01-01 00:00 UTC: fixed, so that a seed means the same
stream on any day"""


COUNTS_EPSILON_PER_READING = 4.0
WINDOW_READINGS = 400
"""readings of a window in a printed federation file, as in `shoal check --example`"""
DECAY_MOVING = 0.9
"""decay in the printed federation file of a stream whose clusters move: counts halve with every
2,600 readings"""


class Stream(Protocol):
    """One synthetic stream; `features` are those of a contract."""

    features: tuple[Feature, ...]
    interval_s: float
    """seconds between two readings of one client"""
    block_readings: int
    moving: bool
    """whether its clusters move, so that a model has to forget where they were"""

    def block(self, client: int, number: int) -> tuple[Floats, Sequence[str]]:
        """Readings (block_readings, d) of client 0, 1, ... and the true label of each."""
        ...


# Gaussians.

LOW = 0.0
HIGH = 100.0
MARGIN = 15.0
"""centres keep this far from the bounds: five standard deviations of the widest"""
SPREAD = (1.5, 3.0)
"""standard deviation of a component, from and to"""
SEASON = 6000
"""ticks from one arrival of a component to its next, elsewhere"""
ALIVE = (1.0, 1.0, 0.75, 0.6, 0.5)
"""part of a season that each component is there; the first two never leave"""
DRIFT = 25.0
"""drift of a component per feature at most, while it is there"""
LIVES_KEPT = 64


class Life(NamedTuple):
    """One component from one arrival to its end."""

    start: Floats
    end: Floats
    spread: float


class Gaussians:
    """A `Stream` of Gaussians that arrive, drift and vanish: its true clusters are always known.

    Readings (d,) are in [0, 100]; all clients draw from the same components at the same tick. The
    components arrive one after the other, drift in a straight line, and vanish; a label is
    "component.generation", for example "3.0". The first two stay, and turn where a season ends.
    """

    block_readings = 250
    interval_s = 1.0
    moving = True

    def __init__(self, seed: int = 0, width: int = 2) -> None:
        names = ["x", "y", "z"]
        if width > 3:
            names = [f"x{number}" for number in range(1, width + 1)]
        self.features = tuple(Feature(name=name, low=LOW, high=HIGH) for name in names[:width])
        self._seed = seed
        self._width = width
        self._lives: dict[tuple[int, int], Life] = {}

    def block(self, client: int, number: int) -> tuple[Floats, Sequence[str]]:
        """See `Stream.block`."""
        # The second number keeps these draws apart from those of the lives, which have 0.
        generator = np.random.default_rng([self._seed, 1, client, number])
        ticks = np.arange(number * self.block_readings, (number + 1) * self.block_readings)
        chosen = self._chosen(ticks, generator.random(self.block_readings))
        noise = generator.standard_normal((self.block_readings, self._width))
        readings = np.empty_like(noise)
        labels = []
        for place, (tick, component) in enumerate(
            zip(ticks.tolist(), chosen.tolist(), strict=True)
        ):
            centre, spread, label = self.state(component, tick)
            readings[place] = centre + spread * noise[place]
            labels.append(label)
        return readings, labels

    def present(self, tick: int) -> list[int]:
        """The components that are there at `tick`."""
        components = []
        for component, part in enumerate(ALIVE):
            age = tick - self._arrival(component)
            if age >= 0 and age % SEASON < part * SEASON:
                components.append(component)
        return components

    def state(self, component: int, tick: int) -> tuple[Floats, float, str]:
        """Centre (d,), standard deviation and label of a component that is there at `tick`."""
        generation, age = divmod(tick - self._arrival(component), SEASON)
        if (component, generation) not in self._lives:
            # They are made again from the seed, so forgetting them costs time alone.
            if len(self._lives) > LIVES_KEPT:
                self._lives.clear()
            self._lives[component, generation] = self._life(component, generation)
        life = self._lives[component, generation]
        done = age / (ALIVE[component] * SEASON)
        return life.start + done * (life.end - life.start), life.spread, f"{component}.{generation}"

    def _chosen(self, ticks: Ints, draws: Floats) -> Ints:
        chosen = []
        for tick, draw in zip(ticks.tolist(), draws.tolist(), strict=True):
            present = self.present(tick)
            chosen.append(present[int(draw * len(present))])
        return np.array(chosen)

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

    def _life_start(self, component: int, generation: int) -> Floats:
        generator = np.random.default_rng([self._seed, 0, component, generation])
        return generator.uniform(LOW + MARGIN, HIGH - MARGIN, self._width)


# A plant.

FILL_S = 600
HEAT_S = 720
DRAW_S = 480
CYCLE_S = FILL_S + HEAT_S + DRAW_S
FAULTS = ("stuck", "spike", "drift", "leak", "cavitation")
FAULT_PROBABILITY = 0.25
"""probability of a fault in a cycle; the first cycle of every client is sound"""
FAULT_S = (90, 420)
"""shortest and longest fault in seconds"""
TEMPERATURE, PRESSURE, FLOW, VIBRATION, LEVEL = range(5)
NOISE = (0.15, 0.02, 0.4, 0.06, 0.25)
"""standard deviation of each sensor, in its unit"""


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
    """speed of the pump while it fills, 0 to 1"""


class Plant:
    """A `Stream` of a small plant with faults: a pump fills a tank, a heater warms it, it is drawn.

    One block is one working cycle of half an hour: fill (10 min), heat (12 min), draw (8 min).
    Where a cycle begins and ends is drawn from (seed, client, cycle), so cycles join without a
    jump, and any cycle can be made without the others. The five sensors follow the equations of a
    first course: head proportional to level, pressure drop to flow squared, warming exponential,
    vibration proportional to the square of the speed. Each client is a plant of its own, a little
    different. Labels: fill, heat, draw or a fault.
    """

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

    def block(self, client: int, number: int) -> tuple[Floats, Sequence[str]]:
        """See `Stream.block`."""
        # The second number keeps these draws apart from those of cycles, 0, and of clients, 2.
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
    def _sound(now: Cycle, then: Cycle) -> Floats:
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


def break_down(
    readings: Floats, fault: str, begin: int, seconds: int, generator: np.random.Generator
) -> Sequence[int]:
    """Put `fault` into readings (n, 5), in place, for `seconds` from place `begin` on.

    Returns the places that it touches.
    """
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


def _towards(start: float, end: float, seconds: int, speed: float) -> Floats:
    """A way from start to end, first fast, then slowly; it arrives."""
    done = np.arange(seconds) / seconds
    way: Floats = (1 - np.exp(-speed * done)) / (1 - np.exp(-speed))
    return start + (end - start) * way


def _settled(steps: Floats, seconds: float = 20.0) -> Floats:
    """The steps as a pump follows them, each with a time constant; the last leads to the first."""
    follows = np.empty_like(steps)
    value = steps[-1]
    keep = float(np.exp(-1 / seconds))
    for place, wanted in enumerate(steps.tolist()):
        value = wanted + (value - wanted) * keep
        follows[place] = value
    return follows


# The streams as a source.


def stream_of(name: str, seed: int) -> Stream:
    """The stream of that name. Raises `SettingsError`."""
    if name == "gaussians":
        return Gaussians(seed)
    if name == "plant":
        return Plant(seed)
    raise SettingsError(f"synthetic stream {name!r}: there are {' and '.join(NAMES)}")


NAMES = ("gaussians", "plant")


class Block(NamedTuple):
    """The current block of one client."""

    number: int
    values: Floats
    labels: Sequence[str]


class Synthetic:
    """A `Source` of a stream: one reading of each client per interval, in turn.

    `wanted` selects features by name.
    """

    def __init__(
        self, name: str, clients: int = 1, seed: int = 0, wanted: Sequence[str] | None = None
    ) -> None:
        if not 1 <= clients <= CLIENTS_MAX:
            raise SettingsError(
                f"{clients} clients; one producer feeds 1 to {CLIENTS_MAX}, start several for more"
            )
        self._stream = stream_of(name, seed)
        self._clients = numbered(clients)
        features = [feature.name for feature in self._stream.features]
        wanted = features if wanted is None else list(wanted)
        for feature in wanted:
            if feature not in features:
                raise SettingsError(
                    f"synthetic stream {name!r} has no feature {feature!r}; it has"
                    f" {', '.join(features)} (`shoal producer --synthetic {name}"
                    " --print-federation` prints a file that fits)"
                )
        self._picked = [features.index(feature) for feature in wanted]
        self._blocks: list[Block | None] = [None] * clients
        self._position = 0
        self.identity = identity_of("synthetic 1", name, clients, seed, tuple(wanted))
        self.total: int | None = None
        self.timed = True
        self.faults: Mapping[str, int] = {}

    @property
    def position(self) -> int:
        """See `Source.position`."""
        return self._position

    def read(self, limit: int) -> list[SourceReading]:
        """See `Source.read`; always `limit` readings."""
        readings = [
            self._reading(number) for number in range(self._position, self._position + limit)
        ]
        self._position += limit
        return readings

    def skip(self, readings: int) -> None:
        """See `Source.skip`; at once."""
        self._position += readings

    def _reading(self, number: int) -> SourceReading:
        tick, client = divmod(number, len(self._clients))
        wanted, place = divmod(tick, self._stream.block_readings)
        block = self._blocks[client]
        if block is None or block.number != wanted:
            values, labels = self._stream.block(client, wanted)
            block = Block(wanted, np.ascontiguousarray(values[:, self._picked]), labels)
            self._blocks[client] = block
        time = BEGINNING_S + tick * self._stream.interval_s
        return SourceReading(self._clients[client], time, block.values[place], block.labels[place])


def federation_file(name: str, seed: int = 0) -> str:
    """A federation file (TOML) for the synthetic stream `name`, ready to use."""
    stream = stream_of(name, seed)
    lines = [
        f"# A federation for `shoal producer --synthetic {name}`,"
        " written by its --print-federation.",
        "",
        "[federation]",
        f'name = "{name}"',
        "",
        "[privacy]",
        'mode = "formal"',
        f"counts_epsilon = {COUNTS_EPSILON_PER_READING}",
        f"window_readings = {WINDOW_READINGS}",
        "",
        "[[models]]",
        'name = "clusters"',
        'algorithm = "density_tree"',
    ]
    if stream.moving:
        lines += [f"options = {{ decay = {DECAY_MOVING} }}  # clusters of this stream move"]
    for feature in stream.features:
        pairs = [
            f"name = {json.dumps(feature.name)}",
            f"unit = {json.dumps(feature.unit, ensure_ascii=False)}",
        ]
        lines += ["", "[[features]]", *pairs, f"low = {feature.low}", f"high = {feature.high}"]
    return "\n".join(lines) + "\n"


class SyntheticSource(PumpedSource):
    """Makes readings instead of replaying files."""

    name = "synthetic"
    default_speed = "1x"
    parameters = (
        click.Option(
            ["--synthetic"],
            type=click.Choice(NAMES),
            help="Make readings instead of replaying files.",
        ),
        CLIENTS,
        SEED,
        *PUMP_PARAMETERS,
    )

    def federation_file(self, options: Mapping[str, Any]) -> str:
        """See `SourceType.federation_file`."""
        return federation_file(options["synthetic"], options["seed"])

    def open(self, contract: Contract, options: Mapping[str, Any]) -> Source:
        """See `PumpedSource.open`."""
        names = [feature.name for feature in contract.features]
        return Synthetic(options["synthetic"], options["clients"] or 1, options["seed"], names)


SYNTHETIC = SyntheticSource()
