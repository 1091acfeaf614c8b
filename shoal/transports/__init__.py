"""Transports: the contract of a log (`base`), and the logs that keep it. `open_log` opens the log at an address."""

from __future__ import annotations

from shoal.config.settings import LogSettings, ReadingsSettings
from shoal.config.transports import parse_address, transport_part
from shoal.errors import SettingsError
from shoal.transports.base import Log, Transport

__all__ = ["open_log"]


def open_log(where: str | LogSettings | ReadingsSettings) -> Log:
    """The log at an address, or at the address of a settings section with its transport's keys.

    Addresses: `sqlite:PATH`, a path that ends in `.db`, `kafka://host:port,host:port`, and those of other installed
    transports. Raises `SettingsError` for an address that no transport has, `MissingExtra`, and what opening the log
    raises.
    """
    transport, location = parse_address(where if isinstance(where, str) else where.address)
    if not isinstance(transport, Transport):
        raise SettingsError(f"transport {transport.name!r} is not a shoal.transports.base.Transport")
    settings = transport.settings() if isinstance(where, str) else transport_part(where, transport)
    return transport.open(location, settings)
