"""JSON of the types of the report and of the API, and the schema of that JSON."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from pydantic import TypeAdapter


@contextmanager
def _collector_off() -> Iterator[None]:
    """The garbage collector is off meanwhile, if it was on.

    pydantic parses the source of a type for the docstrings of its fields. In Python 3.11.7 and
    others a parse ends with SystemError when another one runs within it (CPython issue 106905):
    the collector may run a finalizer at any allocation, and one that formats a traceback, as
    asyncio's does for a task that failed unseen, parses as well.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """What makes JSON of a type. Made when it is first needed: each takes some milliseconds."""
    with _collector_off():
        return TypeAdapter(kind)


def plain(value: Any) -> Any:
    """A value of a type as dictionaries, lists, texts and numbers."""
    kind: Any = type(value)
    return adapter_of(kind).dump_python(value, mode="json")


def as_json(value: Any) -> str:
    """Plain values as JSON in one line, without spaces."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
