"""`shoal run`: files through a whole federation in one process."""

from __future__ import annotations

import json
import logging
import math
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from shoal.algorithms.view import ClusteringView
from shoal.config.contract import parse_contract
from shoal.config.resolved import resolve
from shoal.config.sections import ServerSettings
from shoal.config.settings import load_config
from shoal.errors import InvalidData, SettingsError, ShoalError
from shoal.onebox.demo.demo import seed_clients
from shoal.onebox.federation import OneBox
from shoal.onebox.run_command import _lines, cluster_lines, open_run, run_command
from shoal.producers.files.source import PLAIN_REPLAY
from shoal.producers.init_command import init_command
from shoal.protocol.history import pairs
from shoal.server_node.history.store import HISTORY_FILE, HistoryReader
from shoal.server_node.outputs.events_command import events
from shoal.server_node.report.clusters import clusters_of
from shoal.server_node.report.lineage.clusters import Cluster, Lineage
from tests.house.small_federation import CLIENTS, clock, create_federation

ROWS = 4000
FEW = 60


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_SERVER_PORT", "0")
    return tmp_path


def two_states(path: Path, word: str = "", rows: int = ROWS) -> None:
    """Two rooms that are in one of two states, with decimal commas; with `word`, a file of which no
    row is usable."""
    generator = np.random.default_rng(11)
    values = generator.normal(
        np.where(np.arange(rows) // 100 % 2, 21.0, 35.0)[:, None], 1.0, (rows, 2)
    )
    lines = [
        f"{14 + n // 1440}.03.2024 {n // 60 % 24:02d}:{n % 60:02d};{'Büro' if n % 2 else 'Flur'};"
        + ";".join(f"{word}{value:.2f}".replace(".", ",") for value in row)
        for n, row in enumerate(values)
    ]
    path.write_text("\n".join(["Zeit;Raum;innen;außen", *lines]) + "\n", encoding="cp1252")


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(run_command, arguments)
    if result.exception and not isinstance(result.exception, ShoalError):
        raise result.exception
    return result


def test_two_commands_lead_from_a_file_to_its_clusters_and_a_third_adds_nothing(
    folder: Path,
) -> None:
    two_states(folder / "a.csv")
    assert CliRunner().invoke(init_command, ["a.csv", "--public"]).exit_code == 0
    summary = json.loads(run("a.toml", "a.csv", "--no-wait", "--json").stdout)
    assert (summary["learnt"], summary["rejected"], summary["clients"]) == (ROWS, 0, 2)
    clusters = summary["models"]["clusters"]
    shares = [cluster["share"] for cluster in clusters]
    assert shares[0] == pytest.approx(shares[1], abs=0.05)
    assert sum(shares) == pytest.approx(1.0, abs=0.001), "the first readings are counted too"
    assert len({cluster["name"] for cluster in clusters}) == 2, "no two clusters have one name"
    text = run("a.toml", "a.csv", "--no-wait").stdout
    assert f"{ROWS:,} readings of 2 clients." in text
    assert "that was known when they came" not in text
    assert "clusters: 2 clusters" in text
    assert f"  Shares are of {ROWS:,} readings, " in text


def test_clipped_readings_are_told_with_their_client_the_first_line_and_the_remedy(
    folder: Path,
) -> None:
    two_states(folder / "a.csv", rows=200)
    assert CliRunner().invoke(init_command, ["a.csv", "--public"]).exit_code == 0
    rows = (folder / "a.csv").read_text(encoding="cp1252").splitlines()
    # Even lines are of Flur, odd ones of Büro.
    for line in (42, 44, 47, 150):
        time, room, _, outside = rows[line - 1].split(";")
        rows[line - 1] = f"{time};{room};4711,25;{outside}"
    (folder / "b.csv").write_text("\n".join(rows) + "\n", encoding="cp1252")
    printed = run("a.toml", "b.csv", "--no-wait").output
    assert "innen (2%; 75% of them of client Flur; the first in b.csv, line 42)." in printed
    assert "4711" not in printed


def test_the_page_takes_a_free_port_where_the_usual_one_is_in_use_and_none_was_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_states(folder / "a.csv", rows=200)
    assert CliRunner().invoke(init_command, ["a.csv", "--public"]).exit_code == 0
    monkeypatch.delenv("SHOAL_SERVER_PORT")
    usual = ServerSettings.model_fields["port"].default
    with socket.socket() as other:
        # Another process may have it already, which is as good.
        with suppress(OSError):
            other.bind(("127.0.0.1", usual))
            other.listen()
        summary = json.loads(run("a.toml", "a.csv", "--no-wait", "--json").stdout)
        assert summary["page"].startswith("http://127.0.0.1:")
        assert summary["page"] != f"http://127.0.0.1:{usual}/"
        monkeypatch.setenv("SHOAL_SERVER_PORT", str(usual))
        refused = run("a.toml", "a.csv", "--again", "--no-wait", "--json").exception
    assert isinstance(refused, SettingsError)
    assert f"port {usual}" in str(refused)


def test_parts_of_a_cluster_that_are_not_confirmed_yet_are_listed_as_that_cluster() -> None:
    contract = parse_contract(
        {
            "federation": {"name": "a"},
            "features": [{"name": "warm", "low": 0, "high": 50}],
            "privacy": {"mode": "off"},
            "models": [{"name": "heaps", "algorithm": "fcac"}],
        }
    )
    nodes = np.array([[0.1], [0.2], [0.8]])
    view = ClusteringView.from_nodes(
        nodes, [6.0, 1.0, 3.0], [0, 1, 2], centres=nodes, centre_mass=[6.0, 1.0, 3.0]
    )
    clusters = {identity: Cluster(identity, mass=mass) for identity, mass in enumerate((7.0, 3.0))}
    lineage = Lineage(clusters=clusters, of_number={0: 0, 1: 0, 2: 1})
    found = clusters_of(view, lineage, resolve(contract))
    assert [(cluster.identity, cluster.nodes) for cluster in found] == [(0, 2), (1, 1)]
    assert len({cluster.label for cluster in found}) == 2


def test_the_same_readings_under_another_name_are_learnt_only_when_asked_for(folder: Path) -> None:
    two_states(folder / "a.csv", rows=FEW)
    assert CliRunner().invoke(init_command, ["a.csv", "--public"]).exit_code == 0
    arguments = ["--no-wait", "--json"]
    assert json.loads(run("a.toml", "a.csv", *arguments).stdout)["learnt"] == FEW
    (folder / "a.csv").rename(folder / "b.csv")
    result = run("a.toml", "b.csv", *arguments)
    assert isinstance(result.exception, SettingsError)
    assert "b.csv begins as a.csv does" in str(result.exception)
    assert "fed to buro-" in str(result.exception)
    assert json.loads(run("a.toml", "b.csv", *arguments, "--again").stdout)["learnt"] == 2 * FEW


def listed(*arguments: str) -> tuple[str, str]:
    """What `shoal events list` prints, and what it says of an empty list."""
    result = CliRunner().invoke(events, ["list", "--config", "a.toml", *arguments])
    assert result.exit_code == 0
    return result.stdout, result.stderr


def test_an_empty_list_of_events_says_why_it_is_empty(folder: Path) -> None:
    two_states(folder / "a.csv")
    assert CliRunner().invoke(init_command, ["a.csv", "--public"]).exit_code == 0
    (folder / "a").mkdir()
    assert listed() == ("", "No events: no client has published an update.\n")
    assert run("a.toml", "a.csv", "--no-wait", "--json").exit_code == 0
    found, why = listed()
    assert found.count("is new") == 2
    assert why == ""
    found, why = listed("--client", "Flur")
    assert found == ""
    assert "labelled readings of flur-" in why or "of flur was no streak" in why


def test_the_page_and_the_summary_of_a_run_show_whether_its_source_has_ended(folder: Path) -> None:
    two_states(folder / "a.csv")
    assert CliRunner().invoke(init_command, ["a.csv", "--public"]).exit_code == 0
    options = {**PLAIN_REPLAY, "files": (folder / "a.csv",), "as_json": True}
    with open_run(load_config(folder / "a.toml"), options) as one:
        one.step()
        one.post_status()
        assert not one.board.status.ended
        assert f"Stopped after 2,000 readings of {ROWS:,};" in "\n".join(_lines(one, 1.0, {}))
        while not one.ended:
            one.pump.step()
            for client in one.box.clients.values():
                client.step()
        one.post_status()
        assert one.board.status.lag_records > 0
        assert not one.board.status.ended, "all readings are published, and not in the models yet"
        while not one.finished:
            one.step()
        one.post_status()
        assert one.board.status.ended
        assert not any("Stopped" in line for line in _lines(one, 1.0, {}))


def test_a_file_that_is_replayed_with_privacy_has_its_own_days(folder: Path) -> None:
    two_states(folder / "a.csv")
    assert CliRunner().invoke(init_command, ["a.csv", "--private"]).exit_code == 0
    assert run("a.toml", "a.csv", "--no-wait", "--json").exit_code == 0
    config = load_config(folder / "a.toml")
    reader = HistoryReader(config.server.folder / HISTORY_FILE)
    readings = {}
    for counted in reader.each_bin("clusters", 21600, 0, math.inf):
        readings[counted.start] = sum(number for _, number in pairs(counted.clusters))
    begin = int(datetime(2024, 3, 14, tzinfo=UTC).timestamp())
    # Of 2 clients that have a reading every other minute, for 4000 minutes.
    assert sorted(readings) == [begin + 21600 * number for number in range(len(readings))]
    waiting = ROWS - sum(readings.values())
    assert 0 <= waiting < 2 * config.contract.privacy.window_readings
    for number in range(1, 8):
        assert readings[begin + 21600 * number] == pytest.approx(360, abs=72)


@pytest.mark.parametrize("privacy", ["--private", "--public"])
def test_no_cluster_is_born_from_readings_that_were_all_rejected(
    folder: Path, privacy: str
) -> None:
    two_states(folder / "a.csv")
    assert CliRunner().invoke(init_command, ["a.csv", privacy]).exit_code == 0
    two_states(folder / "b.csv", word="~")
    result = run("a.toml", "b.csv", "--no-wait", "--json")
    summary = json.loads(result.stdout)
    assert (summary["learnt"], summary["rejected"]) == (0, ROWS)
    assert summary["models"] == {"clusters": []}
    listed = CliRunner().invoke(events, ["list", "--config", "a.toml"])
    assert listed.exit_code == 0
    assert "is new" not in listed.output


def test_the_first_rejected_place_is_the_first_of_all_also_after_a_run_that_was_stopped(
    folder: Path,
) -> None:
    two_states(folder / "a.csv")
    assert CliRunner().invoke(init_command, ["a.csv", "--public"]).exit_code == 0
    lines = (folder / "a.csv").read_text(encoding="cp1252").splitlines()
    for place in (7, 1500, ROWS - 3):
        lines[place] = lines[place].rsplit(";", 1)[0] + ";warm"
    (folder / "a.csv").write_text("\n".join(lines) + "\n", encoding="cp1252")
    with open_run(
        load_config(folder / "a.toml"),
        {**PLAIN_REPLAY, "files": (folder / "a.csv",), "as_json": True},
    ) as first:
        while not first.total("rejected"):
            first.step()
        assert first.pump.position < ROWS - 3, "the later ones are left to the second run"
    text = run("a.toml", "a.csv", "--no-wait").stdout
    assert "Rejected: 3 readings: 3 not_a_number in außen" in text
    assert "a.csv, line 8." in text


def test_a_file_of_which_nothing_is_usable_ends_with_the_likely_cause(folder: Path) -> None:
    two_states(folder / "a.csv")
    assert CliRunner().invoke(init_command, ["a.csv", "--public"]).exit_code == 0
    two_states(folder / "b.csv", word="~")
    result = run("a.toml", "b.csv", "--no-wait")
    assert isinstance(result.exception, InvalidData)
    assert f"none of the {ROWS:,} readings could be used" in str(result.exception)
    assert "not_a_number" in str(result.exception)
    assert "~" not in str(result.exception) + result.output


def test_the_file_of_one_client_waits_for_no_second_one(folder: Path) -> None:
    lines = [f"{value:.2f}" for value in np.random.default_rng(2).normal(20.0, 1.0, 100)]
    (folder / "a.csv").write_text("\n".join(["warm", *lines]) + "\n", encoding="utf-8")
    text = """
[federation]
name = "room"
[[features]]
name = "warm"
low = 0
high = 50
[privacy]
mode = "off"
[[models]]
name = "clusters"
algorithm = "fcac"
[log]
address = "sqlite:federation.db"
[client]
folder = "clients"
publish_readings = 50
[server]
folder = "server"
pool_clients = 2
pool_s = 86400
"""
    (folder / "a.toml").write_text(text, encoding="utf-8")
    options = {**PLAIN_REPLAY, "files": (folder / "a.csv",), "as_json": True}
    with open_run(load_config(folder / "a.toml"), options) as run:
        while run.step():
            pass
        assert run.finished


CORNERS = np.array([[10.0, 20], [10, 60], [30, 40], [50, 20], [50, 60], [70, 40]])


def test_six_clear_clusters_of_a_short_file_are_found_with_privacy(folder: Path) -> None:
    generator = np.random.default_rng(0)
    state = generator.integers(6, size=1687)
    rows = CORNERS[state] + generator.normal(0.0, 1.5, (1687, 2))
    lines = [f"{warm:.2f},{damp:.2f}" for warm, damp in rows]
    (folder / "a.csv").write_text("\n".join(["warm,damp", *lines]) + "\n")
    proposed = CliRunner().invoke(init_command, ["a.csv", "--private"])
    assert "too few" not in proposed.output
    # Keys that are the same in every run: noise that were drawn anew could hide one of the six.
    seed_clients(load_config(folder / "a.toml"), ["client-1"], 0)
    text = run("a.toml", "a.csv", "--no-wait").stdout
    assert "clusters: 6 clusters" in text
    assert "Too early" not in text


def test_a_file_too_short_for_its_windows_says_so_and_where_its_readings_are(folder: Path) -> None:
    lines = [f"{20 + n % 7},{40 + n % 5}" for n in range(1100)]
    (folder / "a.csv").write_text("\n".join(["warm,damp", *lines]) + "\n")
    assert CliRunner().invoke(init_command, ["a.csv", "--private"]).exit_code == 0
    text = (folder / "a.toml").read_text()
    (folder / "a.toml").write_text(text.replace("grow_readings = 137", "grow_readings = 2000"))
    text = run("a.toml", "a.csv", "--no-wait").stdout
    assert "clusters: 0 clusters so far" in text
    assert "readings: it takes about 2,000 accepted ones. Private counts hide" in text


def test_shares_are_rounded_as_on_the_page_and_a_rare_cluster_is_not_none() -> None:
    clusters = [
        {"cluster": number, "name": name, "share": share, "description": ""}
        for number, (name, share) in enumerate({"warm": 0.664, "cold": 0.304, "off": 0.004}.items())
    ]
    shares = [line.split()[0] for line in cluster_lines("clusters", clusters) if "%" in line]
    assert shares == ["67%", "30%", "<1%", "3%"], "in all 100, the last of no known cluster"


def test_what_a_client_logs_in_one_process_with_others_has_its_name_and_what_the_data_call_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config(create_federation(tmp_path, readings=60))
    caplog.set_level(logging.INFO, "shoal")
    with OneBox(config, CLIENTS, clock, texts={CLIENTS[0]: "Büro Süd"}) as box:
        box.run_until_idle()
    named = {}
    for record in caplog.records:
        if record.message == "updates_published":
            named[record.__dict__["fields"]["client"]] = record.__dict__.get("client_text")
    assert named == {**dict.fromkeys(CLIENTS), CLIENTS[0]: "Büro Süd"}
