"""Every event that is logged has a constant name and a row in docs/reference/events.md, with its level and fields."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from server_node.ingest.requests import REQUESTS

TOP = Path(__file__).parents[2]
PACKAGES = ("shoal", "producers", "client_nodes", "server_node", "onebox")
ROW = re.compile(r"^\| `(?P<event>\w+)` \| (?P<level>debug|info|warning|error) \| (?P<fields>[^|]*)\|", re.MULTILINE)


def calls() -> Iterator[tuple[str, ast.Call]]:
    for package in PACKAGES:
        for path in sorted((TOP / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "log_event"):
                    continue
                if ast.unparse(node.args[0]) != OF_A_REQUEST:
                    yield f"{path.relative_to(TOP)}:{node.lineno}", node


OF_A_REQUEST = "ingested.request.event"
"""the one event whose name is no literal where it is logged: the classes of `REQUESTS` declare it"""
REQUESTED = {kind.event: kind for kind in REQUESTS if kind.event}
CALLS = dict(calls())
TABLE = (TOP / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
DOCUMENTED = {row["event"]: row for row in ROW.finditer(TABLE)}


def event_of(call: ast.Call) -> str:
    name = call.args[0]
    assert isinstance(name, ast.Constant), "an event's name is a literal, so that it can be searched for"
    assert isinstance(name.value, str)
    return name.value


def level_of(call: ast.Call) -> str:
    if len(call.args) < 2:
        return "info"
    assert isinstance(call.args[1], ast.Attribute)
    return call.args[1].attr.lower()


def test_events_were_found() -> None:
    assert len(CALLS) > 20


@pytest.mark.parametrize("place", CALLS)
def test_an_event_is_documented_with_its_level_and_fields(place: str) -> None:
    call = CALLS[place]
    event = event_of(call)
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", event)
    assert event in DOCUMENTED, f"docs/reference/events.md: add {event}"
    assert level_of(call) == DOCUMENTED[event]["level"]
    fields = set(re.findall(r"`(\w+)`", DOCUMENTED[event]["fields"]))
    assert {keyword.arg for keyword in call.keywords if keyword.arg is not None} <= fields


@pytest.mark.parametrize("event", REQUESTED)
def test_the_event_of_a_request_is_documented_with_its_level(event: str) -> None:
    assert DOCUMENTED[event]["level"] == logging.getLevelName(REQUESTED[event].level).lower()


def test_every_documented_event_and_field_is_logged() -> None:
    logged: dict[str, set[str]] = {event: set(kind.event_fields) for event, kind in REQUESTED.items()}
    open_ended = set()
    for call in CALLS.values():
        logged.setdefault(event_of(call), set()).update(
            keyword.arg for keyword in call.keywords if keyword.arg is not None
        )
        if any(keyword.arg is None for keyword in call.keywords):
            open_ended.add(event_of(call))
    assert set(DOCUMENTED) == set(logged)
    for event, row in DOCUMENTED.items():
        if event not in open_ended:
            assert set(re.findall(r"`(\w+)`", row["fields"])) == logged[event], event
