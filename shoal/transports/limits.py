"""Limits of every log: the checks of a declared topic and of a record that all transports share."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from shoal.errors import LogError, SettingsError
from shoal.transports.base import Headers, TopicSettings

PARTITIONS_MAX = 1024
LOG_RECORD_BYTES_MAX = 512 * 1024 * 1024
"""largest record that a topic may be declared with; SQLite stores rows of up to 1e9 bytes"""
RETAIN_BYTES_MAX = 2**62
"""most bytes of retention: they fit an integer of SQLite"""

BYTES_OR_NONE: Final = (bytes, type(None))
UNREADABLE = "unreadable"
"""header of a record that cannot be read; its value is left out"""


def check_settings(name: str, settings: TopicSettings) -> None:
    """Raises `SettingsError` for settings that no topic can have."""
    ranges = {
        "partitions": (settings.partitions, 1, PARTITIONS_MAX),
        "retain_bytes": (settings.retain_bytes, 1, RETAIN_BYTES_MAX),
        "retain_s": (settings.retain_s, 0, float("inf")),
        "record_bytes_max": (settings.record_bytes_max, 1, LOG_RECORD_BYTES_MAX),
    }
    for setting, (value, least, most) in ranges.items():
        if value is not None and not least <= value <= most:
            raise SettingsError(f"topic {name!r}: {setting} must be from {least} to {most}, not {value}")


def differences(found: TopicSettings, wanted: TopicSettings) -> str:
    """Each setting that differs, in one line; empty when there is none."""
    have = asdict(found)
    return ", ".join(
        f"{setting} is {have[setting]}, not {value}"
        for setting, value in asdict(wanted).items()
        if have[setting] != value
    )


def size_of(name: str, value: bytes | None, key: bytes | None, headers: Headers) -> int:
    """Bytes of key, value and headers. Raises `LogError` for a part that is not bytes."""
    # Not bytearray: the caller could change it before it is stored.
    size, valid = 0, isinstance(value, BYTES_OR_NONE) and isinstance(key, BYTES_OR_NONE)
    try:
        for title, content in headers:
            valid = valid and isinstance(title, str) and isinstance(content, bytes)
            size += (len(title) if title.isascii() else len(title.encode())) + len(content)
    except (AttributeError, TypeError, ValueError) as error:
        raise LogError(f"topic {name!r}: headers must be pairs of text and bytes ({type(error).__name__})") from error
    if not valid:
        raise LogError(f"topic {name!r}: key and value must be bytes or None, headers pairs of text and bytes")
    return size + len(key or b"") + len(value or b"")


def check_record(name: str, settings: TopicSettings, partition: int, key: bytes | None, size: int) -> None:
    """Raises `LogError` for a record of `size` bytes that this topic does not take."""
    if not 0 <= partition < settings.partitions:
        raise LogError(f"topic {name!r} has partitions 0 to {settings.partitions - 1}, not {partition}")
    if settings.compact and key is None:
        raise LogError(f"topic {name!r} is compacted by key; give every record a key")
    if size > settings.record_bytes_max:
        raise LogError(
            f"topic {name!r} takes records up to {settings.record_bytes_max} bytes, this one has {size}; "
            "send less at once, or declare the topic with a larger record_bytes_max"
        )
