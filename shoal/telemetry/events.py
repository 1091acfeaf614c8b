"""What a process says while it runs: one line per event, for people or as JSON, never with a reading in it.

Every line has a stable event name, so that an alert can match on it, and fields that are counts, names
and times. The standard library's logging carries it.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from datetime import UTC, datetime
from typing import TextIO

_RESERVED = frozenset({"time", "level", "event", "process"})


def log_event(event: str, level: int = logging.INFO, **fields: str | int | float | bool | None) -> None:
    """Say that `event` happened. Field names `time`, `level`, `event` and `process` are taken."""
    taken = _RESERVED & set(fields)
    if taken:
        raise ValueError(f"field names taken: {sorted(taken)}")
    logging.getLogger("shoal").log(level, event, extra={"fields": fields})


def start_logging(
    process: str, as_json: bool, level: int = logging.INFO, stream: TextIO | None = None, client: str | None = None
) -> None:
    """Send the events of this process to `stream` (standard error), one line each; `client` if it is one."""
    line = logging.StreamHandler(stream or sys.stderr)
    line.setFormatter(JsonLine(process, client) if as_json else TextLine(process))
    logger = logging.getLogger("shoal")
    logger.handlers[:] = [line]
    logger.setLevel(level)
    logger.propagate = False


class JsonLine(logging.Formatter):
    """{"time", "level", "event", "process", ...fields}, one object per line; those of a client have its "client"."""

    def __init__(self, process: str, client: str | None = None) -> None:
        super().__init__()
        self._process = process
        self._client = {} if client is None else {"client": client}

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        said = {"time": time, "level": record.levelname.lower(), "event": record.getMessage(), "process": self._process}
        fields = {name: _json(value) for name, value in getattr(record, "fields", {}).items()}
        return json.dumps(said | self._client | fields)


class TextLine(logging.Formatter):
    """`08:15:02 client-1 update_published model=clusters sequence=3`"""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        fields = " ".join(f"{name}={_short(value)}" for name, value in getattr(record, "fields", {}).items())
        loud = "" if record.levelno <= logging.INFO else f" {record.levelname}"
        return f"{time} {self._process}{loud} {record.getMessage()} {fields}".rstrip()


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if not text.isprintable():
        return json.dumps(text)
    # Whatever could be taken for the end of a value stands in quotation marks.
    return json.dumps(text, ensure_ascii=False) if not text or set(text) & set(' "=\\') else text


def _json(value: object) -> object:
    """JSON has no word for numbers that are none."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
