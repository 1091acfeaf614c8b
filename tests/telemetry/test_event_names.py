"""Every event a process can say has a name that stays, and stands in the table operators read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[2]
PACKAGES = ("shoal", "producers", "client_nodes", "server_node", "onebox")
ROW = re.compile(r"^\| `(?P<event>\w+)` \| (?P<level>debug|info|warning|error) \| (?P<fields>[^|]*)\|", re.MULTILINE)


def calls() -> Iterator[tuple[str, ast.Call]]:
    for package in PACKAGES:
        for path in sorted((HOUSE / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "log_event":
                    yield f"{path.relative_to(HOUSE)}:{node.lineno}", node


CALLS = dict(calls())
TABLE = (HOUSE / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
TOLD = {row["event"]: row for row in ROW.finditer(TABLE)}


def event_of(call: ast.Call) -> str:
    name = call.args[0]
    assert isinstance(name, ast.Constant), "an event's name is written out, so that it can be looked for"
    assert isinstance(name.value, str)
    return name.value


def level_of(call: ast.Call) -> str:
    if len(call.args) < 2:
        return "info"
    assert isinstance(call.args[1], ast.Attribute)
    return call.args[1].attr.lower()


def test_there_are_events_to_look_at() -> None:
    assert len(CALLS) > 20


@pytest.mark.parametrize("place", CALLS)
def test_an_event_has_a_steady_name_and_stands_in_the_table_with_its_level_and_fields(place: str) -> None:
    call = CALLS[place]
    event = event_of(call)
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", event)
    assert event in TOLD, f"docs/reference/events.md: add {event}"
    assert level_of(call) == TOLD[event]["level"]
    fields = set(re.findall(r"`(\w+)`", TOLD[event]["fields"]))
    assert {word.arg for word in call.keywords if word.arg is not None} <= fields


def test_the_table_lists_no_event_and_no_field_that_nobody_says() -> None:
    said: dict[str, set[str]] = {}
    open_ended = set()
    for call in CALLS.values():
        said.setdefault(event_of(call), set()).update(word.arg for word in call.keywords if word.arg is not None)
        if any(word.arg is None for word in call.keywords):
            open_ended.add(event_of(call))
    assert set(TOLD) == set(said)
    for event, row in TOLD.items():
        if event not in open_ended:
            assert set(re.findall(r"`(\w+)`", row["fields"])) == said[event], event
