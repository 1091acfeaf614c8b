"""Transports: the contract of a log (`base`), and the logs that keep it.

`open_log` opens the log at an address.
"""

from __future__ import annotations

from shoal.config.base import Settings
from shoal.config.extension_settings import parse_address, transport_part
from shoal.config.settings import HostSettings, LogSettings, ReadingsSettings
from shoal.errors import SettingsError
from shoal.transports.base import Log, Transport

__all__ = ["check_installed", "open_log", "open_log_to_read"]


def open_log(where: str | LogSettings | ReadingsSettings | HostSettings) -> Log:
    """The log at an address, or at the address of a settings section with its transport's keys.

    Addresses: `sqlite:PATH`, a path that ends in `.db`, `kafka://host:port,host:port`, and those of
    other installed transports. Raises `SettingsError` for an address that no transport has,
    `MissingExtra`, and what opening the log raises.
    """
    transport, location, settings = _parts_of(where)
    return transport.open(location, settings)


def open_log_to_read(where: str | LogSettings | ReadingsSettings | HostSettings) -> Log:
    """The log that `open_log` would open, for a command that publishes nothing and changes no file.

    Raises as `open_log` does.
    """
    transport, location, settings = _parts_of(where)
    return transport.open_to_read(location, settings)


def check_installed(where: str | LogSettings | ReadingsSettings | HostSettings) -> None:
    """Raise `MissingExtra` unless the log that `open_log` would open can be.

    `SettingsError` as `open_log` does.
    """
    transport, _, settings = _parts_of(where)
    transport.check_installed(settings)


def _parts_of(
    where: str | LogSettings | ReadingsSettings | HostSettings,
) -> tuple[Transport, str, Settings]:
    address = where if isinstance(where, str) else where.address
    transport, location = parse_address(address)
    if not isinstance(transport, Transport):
        raise SettingsError(
            f"transport {transport.name!r} is not a shoal.transports.base.Transport"
        )
    if isinstance(where, str):
        return transport, location, transport.settings()
    return transport, location, transport_part(where, transport)
