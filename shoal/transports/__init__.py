"""Transports: the contract of a log, and the logs that keep it. `open_log` is the door: an address in, a log out."""

from __future__ import annotations

import re
from collections.abc import Callable

from shoal.config.settings import BrokerSettings, LogSettings
from shoal.errors import MissingExtra, SettingsError
from shoal.transports.base import Log

__all__ = ["open_log"]


def open_log(place: str | BrokerSettings) -> Log:
    """The log at an address: `sqlite:PATH`, a plain path that ends in `.db`, or `kafka://host:port,host:port`.

    Settings say besides how to log in. Raises `SettingsError` for an address of no known kind, `MissingExtra`, and
    what the log's own opening raises.
    """
    settings = LogSettings(address=place) if isinstance(place, str) else place
    address = settings.address
    # Two letters or more before the colon: `C:\log.db` is a path.
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", address, re.DOTALL)
    if scheme is None and address.endswith(".db"):
        return _open_sqlite(address, settings)
    if scheme is None or scheme[1].lower() not in _OPENERS:
        known = ", ".join(f"{name}:..." for name in _OPENERS)
        raise SettingsError(f"log address {address!r}: must begin with one of {known}, or be a path that ends in .db")
    return _OPENERS[scheme[1].lower()](scheme[2], settings)


def _open_sqlite(path: str, _: BrokerSettings) -> Log:
    # Imported here: who uses another log does not load this one.
    from shoal.transports.sqlite.log import SqliteLog  # noqa: PLC0415

    return SqliteLog(path)


def _open_kafka(servers: str, settings: BrokerSettings) -> Log:
    try:
        from shoal.transports.kafka.log import KafkaLog  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        if missing.name != "kafka":
            raise
        raise MissingExtra("A Kafka log", "kafka") from None
    return KafkaLog(servers, settings)


_OPENERS: dict[str, Callable[[str, BrokerSettings], Log]] = {"sqlite": _open_sqlite, "kafka": _open_kafka}
