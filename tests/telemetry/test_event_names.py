"""Every event that is logged has a constant name and a row in docs/reference/events.md, with its
level and fields."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from shoal.server_node.ingest.requests import REQUESTS
from shoal.server_node.models.base import ModelEvent

TOP = Path(__file__).parents[2]
PACKAGES = ("shoal", "producers", "client_nodes", "helper_node", "server_node", "onebox")
ROW = re.compile(
    r"^\| `(?P<event>\w+)` \| (?P<level>debug|info|warning|error) \| (?P<fields>[^|]*)\|",
    re.MULTILINE,
)


def _calls() -> Iterator[tuple[str, ast.Call]]:
    for package in PACKAGES:
        for path in sorted((TOP / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if not any(f"{name}(" in text for name in LOGGING):
                continue
            for node in ast.walk(ast.parse(text)):
                if not (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)
                    and node.func.id in LOGGING
                ):
                    continue
                if node.args and ast.unparse(node.args[0]) not in NAMED_ELSEWHERE:
                    yield f"{path.relative_to(TOP)}:{node.lineno}", node


LOGGING = ("log_event", "Report", "Applied")
"""what is called with the name, the level and the fields of an event; reports and what was applied
are logged by monitoring"""
NAMED_ELSEWHERE = ("request.event", "event.event", "report.event", "self.event")
"""events whose names are no literals where they are logged: classes of requests and of what models
do, and reports"""
DECLARED = {kind.event: kind for kind in (*REQUESTS, *ModelEvent.__subclasses__()) if kind.event}
TABLE = (TOP / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
DOCUMENTED = {row["event"]: row for row in ROW.finditer(TABLE)}


# Read by the first test that needs it: every worker collects this file, and one of them runs it.
@cache
def calls() -> dict[str, ast.Call]:
    """Every call that logs an event, by its place."""
    return dict(_calls())


def event_of(call: ast.Call) -> str:
    name = call.args[0]
    assert isinstance(name, ast.Constant), (
        "an event's name is a literal, so that it can be searched for"
    )
    assert isinstance(name.value, str)
    return name.value


def level_of(call: ast.Call) -> str:
    if len(call.args) < 2:
        return "info"
    assert isinstance(call.args[1], ast.Attribute)
    return call.args[1].attr.lower()


TABLE_KEYWORD = "fields"
"""the keyword under which a call has all its fields"""


def tables(call: ast.Call) -> list[ast.expr]:
    """What a call has beside name, level and the fields that are keywords."""
    return [
        *call.args[2:],
        *(keyword.value for keyword in call.keywords if keyword.arg == TABLE_KEYWORD),
    ]


def given_fields(call: ast.Call) -> set[str]:
    """The names of fields that a call shows: keywords, and the keys of a table."""
    keys = {
        str(ast.literal_eval(key))
        for call_table in tables(call)
        if isinstance(call_table, ast.Dict)
        for key in call_table.keys
        if key
    }
    return keys | {
        keyword.arg for keyword in call.keywords if keyword.arg not in (None, TABLE_KEYWORD)
    }


def is_open_ended(call: ast.Call) -> bool:
    """Whether a call has fields beside those that it shows."""
    whole = all(
        isinstance(call_table, ast.Dict) and None not in call_table.keys
        for call_table in tables(call)
    )
    return not whole or any(keyword.arg is None for keyword in call.keywords)


def test_events_were_found() -> None:
    assert len(calls()) > 20


def test_every_event_is_documented_with_its_level_and_fields() -> None:
    for place, call in calls().items():
        event = event_of(call)
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", event), place
        assert event in DOCUMENTED, f"docs/reference/events.md: add {event}, which {place} logs"
        assert level_of(call) == DOCUMENTED[event]["level"], place
        documented = set(re.findall(r"`(\w+)`", DOCUMENTED[event]["fields"]))
        assert given_fields(call) <= documented, place


@pytest.mark.parametrize("event", DECLARED)
def test_the_event_of_a_class_is_documented_with_its_level(event: str) -> None:
    assert DOCUMENTED[event]["level"] == logging.getLevelName(DECLARED[event].level).lower()


def test_every_documented_event_and_field_is_logged() -> None:
    logged: dict[str, set[str]] = {
        kind.event: set(kind.event_fields) for kind in REQUESTS if kind.event
    }
    logged |= {
        kind.event: {field.name for field in fields(kind)} for kind in ModelEvent.__subclasses__()
    }
    open_ended = set()
    for call in calls().values():
        logged.setdefault(event_of(call), set()).update(given_fields(call))
        if is_open_ended(call):
            open_ended.add(event_of(call))
    assert set(DOCUMENTED) == set(logged)
    for event, row in DOCUMENTED.items():
        if event not in open_ended:
            assert set(re.findall(r"`(\w+)`", row["fields"])) == logged[event], event
