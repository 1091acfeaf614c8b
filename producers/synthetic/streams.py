"""Synthetic streams as sources: endless and seeded, each with a federation file that fits; the source type `synthetic`.

A stream is made in blocks, each from its own generator keyed by (seed, client, block), so any reading can be made
without those before it, and `skip` costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import click
import numpy as np
from numpy.typing import NDArray

from producers.files.split import CLIENTS_MAX, numbered
from producers.source import Source, SourceReading, identity_of
from producers.source_type import CLIENTS, PUMP_PARAMETERS, SEED, PumpedSource
from producers.synthetic.gaussians import Gaussians
from producers.synthetic.plant import Plant
from shoal.config.contract import Contract, Feature
from shoal.errors import SettingsError

BEGINNING_S = 1767225600.0
"""event time of the first readings, 2026-01-01 00:00 UTC: fixed, so that a seed means the same stream on any day"""


COUNTS_EPSILON_PER_READING = 4.0
WINDOW_READINGS = 400
"""in a printed federation file, as in `shoal check --example`"""
DECAY_MOVING = 0.9
"""in a printed federation file, of a stream whose clusters move: counts halve with every 2,600 readings"""


class Stream(Protocol):
    """One synthetic stream; `features` are those of a contract."""

    features: tuple[Feature, ...]
    interval_s: float
    """seconds between two readings of one client"""
    block_readings: int
    moving: bool
    """whether its clusters move, so that a model has to forget where they were"""

    def block(self, client: int, number: int) -> tuple[NDArray[np.float64], Sequence[str]]:
        """Readings (block_readings, d) of client 0, 1, ... and the true label of each."""
        ...


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
    values: NDArray[np.float64]
    labels: Sequence[str]


class Synthetic:
    """A `Source` of a stream: one reading of each client per interval, in turn; `wanted` selects features by name."""

    def __init__(self, name: str, clients: int = 1, seed: int = 0, wanted: Sequence[str] | None = None) -> None:
        if not 1 <= clients <= CLIENTS_MAX:
            raise SettingsError(f"{clients} clients; one producer feeds 1 to {CLIENTS_MAX}, start several for more")
        self._stream = stream_of(name, seed)
        self._clients = numbered(clients)
        there = [feature.name for feature in self._stream.features]
        wanted = there if wanted is None else list(wanted)
        if missing := [feature for feature in wanted if feature not in there]:
            raise SettingsError(
                f"synthetic stream {name!r} has no feature {missing[0]!r}; it has {', '.join(there)} "
                f"(`shoal producer --synthetic {name} --print-federation` prints a file that fits)"
            )
        self._picked = [there.index(feature) for feature in wanted]
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
        readings = [self._reading(number) for number in range(self._position, self._position + limit)]
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
        f"# A federation for `shoal producer --synthetic {name}`, written by its --print-federation.",
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
        pairs = [f"name = {json.dumps(feature.name)}", f"unit = {json.dumps(feature.unit, ensure_ascii=False)}"]
        lines += ["", "[[features]]", *pairs, f"low = {feature.low}", f"high = {feature.high}"]
    return "\n".join(lines) + "\n"


class SyntheticSource(PumpedSource):
    """Makes readings instead of replaying files."""

    name = "synthetic"
    default_speed = "1x"
    parameters = (
        click.Option(["--synthetic"], type=click.Choice(NAMES), help="Make readings instead of replaying files."),
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
        return Synthetic(options["synthetic"], options["clients"], options["seed"], names)


SYNTHETIC = SyntheticSource()
