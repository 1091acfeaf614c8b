"""Settings that extensions bring along: the keys of a transport, and the sections of sources of
readings and of sinks.

A transport is found by the scheme of an address, through the entry-point group `shoal.transports`;
a source by its name, through `shoal.sources`; a sink of cluster events by its name, through
`shoal.sinks`. What they are as a whole is in `shoal.transports.base`, `shoal.producers.source_type`
and `shoal.server_node.outputs.sinks.base`.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeGuard, TypeVar

from pydantic import create_model

from shoal.config.base import Settings
from shoal.config.contract import Contract
from shoal.errors import SettingsError
from shoal.plugins import Plugins

DEFAULT_SCHEME: Final = "sqlite"
"""scheme of an address without one, which must be a path that ends in .db"""

S = TypeVar("S", bound=Settings)


class TransportSettings(Protocol):
    """Facts that the settings need of a transport; see `shoal.transports.base.Transport`."""

    name: str
    settings: type[Settings]

    def resolve(self, location: str, file: Path) -> str:
        """The location with its relative paths made relative to the federation file."""
        ...

    def servers(self, location: str) -> frozenset[str]:
        """The servers that keep the log; none for a log on this machine."""
        ...


class Address(NamedTuple):
    """An address, taken apart."""

    transport: TransportSettings
    location: str
    """form of what follows the scheme and its colon"""


def _is_transport(found: Any) -> TypeGuard[TransportSettings]:
    settings = getattr(found, "settings", None)
    return (
        isinstance(settings, type)
        and issubclass(settings, Settings)
        and all(callable(getattr(found, method, None)) for method in ("open", "resolve", "servers"))
    )


TRANSPORTS = Plugins(
    "shoal.transports", "transport", _is_transport, "a shoal.transports.base.Transport"
)


def parse_address(address: str) -> Address:
    """The transport that an address names, and the location. Raises `SettingsError`."""
    # Two letters or more before the colon: `C:\log.db` is a path.
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", address, re.DOTALL)
    if found is None and address.endswith(".db"):
        return Address(TRANSPORTS.load(DEFAULT_SCHEME), address)
    if found is None or found[1].lower() not in TRANSPORTS.names():
        known = ", ".join(f"{name}:..." for name in TRANSPORTS.names())
        raise SettingsError(
            f"log address {address!r}: must begin with one of {known}, or be a path that ends in "
            ".db"
        )
    return Address(TRANSPORTS.load(found[1].lower()), found[2])


def resolve_address(address: str, file: Path) -> str:
    """The address with its relative paths made relative to the federation file. Raises
    `SettingsError`."""
    transport, location = parse_address(address)
    resolved = transport.resolve(location, file)
    if resolved == location:
        return address
    if address == location:
        return resolved
    return f"{transport.name}:{resolved}"


def servers_of_address(address: str) -> frozenset[str]:
    """The servers that an address names; none for a log on this machine. Raises `SettingsError`."""
    transport, location = parse_address(address)
    return transport.servers(location)


def with_transport(section: type[S], address: str) -> type[S]:
    """The section together with the keys of the transport that `address` names. Raises
    `SettingsError`."""
    added = parse_address(address).transport.settings
    if not added.model_fields:
        return section
    return _combined(section, added)


def transport_part(section: Settings, transport: TransportSettings) -> Settings:
    """The settings of the transport alone, as `section` has them; defaults for those it does not
    have."""
    own = {}
    for name in transport.settings.model_fields:
        if hasattr(section, name):
            own[name] = getattr(section, name)
    return transport.settings.model_validate(own)


@cache
def _combined(section: type[S], added: type[Settings]) -> type[S]:
    # Made once for each pair: to pydantic objects of two classes are never equal, whatever they
    # hold.
    bases: Any = (section, added)
    combined: type[S] = create_model(
        section.__name__, __base__=bases, __module__=section.__module__
    )
    return combined


class SourceSettings(Settings):
    """Base of a source's section: every field with a default and a description."""

    def check(self, contract: Contract) -> None:
        """Raises `SettingsError` for settings that do not fit the contract."""


class ReadMessage(NamedTuple):
    """A message of a sensor, read."""

    client: str
    """name by which the message calls its client; empty without one"""
    fault: str
    """reason for which it makes no reading; empty where it makes one"""
    headers: tuple[tuple[str, bytes], ...] = ()
    """headers of the reading"""
    value: bytes = b""
    """the reading, encoded"""


class SourceWithSettings(Protocol):
    """Facts that the settings need of a source; see `shoal.producers.source_type.SourceType`."""

    name: str
    settings: type[SourceSettings] | None


def _is_source(found: Any) -> TypeGuard[SourceWithSettings]:
    settings = getattr(found, "settings", None)
    has_settings = isinstance(settings, type) and issubclass(settings, SourceSettings)
    return (settings is None or has_settings) and callable(getattr(found, "run", None))


SOURCES = Plugins(
    "shoal.sources", "source of readings", _is_source, "a shoal.producers.source_type.SourceType"
)


def source_sections() -> dict[str, type[SourceSettings]]:
    """section -> its settings, for every installed source that has a section. Raises
    `SettingsError`."""
    sources = (SOURCES.load(name) for name in SOURCES.names())
    return {source.name: source.settings for source in sources if source.settings is not None}


class SinkSettings(Settings):
    """Base of the section of a sink, [events.NAME]: every field has a description. A sink with a
    section is used."""


class SinkWithSettings(Protocol):
    """Facts that the settings need of a sink; see
    `shoal.server_node.outputs.sinks.base.SinkType`."""

    name: str
    settings: type[SinkSettings]


def _is_sink(found: Any) -> TypeGuard[SinkWithSettings]:
    settings = getattr(found, "settings", None)
    has_settings = isinstance(settings, type) and issubclass(settings, SinkSettings)
    return has_settings and callable(getattr(found, "open", None))


SINKS = Plugins(
    "shoal.sinks", "sink of events", _is_sink, "a shoal.server_node.outputs.sinks.base.SinkType"
)


def sink_sections() -> dict[str, type[SinkSettings]]:
    """section -> its settings, for every installed sink. Raises `SettingsError`."""
    return {f"events.{name}": SINKS.load(name).settings for name in SINKS.names()}
