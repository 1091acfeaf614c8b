"""JSON of the types of the report and of the API, and the schema of that JSON."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pydantic import TypeAdapter


@cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """What makes JSON of a type. Made when it is first needed: each takes some milliseconds."""
    return TypeAdapter(kind)


def plain(value: Any) -> Any:
    """A value of a type as dictionaries, lists, texts and numbers."""
    kind: Any = type(value)
    return adapter_of(kind).dump_python(value, mode="json")


def as_json(value: Any) -> str:
    """Plain values as JSON in one line, without spaces."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
