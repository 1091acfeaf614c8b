"""Transports: the contract of a log, and the logs that keep it. `open_log` is the door: an address in, a log out."""

from __future__ import annotations

import re
from collections.abc import Callable

from shoal.errors import SettingsError
from shoal.transports.contract import Log

__all__ = ["open_log"]


def open_log(address: str) -> Log:
    """The log at `address`: `sqlite:PATH`, or a plain path that ends in `.db`.

    Raises `SettingsError` for an address of no known kind, and what the log's own opening raises.
    """
    # Two letters or more before the colon: `C:\log.db` is a path.
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", address, re.DOTALL)
    if scheme is None and address.endswith(".db"):
        return _open_sqlite(address)
    if scheme is None or scheme[1].lower() not in _OPENERS:
        known = ", ".join(f"{name}:..." for name in _OPENERS)
        raise SettingsError(f"log address {address!r}: must begin with one of {known}, or be a path that ends in .db")
    return _OPENERS[scheme[1].lower()](scheme[2])


def _open_sqlite(path: str) -> Log:
    # Imported here: who uses another log does not load this one.
    from shoal.transports.sqlite import SqliteLog  # noqa: PLC0415

    return SqliteLog(path)


_OPENERS: dict[str, Callable[[str], Log]] = {"sqlite": _open_sqlite}
