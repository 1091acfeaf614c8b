"""The source type `synthetic`: endless made-up streams, each with a federation file that fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from producers.pumped import CLIENTS, PUMP_PARAMETERS, SEED, PumpedSource
from producers.source import Source
from producers.synthetic.streams import NAMES, Synthetic, federation_file
from shoal.config.contract import Contract


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
