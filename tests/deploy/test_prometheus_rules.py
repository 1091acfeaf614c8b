"""What Prometheus is given: its own checker finds no fault, each alert fires when it should and says what to do."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent.parent.parent
PROMETHEUS = HOUSE / "deploy" / "prometheus"
ALERTS = re.findall(r"- alert: (\w+)", (PROMETHEUS / "rules.yml").read_text(encoding="utf-8"))
TESTED = (PROMETHEUS / "rules_test.yml").read_text(encoding="utf-8")


def checked(*words: str) -> str:
    told = subprocess.run(words, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


@pytest.mark.parametrize("name", ["prometheus.yml", "standalone.yml"])
def test_prometheus_finds_no_fault_with_its_configuration(promtool: str, name: str) -> None:
    assert f"{len(ALERTS)} rules found" in checked(promtool, "check", "config", str(PROMETHEUS / name))


def test_prometheus_finds_no_fault_with_the_rules(promtool: str) -> None:
    checked(promtool, "check", "rules", str(PROMETHEUS / "rules.yml"))


def test_each_alert_fires_when_it_should_and_only_then(promtool: str) -> None:
    checked(promtool, "test", "rules", str(PROMETHEUS / "rules_test.yml"))


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_is_tried_both_ways(alert: str) -> None:
    tried = re.findall(rf"alertname: {alert}\b[^\n]*\n?(?:\s+eval_time: \w+\n\s+exp_alerts:\n\s+- exp_labels)?", TESTED)
    assert any("exp_labels" in case for case in tried), "firing"
    # What fires for one series and not for its neighbours is tried both ways, too.
    assert "exp_alerts: []" in "".join(tried) or alert == "ShoalEpsilonOverLimit", "not firing"


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_what_to_do_and_where_to_read_on(alert: str) -> None:
    rules = (PROMETHEUS / "rules.yml").read_text(encoding="utf-8")
    own = rules.split(f"alert: {alert}\n")[1].split("- alert:")[0]
    for word in ("severity:", "summary:", "description:"):
        assert word in own
    page, _, section = own.split("runbook_url: ")[1].split()[0].partition("#")
    assert section == alert.lower()
    assert f"## {alert}\n" in (HOUSE / page).read_text(encoding="utf-8")


def test_operators_find_no_alert_that_is_not_there() -> None:
    page = (HOUSE / "docs" / "how-to" / "alerts.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^## (Shoal\w+)$", page, re.MULTILINE)) == set(ALERTS)
