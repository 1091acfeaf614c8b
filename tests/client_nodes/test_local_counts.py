"""What is counted from raw readings stays on the client's site: not in what it prints at its end,
nor in metrics."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client import generate_latest

from shoal.client_nodes import client_command
from shoal.client_nodes.client_command import client
from shoal.config.sections import ClientSettings
from shoal.config.settings import load_config
from shoal.protocol.reading_faults import Rejected
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS
from shoal.runtime.logs import open_client_log
from shoal.telemetry.metrics import ClientMetrics
from tests.client_nodes.site import Site, readings
from tests.house.counting_federation import create
from tests.small_plant import plant

ODD = [["wet", 1.0], [None, 2.0], [1e9, 50.0]]
"""two rejected readings and a clipped one"""


def test_the_totals_and_the_stop_event_do_not_depend_on_what_readings_hold(tmp_path: Path) -> None:
    printed = []
    for name, values in (("usual", [[20.0, 50.0]] * 3), ("odd", ODD)):
        (tmp_path / name).mkdir()
        file = create(tmp_path / name, 60, clients=("attic",))
        config = load_config(file)
        with closing(open_client_log(config, "attic")) as log:
            for number, value in enumerate(values):
                log.publish(
                    READINGS, Reading(1e9 + 100 + number, value).encode(), headers=Reading.headers()
                )
            log.flush()
        ended = CliRunner().invoke(
            client,
            ["--config", str(file), "--name", "attic", "--until-idle", "0", "--no-wait", "--json"],
        )
        assert ended.exit_code == 0, ended.output
        lines = [json.loads(line) for line in ended.output.splitlines()]
        (stopped,) = [line for line in lines if line.get("event") == "stopped"]
        printed.append(
            (lines[-1], {name: stopped[name] for name in ("readings", "updates")}, sorted(stopped))
        )
    assert printed[0] == printed[1]
    assert printed[0][0] == {"client": "attic", "readings": 64, "updates": 2}


def metrics_of(site: Site, metrics: ClientMetrics) -> str:
    with site.node(metrics=metrics) as node:
        while node.step():
            pass
    return generate_latest(metrics.registry).decode()


def samples(text: str) -> set[str]:
    """The samples of readings, without those of time and memory."""
    return {line for line in text.splitlines() if line.startswith("shoal_readings")}


def test_metrics_that_can_be_reached_from_elsewhere_do_not_depend_on_what_readings_hold(
    tmp_path: Path,
) -> None:
    found = []
    for name, values in (("usual", [[20.0, 50.0]] * 3), ("odd", ODD)):
        site = Site(tmp_path / name, plant())
        site.add_readings([*readings(20).tolist(), *values])
        found.append(samples(metrics_of(site, ClientMetrics(on_site=False))))
    assert (
        found[0]
        == found[1]
        == {
            'shoal_readings_total{result="read"} 23.0',
            'shoal_readings_total{result="repeated"} 0.0',
        }
    )


def test_metrics_on_the_clients_site_count_what_became_of_readings(tmp_path: Path) -> None:
    site = Site(tmp_path, plant())
    site.add_readings([*readings(20).tolist(), *ODD])
    found = samples(metrics_of(site, ClientMetrics()))
    assert {
        'shoal_readings_total{result="rejected"} 2.0',
        'shoal_readings_total{result="learned"} 21.0',
        'shoal_readings_clipped_total{feature="warm"} 1.0',
        'shoal_readings_rejected_total{feature="warm",reason="not_a_number"} 1.0',
        'shoal_readings_rejected_total{feature="warm",reason="missing"} 1.0',
    } <= found


def test_readings_rejected_one_by_one_are_logged_at_once_and_their_number_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path, plant())

    def logged() -> list[tuple[str, int]]:
        found = [
            vars(record)["fields"]
            for record in caplog.records
            if record.getMessage() == "readings_rejected"
        ]
        caplog.clear()
        return [(fields["reason"], fields["readings"]) for fields in found]

    with site.node() as node, caplog.at_level("INFO", logger="shoal"):
        for number in range(30):
            site.add_readings([["wet", 1.0]], started_at=2e9 + number)
            assert node.step()
        assert logged() == [("not_a_number", 1)]
        site.add_readings([[None, 2.0]], started_at=3e9)
        assert node.step()
        assert logged() == [("missing", 1)], "another reason is news"
        site.clock.now += 60
        node.step()
        assert logged() == [("not_a_number", 29)], "though none came meanwhile"
        site.clock.now -= 3600
        site.add_readings([["wet", 1.0]], started_at=4e9)
        assert node.step()
        assert logged() == [("not_a_number", 1)], "a clock that was set back silences nothing"


def test_a_client_knows_what_it_has_rejected_and_where_the_first_was_after_a_restart(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, plant())
    site.add_readings([*readings(20).tolist(), *ODD, [1.0]])
    site.run()
    site.add_readings([["damp", 1.0], [3.0, float("inf")]])
    with site.node() as node:
        while node.step():
            pass
        assert node.rejected == [
            Rejected("not_a_number", "warm", 2, "the readings log at 0/20"),
            Rejected("infinite", "damp", 1, "the readings log at 0/25"),
            Rejected("missing", "warm", 1, "the readings log at 0/21"),
            Rejected("width", "", 1, "the readings log at 0/23"),
        ]


def test_a_client_that_ends_when_idle_and_could_use_no_reading_says_why(tmp_path: Path) -> None:
    file = create(tmp_path, 0, clients=("attic",))
    with closing(open_client_log(load_config(file), "attic")) as log:
        for row in (["4,5", 1.0], ["4,5", 1.0], [1.0, None]):
            log.publish(READINGS, Reading(1e9, row).encode(), headers=Reading.headers())
        log.flush()
    command = [sys.executable, "-m", "shoal", "client", "--config", str(file), "--name", "attic"]
    ended = subprocess.run(
        [*command, "--until-idle", "0", "--no-wait", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    *logged, error = ended.stderr.splitlines()
    [line] = [line for line in map(json.loads, logged) if line["event"] == "rejected_in_all"]
    where = "the first in the readings log at 0/"
    kinds = f"2 not_a_number in warm, {where}0; 1 missing in damp, {where}2"
    assert (line["readings"], line["kinds"]) == (3, kinds)
    assert ended.returncode == 3
    assert "2 not_a_number in warm" in error
    assert "at 0/0." in error
    assert "4,5" not in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("settings", "on_site"),
    [
        ({}, True),
        ({"metrics_host": "::1"}, True),
        ({"metrics_host": "0.0.0.0"}, False),
        ({"metrics_host": "0.0.0.0", "metrics_on_site": True}, True),
    ],
)
def test_only_a_loopback_address_or_the_setting_serves_the_counts_of_raw_readings(
    settings: dict[str, object], on_site: bool
) -> None:
    assert client_command.make_metrics(ClientSettings(**settings)).on_site == on_site
