"""The configuration and alerts of Prometheus: valid, tested in both ways, and documented."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent.parent
PROMETHEUS = TOP / "deploy" / "prometheus"
ALERTS = re.findall(r"- alert: (\w+)", (PROMETHEUS / "rules.yml").read_text(encoding="utf-8"))
TESTED = (PROMETHEUS / "rules_test.yml").read_text(encoding="utf-8")


def run(*command: str) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("name", ["prometheus.yml", "standalone.yml"])
def test_promtool_accepts_the_configuration(promtool: str, name: str, tmp_path: Path) -> None:
    shutil.copytree(PROMETHEUS, tmp_path / "prometheus")
    (tmp_path / "token").touch()  # in a container it is there once the server has started
    file = tmp_path / "prometheus" / name
    file.write_text(
        re.sub(r"/\S+/page/token", str(tmp_path / "token"), file.read_text(encoding="utf-8"))
    )
    assert f"{len(ALERTS)} rules found" in run(promtool, "check", "config", str(file))


def test_promtool_accepts_the_rules(promtool: str) -> None:
    run(promtool, "check", "rules", str(PROMETHEUS / "rules.yml"))


def test_the_unit_tests_of_the_alerts_pass(promtool: str) -> None:
    run(promtool, "test", "rules", str(PROMETHEUS / "rules_test.yml"))


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_is_tested_firing_and_not_firing(alert: str) -> None:
    cases = re.findall(
        rf"alertname: {alert}\b[^\n]*\n?(?:\s+eval_time: \w+\n\s+exp_alerts:\n\s+- exp_labels)?",
        TESTED,
    )
    assert any("exp_labels" in case for case in cases), "firing"
    # One that fires for one series and not for its neighbours counts as both.
    assert "exp_alerts: []" in "".join(cases) or alert == "ShoalEpsilonOverLimit", "not firing"


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_has_a_description_and_a_runbook(alert: str) -> None:
    rules = (PROMETHEUS / "rules.yml").read_text(encoding="utf-8")
    rule = rules.split(f"alert: {alert}\n")[1].split("- alert:")[0]
    for key in ("severity:", "summary:", "description:"):
        assert key in rule
    (url,) = re.findall(r'runbook_url: "(.+)"', rule)
    # `make docs` puts the page there; tests/test_site.py looks for the section in what it builds.
    assert url == f"{{{{ $externalLabels.docs }}}}/how-to/alerts.html#{alert.lower()}"
    assert f"## {alert}\n" in (TOP / "docs" / "how-to" / "alerts.md").read_text(encoding="utf-8")


def test_every_documented_alert_exists() -> None:
    page = (TOP / "docs" / "how-to" / "alerts.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^## (Shoal\w+)$", page, re.MULTILINE)) == set(ALERTS)
