"""A silent sensor is reported once, and once more when it is back."""

from __future__ import annotations

from shoal.producers.mqtt.silence import SilenceMonitor


def test_a_silence_is_reported_once() -> None:
    silence = SilenceMonitor(["a", "b"], 60.0)
    silence.start(0.0)
    silence.received("b", 30.0)
    assert silence.newly_silent(59.9) == []
    assert silence.newly_silent(60.0) == ["a"]
    assert silence.newly_silent(80.0) == []
    assert silence.newly_silent(90.0) == ["b"]


def test_the_end_of_a_silence_reports_its_length() -> None:
    silence = SilenceMonitor(["a"], 60.0)
    silence.start(0.0)
    assert silence.received("a", 10.0) is None
    assert silence.newly_silent(70.0) == ["a"]
    assert silence.received("a", 100.0) == 90.0
    assert silence.received("a", 101.0) is None
    assert silence.newly_silent(161.0) == ["a"], "the next silence is reported again"


def test_no_silence_is_counted_without_a_connection() -> None:
    silence = SilenceMonitor(["a", "b"], 60.0)
    silence.start(0.0)
    assert silence.newly_silent(60.0) == ["a", "b"]
    silence.received("b", 61.0)
    silence.start(500.0)
    assert silence.newly_silent(559.0) == [], "a is known to be silent, b had no chance"
    assert silence.newly_silent(560.0) == ["b"]
    assert silence.received("a", 600.0) == 600.0, (
        "silent since before the others could not be heard"
    )


def test_a_limit_of_zero_reports_no_silence() -> None:
    silence = SilenceMonitor(["a"], 0.0)
    silence.start(0.0)
    assert silence.newly_silent(1e9) == []
