"""What a kind of source is: its options, its settings and how it runs. `shoal producer` is made of the installed ones.

A source type is an object that the entry-point group `shoal.sources` names. One whose rows are numbered, so that they
can be paced and resumed, derives from `producers.pumped.PumpedSource`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from producers.report import ProducerTotals
from shoal.config.extension_settings import SourceSettings
from shoal.config.settings import Config
from shoal.errors import SettingsError

PATH = click.Path(path_type=Path)


class ProducerTask(NamedTuple):
    """What `shoal producer` was asked for."""

    config: Config
    folder: Path
    """of the clients' folders"""
    options: Mapping[str, Any]
    """the command line, by parameter name"""
    as_json: bool
    """whether progress is told as events"""


class SourceType:
    """One kind of source of readings."""

    name: str
    """the same as the name of its entry point; also of its option and its section in the federation file"""
    parameters: Sequence[click.Parameter] = ()
    """what it adds to the command line; a parameter of several source types is one object"""
    settings: type[SourceSettings] | None = None
    """its section in the federation file, if it has one"""
    shows_events = False
    """whether people see its events; False when they see its progress"""

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"--{self.name}"

    def is_chosen(self, options: Mapping[str, Any]) -> bool:
        """Whether the command line asks for this source: whether the option of its name was given."""
        return bool(options.get(self.name))

    def client(self, options: Mapping[str, Any]) -> str | None:
        """The one client it feeds; None when there may be several."""
        return None

    def gives_users(self, config: Config, options: Mapping[str, Any]) -> bool:
        """Whether its readings have user ids, without which nothing is learnt where the privacy unit is a user."""
        return False

    def federation_file(self, options: Mapping[str, Any]) -> str:
        """A federation file (TOML) that fits the source, if it can write one. Raises `SettingsError` if it cannot."""
        raise SettingsError(f"--print-federation means nothing with {self.label}; leave it out")

    def run(self, task: ProducerTask) -> ProducerTotals:
        """Feed readings until the source ends, or SIGTERM or SIGINT arrives. Raises `ShoalError`."""
        raise NotImplementedError
