"""A source of readings: a tide of a given period, the same for every client."""

from __future__ import annotations

import math

import click
import numpy as np

from shoal.producers.source import SourceReading, identity_of
from shoal.producers.source_type import CLIENTS, PUMP_PARAMETERS, PumpedSource


class Tides:
    """Rows numbered from 0, dealt to the clients in turn. See `shoal.producers.source.Source`."""

    total = None
    timed = True

    def __init__(self, period, clients, features):
        self.period = period
        self.clients = clients
        self.features = features
        self.identity = identity_of("tides", period, clients, features)
        self.position = 0
        self.faults = {}

    def read(self, limit):
        rows = [self._row(number) for number in range(self.position, self.position + limit)]
        self.position += limit
        return rows

    def skip(self, rows):
        self.position += rows

    def _row(self, number):
        # High for half a period, then low.
        high = math.sin(2 * math.pi * (number + 0.5) / self.period) > 0
        levels = [
            feature.low + (0.9 if high else 0.1) * (feature.high - feature.low)
            for feature in self.features
        ]
        return SourceReading(f"client-{number % self.clients + 1}", 1e9 + number, np.array(levels))


class TidesSource(PumpedSource):
    """`shoal producer --tides PERIOD`."""

    name = "tides"
    parameters = (
        click.Option(
            ["--tides"],
            type=click.IntRange(min=2),
            metavar="PERIOD",
            help="High and low, in so many rows.",
        ),
        CLIENTS,
        *PUMP_PARAMETERS,
    )

    def open(self, contract, options):
        return Tides(options["tides"], options["clients"], contract.features)


TIDES = TidesSource()
