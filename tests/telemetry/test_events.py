"""Log events: one line each whatever is in them, as text or as JSON."""

from __future__ import annotations

import io
import json
import logging
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.telemetry.events import EventsOfClient, log_event, start_logging


def logged(as_json: bool, event: str = "happened", level: int = logging.INFO, **fields: Any) -> str:
    stream = io.StringIO()
    start_logging("attic", as_json, stream=stream)
    log_event(event, level, **fields)
    return stream.getvalue()


def test_an_event_without_fields_is_one_line() -> None:
    assert re.fullmatch(r"\d\d:\d\d:\d\d attic happened\n", logged(as_json=False))
    assert json.loads(logged(as_json=True)).keys() == {"time", "level", "event", "process"}


def test_every_line_of_a_client_names_it_in_json() -> None:
    stream = io.StringIO()
    start_logging("attic", as_json=True, stream=stream, client="attic")
    log_event("happened", model="clusters")
    line = json.loads(stream.getvalue())
    assert (line["process"], line["client"], line["model"], line["level"]) == (
        "attic",
        "attic",
        "clusters",
        "info",
    )


def test_lines_for_people_call_a_client_as_the_data_do_and_json_has_both_names() -> None:
    lines = {}
    for as_json in (False, True):
        stream = io.StringIO()
        start_logging("run", as_json, stream=stream)
        with EventsOfClient("werk-sud-1f2e", "Werk Süd"), EventsOfClient("hall"):
            log_event("happened")
        with EventsOfClient("werk-sud-1f2e", "Werk Süd"):
            log_event("happened", model="clusters")
            log_event("happened", client="cellar")
        lines[as_json] = stream.getvalue().splitlines()
    endings = [line.partition("happened ")[2] for line in lines[False]]
    assert endings == ["client=hall", 'client="Werk Süd" model=clusters', "client=cellar"]
    named = [json.loads(line) for line in lines[True]]
    assert [line["client"] for line in named] == ["hall", "werk-sud-1f2e", "cellar"]
    assert [line.get("client_text") for line in named] == [None, "Werk Süd", None]


def test_fields_are_in_the_order_given() -> None:
    line = logged(False, model="clusters", sequence=3, seconds=0.123456789, at=None, new=True)
    assert line.endswith(
        " attic happened model=clusters sequence=3 seconds=0.123457 at=None new=True\n"
    )


def test_warnings_and_errors_show_their_level() -> None:
    assert " attic WARNING happened" in logged(False, level=logging.WARNING)
    assert json.loads(logged(True, level=logging.ERROR))["level"] == "error"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('a"b', r'"a\"b"'),
        ("a\nforged event=x", r'"a\nforged event=x"'),
        ("a\nb", r'"a\nb"'),
        ("\x1b[31mred", r'"\u001b[31mred"'),
        ("plain/0/7", "plain/0/7"),
        ("°C", "°C"),
    ],
)
def test_no_value_can_forge_a_field_or_a_line(value: str, written: str) -> None:
    assert logged(False, field=value).endswith(f" field={written}\n")


@given(st.text())
def test_every_event_is_exactly_one_line(value: str) -> None:
    for as_json in (False, True):
        line = logged(as_json, field=value)
        assert len(line.splitlines()) == 1
        assert line.endswith("\n")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_text_in_json(value: float) -> None:
    line = logged(True, field=value)
    assert json.loads(line, parse_constant=pytest.fail)["field"] == str(value)


def test_reserved_field_names_are_rejected() -> None:
    with pytest.raises(ValueError, match="process"):
        log_event("happened", process="x")
    with pytest.raises(ValueError, match="time"):
        log_event("happened", time=1)


def test_starting_twice_logs_everything_once() -> None:
    first = io.StringIO()
    second = io.StringIO()
    start_logging("a", as_json=False, stream=first)
    start_logging("b", as_json=False, stream=second)
    log_event("happened")
    assert first.getvalue() == ""
    assert second.getvalue().count("happened") == 1


def test_below_the_level_nothing_is_logged() -> None:
    assert logged(False, level=logging.DEBUG) == ""
