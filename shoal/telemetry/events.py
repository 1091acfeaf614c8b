"""Structured log events: one line per event, as text for people or as JSON.

Every line has a stable event name, so that an alert can match on it, and fields: counts, names and
times, never the value of a reading. The events go through the standard library's logging.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import NamedTuple, TextIO

_RESERVED = frozenset({"time", "level", "event", "process"})


class _Client(NamedTuple):
    """The client that events are of."""

    name: str
    text: str | None
    """what the data call it, where that is not its name"""


_client_of_events: ContextVar[_Client | None] = ContextVar("client_of_events", default=None)


class EventsOfClient:
    """All events within are of this client, and have its name as a field: for a process that runs
    several.

    A class, as a host with thousands of clients enters it several times in each turn of a client,
    and a generator takes three times as long. Not to be entered within itself.
    """

    __slots__ = ("_client", "_token")

    def __init__(self, client: str, text: str | None = None) -> None:
        """`text`: what the data call it, where that is not its name: lines for people have this,
        and JSON both."""
        self._client = _Client(client, text)

    def __enter__(self) -> None:
        self._token = _client_of_events.set(self._client)

    def __exit__(self, *_: object) -> None:
        _client_of_events.reset(self._token)


def log_event(
    event: str, level: int = logging.INFO, **fields: str | int | float | bool | None
) -> None:
    """Log `event` with `fields`.

    Raises `ValueError` for a field named `time`, `level`, `event` or `process`.
    """
    reserved = _RESERVED & set(fields)
    if reserved:
        raise ValueError(f"reserved field names: {sorted(reserved)}")
    extra: dict[str, object] = {"fields": fields}
    client = _client_of_events.get()
    if client is not None:
        extra["fields"] = {"client": client.name, **fields}
        if client.text is not None and fields.get("client", client.name) == client.name:
            extra["client_text"] = client.text
    logging.getLogger("shoal").log(level, event, extra=extra)


def start_logging(
    process: str,
    as_json: bool,
    level: int = logging.INFO,
    stream: TextIO | None = None,
    client: str | None = None,
) -> None:
    """Write the events of this process to `stream` (standard error by default), one line each.

    `client` is the name of the client, where the process is one; it is added to each JSON line.
    """
    formatter = JsonFormatter(process, client) if as_json else TextFormatter(process)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formatter)
    logger = logging.getLogger("shoal")
    # In place of earlier ones: a process that starts logging twice writes each line once.
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    # A handler that another library has given the root logger would write each line once more.
    logger.propagate = False


class JsonFormatter(logging.Formatter):
    """Formats an event as a JSON object.

    It has time, level, event, process, the client where there is one, and the fields.
    """

    def __init__(self, process: str, client: str | None = None) -> None:
        super().__init__()
        self._process = process
        self._client = {} if client is None else {"client": client}

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time,
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "process": self._process,
        }
        fields = {name: _json(value) for name, value in getattr(record, "fields", {}).items()}
        client_text = getattr(record, "client_text", None)
        if client_text is not None:
            fields["client_text"] = client_text
        return json.dumps(line | self._client | fields)


class TextFormatter(logging.Formatter):
    """Formats an event as text: `08:15:02 client-1 update_published model=clusters sequence=3`."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        values = getattr(record, "fields", {})
        client_text = getattr(record, "client_text", None)
        if client_text is not None:
            values = values | {"client": client_text}
        fields = " ".join(f"{name}={_short(value)}" for name, value in values.items())
        level = ""
        if record.levelno > logging.INFO:
            level = f" {record.levelname}"
        return f"{time} {self._process}{level} {record.getMessage()} {fields}".rstrip()


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if not text.isprintable():
        # A name of a client or a topic comes from outside: control characters in it could write a
        # line of their own, or change what a terminal shows.
        return json.dumps(text)
    # A value that could be misread as the end of a field is quoted.
    if not text or set(text) & set(' "=\\'):
        return json.dumps(text, ensure_ascii=False)
    return text


def _json(value: object) -> object:
    """The value for JSON, which has no numbers for NaN and the infinities: they become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def note_experimental(models: Mapping[str, str]) -> None:
    """Log at every start which models have an algorithm that may still change.

    `models`: name of each such model -> what its algorithm says of itself
    (`ResolvedContract.experimental`).
    """
    for model, detail in models.items():
        log_event("model_experimental", logging.WARNING, model=model, detail=detail)
