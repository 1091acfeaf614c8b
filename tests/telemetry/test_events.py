"""What a process says: one line per event whatever is in it, for people or as JSON."""

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

from shoal.telemetry.events import log_event, start_logging


def said(as_json: bool, event: str = "happened", level: int = logging.INFO, **fields: Any) -> str:
    stream = io.StringIO()
    start_logging("attic", as_json, stream=stream)
    log_event(event, level, **fields)
    return stream.getvalue()


def test_an_event_without_fields_is_one_line() -> None:
    assert re.fullmatch(r"\d\d:\d\d:\d\d attic happened\n", said(as_json=False))
    assert json.loads(said(as_json=True)).keys() == {"time", "level", "event", "process"}


def test_every_line_of_a_client_names_it_in_json() -> None:
    stream = io.StringIO()
    start_logging("attic", as_json=True, stream=stream, client="attic")
    log_event("happened", model="clusters")
    told = json.loads(stream.getvalue())
    assert (told["process"], told["client"], told["model"], told["level"]) == ("attic", "attic", "clusters", "info")


def test_fields_stand_in_the_order_given() -> None:
    line = said(False, model="clusters", sequence=3, seconds=0.123456789, at=None, new=True)
    assert line.endswith(" attic happened model=clusters sequence=3 seconds=0.123457 at=None new=True\n")


def test_what_is_loud_is_marked() -> None:
    assert " attic WARNING happened" in said(False, level=logging.WARNING)
    assert json.loads(said(True, level=logging.ERROR))["level"] == "error"


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
def test_a_value_cannot_end_itself_or_its_line(value: str, written: str) -> None:
    assert said(False, field=value).endswith(f" field={written}\n")


@given(st.text())
def test_every_event_is_exactly_one_line(value: str) -> None:
    for as_json in (False, True):
        line = said(as_json, field=value)
        assert len(line.splitlines()) == 1
        assert line.endswith("\n")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_text_in_json(value: float) -> None:
    line = said(True, field=value)
    assert json.loads(line, parse_constant=pytest.fail)["field"] == str(value)


def test_taken_names_are_refused() -> None:
    with pytest.raises(ValueError, match="process"):
        log_event("happened", process="x")
    with pytest.raises(ValueError, match="time"):
        log_event("happened", time=1)


def test_starting_twice_says_everything_once() -> None:
    first, second = io.StringIO(), io.StringIO()
    start_logging("a", as_json=False, stream=first)
    start_logging("b", as_json=False, stream=second)
    log_event("happened")
    assert first.getvalue() == ""
    assert second.getvalue().count("happened") == 1


def test_below_the_level_nothing_is_said() -> None:
    assert said(False, level=logging.DEBUG) == ""
