"""How far, how fast, how long still."""

from __future__ import annotations

import builtins
import io
import json
from typing import Any

import pytest

from shoal.producers.progress import BarDisplay, LineDisplay, Meter, display_on, duration_text
from shoal.telemetry.events import start_logging
from tests.producers.running_producer import Clock


def test_without_positions_there_is_no_rate_and_no_remaining_time() -> None:
    meter = Meter()
    assert (meter.rate, meter.remaining_s) == (None, None)
    meter.note(5.0, 100, 1000)
    assert (meter.rate, meter.remaining_s) == (None, None)
    assert str(meter) == "100 of 1,000 readings"


def test_the_rate_is_that_of_the_last_seconds_and_the_rest_follows_from_it() -> None:
    meter = Meter()
    for second in range(60):
        meter.note(second, second * 10 if second < 40 else 400 + (second - 40) * 100, 4300)
    assert meter.rate == pytest.approx(100)
    assert meter.remaining_s == pytest.approx(20)
    assert str(meter) == "2,300 of 4,300 readings, 100 per second, 20 s left"


def test_without_a_total_or_a_rate_there_is_no_remaining_time() -> None:
    meter = Meter()
    meter.note(0, 0, None)
    meter.note(1, 10, None)
    assert str(meter) == "10 readings, 10 per second"
    standing = Meter()
    standing.note(0, 10, 20)
    standing.note(1, 10, 20)
    assert standing.remaining_s is None


def test_more_rows_than_were_expected_are_no_negative_time() -> None:
    meter = Meter()
    meter.note(0, 0, 5)
    meter.note(1, 10, 5)
    assert meter.remaining_s == 0


def test_noting_very_often_takes_no_more_memory_than_the_window() -> None:
    meter = Meter()
    for moment in range(100_000):
        meter.note(moment / 10, moment, None)
    assert len(meter._notes) < 110
    for _ in range(1000):
        meter.note(10_000.0, 100_000, None)
    assert len(meter._notes) < 110


def test_plain_lines_come_every_few_seconds() -> None:
    clock = Clock()
    stream = io.StringIO()
    display = LineDisplay(stream, clock, every_s=5)
    for second in range(12):
        clock.now = 1000.0 + second
        display.show(second * 2, 100)
    display.close()
    assert stream.getvalue().splitlines() == [
        "10 of 100 readings, 2 per second, 45 s left",
        "20 of 100 readings, 2 per second, 40 s left",
    ]


def test_an_event_is_logged_once_a_minute() -> None:
    clock = Clock()
    stream = io.StringIO()
    start_logging("producer", as_json=True, stream=stream)
    display = display_on(io.StringIO(), clock, as_events=True)
    for second in range(130):
        clock.now = 1000.0 + second
        display.show(second * 2, None)
    display.close()
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [
        (line["event"], line["readings"], line["total"], line["per_second"]) for line in events
    ] == [
        ("readings_stored", 120, None, 2.0),
        ("readings_stored", 240, None, 2.0),
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_and_anything_else_lines() -> None:
    pytest.importorskip("rich")
    assert isinstance(display_on(io.StringIO(), Clock()), LineDisplay)
    terminal = Terminal()
    display = display_on(terminal, Clock())
    assert isinstance(display, BarDisplay)
    display.show(3, 10)
    display.show(4, None)
    display.close()
    assert "readings" in terminal.getvalue()


def test_a_terminal_without_rich_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_rich(name: str, *arguments: Any, **named: Any) -> Any:
        if name.startswith("rich"):
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    assert isinstance(display_on(Terminal(), Clock()), LineDisplay)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (45.4, "45 s"),
        (125, "2 min 5 s"),
        (8000, "2 h 13 min"),
        (200_000, "2 d 7 h"),
        (3599.9, "1 h 0 min"),
    ],
)
def test_durations_are_shown_in_two_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
