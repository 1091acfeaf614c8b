"""Row 14: clipped readings, stuck and failed rounds, and repeats are told by a warning, a metric
and an alert each."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from shoal.client_nodes.monitoring import WINDOW_READINGS, ClippingWatch
from shoal.config.contract import Model
from shoal.telemetry.metrics import ClientMetrics, ServerMetrics
from tests.client_nodes.site import Site, readings
from tests.hostile.attacked_rounds import AttackedRounds, step_all
from tests.small_plant import plant

RULES = (Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yml").read_text(
    encoding="utf-8"
)


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, object]]:
    return [record.__dict__["fields"] for record in caplog.records if record.getMessage() == name]


@pytest.mark.parametrize(("algorithm", "percent"), [("fcac", 99), ("density_tree", 2)])
def test_a_feature_whose_readings_are_clipped_is_named_with_the_share(
    algorithm: str, percent: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    models = (Model(name="clusters", algorithm=algorithm),)
    site = Site(tmp_path, plant().model_copy(update={"models": models}))
    metrics = ClientMetrics()
    values = np.clip(readings(3 * WINDOW_READINGS), 0, 45)
    values[np.arange(len(values)) % 100 < percent, 0] = 1e6
    site.add_readings(values)
    with caplog.at_level(logging.WARNING, "shoal"), site.node(metrics=metrics) as node:
        while node.step():
            pass
    (told,) = events(caplog, "readings_clipped")
    assert told["feature"] == "warm"
    assert told["share"] == pytest.approx(percent / 100, abs=0.001)
    assert told["first"] == "the readings log at 0/0"
    assert "change low and high" in str(told["remedy"])
    assert (
        metrics.readings_clipped.labels(feature="warm")._value.get() == percent * len(values) // 100
    )
    assert metrics.readings_clipped.labels(feature="damp")._value.get() == 0
    assert "1000000" not in caplog.text


def test_usual_clipping_is_no_warning_and_a_lasting_one_is_told_once() -> None:
    watch = ClippingWatch(2)
    assert watch.add(0, ()) == []
    assert watch.add(WINDOW_READINGS, (WINDOW_READINGS // 100, 0)) == []
    assert watch.add(WINDOW_READINGS, (0, WINDOW_READINGS // 2), {1: (0, 7)}) == [
        (1, 0.5, WINDOW_READINGS, (0, 7))
    ]
    assert watch.add(WINDOW_READINGS, (0, WINDOW_READINGS // 2)) == []
    assert watch.add(WINDOW_READINGS, ()) == []
    many = WINDOW_READINGS - 1
    assert watch.add(many, (0, many), {1: (0, 3)}) == [], "not enough readings yet"
    # The place is the first of the readings looked at, not of those that came last or before them.
    assert watch.add(1, (0, 1), {1: (0, 9)}) == [(1, 1.0, WINDOW_READINGS, (0, 3))]


def test_a_round_that_stays_open_shows_since_when(tmp_path: Path) -> None:
    site = AttackedRounds(tmp_path)
    metrics = ServerMetrics()
    opened = metrics.round_opened_at.labels(model="heaps")._value
    with site.server(metrics=metrics) as node:
        step_all(node)
        began = site.clock.now
        assert opened.get() == began
        for _ in range(3):
            site.clock.now += 10
            step_all(node)
        assert site.newest().version > 1, "it has been opened again"
        assert opened.get() == began
        site.run_round(node)
        assert opened.get() == site.clock.now
        while site.newest().round_request is not None:
            site.run_round(node)
        assert opened.get() == 0


@pytest.mark.parametrize(
    ("alert", "metric"),
    [
        ("ShoalReadingsClipped", "shoal_readings_clipped_total"),
        ("ShoalRoundStuck", "shoal_round_opened_timestamp_seconds"),
        ("ShoalRoundsFailed", "shoal_rounds_failed_total"),
        ("ShoalUpdatesRepeated", 'shoal_updates_total{result="repeated"}'),
        ("ShoalUpdateConflict", 'reason="conflict"'),
        ("ShoalQuotaExceeded", 'reason=~"quota|client"'),
        ("ShoalRecordFailed", 'reason="failed"'),
    ],
)
def test_each_has_an_alert(alert: str, metric: str) -> None:
    _, _, rule = RULES.partition(f"- alert: {alert}\n")
    assert metric in rule.partition("- alert:")[0]


def test_the_share_that_is_told_is_no_reading() -> None:
    watch = ClippingWatch(1)
    (told,) = watch.add(WINDOW_READINGS, np.array([WINDOW_READINGS]).tolist())
    assert told == (0, 1.0, WINDOW_READINGS, None)
