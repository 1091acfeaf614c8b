"""The demo as a user runs it: its summary, its plot, its folder, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from onebox.demo import ROWS, open_demo, prepare_folder
from onebox.repeatable import TICK_S, TickingClock
from server_node.bootstrap import initial_status
from server_node.status import ServerStatus
from shoal.cli.main import shoal
from shoal.config.settings import Config, load_config
from shoal.errors import SettingsError

PNG = b"\x89PNG\r\n\x1a\n"


def shoal_demo(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "shoal", "demo", "--folder", str(folder / "demo"), "--port", "0", *options]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_demo_learns_every_reading_and_writes_a_plot(tmp_path: Path) -> None:
    running = shoal_demo(tmp_path, "--seconds", "2", "--json")
    output, log = running.communicate(timeout=900)
    assert running.returncode == 0, log
    summary = json.loads(output)
    assert (summary["readings"], summary["rejected"], summary["clients"]) == (ROWS, 0, 5)
    assert summary["clusters"] == summary["known"]["rooms"] == 2
    assert list(summary["known"]) == ["rooms", "fcac", "fuzzy"]
    assert summary["found"][0].startswith("The office has 2 states: ")
    assert any("Light is high: " in sentence and " lux, elsewhere " in sentence for sentence in summary["found"][1:])
    assert len(summary["found"]) == 3
    assert summary["occupancy"].startswith("Somebody was in the room in ")
    assert "protects nothing" in summary["remark"]
    assert "protects nothing" in log
    assert summary["ari"]["rooms"] > 0.8
    assert summary["ari"]["rooms"] > summary["ari"]["fcac"]
    assert summary["nodes"] >= summary["clusters"]
    assert summary["updates"] >= 100
    assert list(summary["rounds"]) == ["fuzzy"]
    assert summary["rounds"]["fuzzy"]["round"] >= 1
    assert summary["rounds"]["fuzzy"]["clusters"] == summary["clusters"], "as many as the steady model has at the end"
    assert (summary["epsilon_per_reading"], summary["epsilon_per_feature"]) == (400.0, [100.0] * 4)
    assert (tmp_path / summary["plot"]).read_bytes().startswith(PNG)
    assert "HARDLY ANY protection" in log
    assert "http://127.0.0.1:" in log


def test_every_run_with_a_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    found = []
    for run, seed in (("one", "7"), ("other", "7"), ("third", "8")):
        (tmp_path / run).mkdir()
        running = shoal_demo(tmp_path / run, "--seconds", "1", "--clients", "2", "--seed", seed, "--json")
        output, log = running.communicate(timeout=120)
        assert running.returncode == 0, log
        summary = {name: value for name, value in json.loads(output).items() if name not in ("seconds", "plot")}
        found.append((summary, (tmp_path / run / "demo" / "clusters.png").read_bytes()))
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_with_a_random_seed_every_client_draws_a_secret_key(
    tmp_path: Path,
) -> None:
    def first_status(config: Config) -> ServerStatus:
        return initial_status(config, 0.0)

    keys = []
    for run, seed in (("one", None), ("other", None), ("fixed", 3), ("again", 3)):
        file = prepare_folder(tmp_path / run, None, 0)
        with open_demo(file, 1, 60.0, seed, first_status):
            keys.append((tmp_path / run / "clients" / "client-1" / "noise.key").read_bytes())
    assert keys[0] != keys[1]
    assert keys[2] == keys[3]
    ran = CliRunner().invoke(shoal, ["demo", "--seed", "often"])
    assert "neither a whole number from 0 on nor random" in ran.output


def test_the_clock_moves_in_ticks_and_never_ahead_of_real_time() -> None:
    real = 1000.3
    clock = TickingClock(lambda: real)
    assert (clock(), clock.elapsed()) == (1000.0, 0.0)
    assert [clock.advance() for _ in range(6)] == [True, True, True, True, False, False]
    assert clock.elapsed() == 4 * TICK_S


def test_its_federation_file_has_the_budget_and_port_of_the_options(tmp_path: Path) -> None:
    config = load_config(prepare_folder(tmp_path / "demo", epsilon=20.0, port=1234))
    assert config.contract.privacy.epsilon_per_reading == 20.0
    assert config.server.port == 1234
    assert load_config(prepare_folder(tmp_path / "demo", None, 0)).contract.privacy.epsilon_per_reading == 400.0


def test_ctrl_c_stops_it_in_order(tmp_path: Path) -> None:
    running = shoal_demo(tmp_path, "--seconds", "60", "--json")
    assert running.stderr is not None
    while "readings learnt" not in running.stderr.readline():
        pass
    running.send_signal(signal.SIGINT)
    output, log = running.communicate(timeout=900)
    assert running.returncode == 0, log
    assert json.loads(output)["readings"] < ROWS
    assert "Traceback" not in log


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "thesis.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(SettingsError, match="files that are not the demo's"):
        prepare_folder(tmp_path / "demo", None, 0)
    assert (tmp_path / "demo" / "thesis.tex").exists()
