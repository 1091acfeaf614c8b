"""The demo as a user runs it: its summary, its plot, its folder, Ctrl-C."""

from __future__ import annotations

import io
import json
import math
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.metrics import adjusted_rand_score

from shoal.cli.main import shoal
from shoal.config.settings import Config, load_config
from shoal.errors import SettingsError
from shoal.onebox.demo.demo import ROWS, TICK_S, TickingClock, open_demo, prepare_folder
from shoal.onebox.demo.demo_command import LineProgress
from shoal.onebox.demo.findings import adjusted_rand
from shoal.onebox.demo.plot import colours, separating_features, stretches
from shoal.privacy.base import COUNT_MECHANISM
from shoal.protocol.history import readings_table
from shoal.protocol.messages import Update
from shoal.server_node.bootstrap import initial_status
from shoal.server_node.history.store import HISTORY_FILE, HistoryReader
from shoal.server_node.report.status import ServerStatus
from shoal.transports import open_log

PNG = b"\x89PNG\r\n\x1a\n"


def shoal_demo(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "shoal",
        "demo",
        "--folder",
        str(folder / "demo"),
        "--port",
        "0",
        *options,
    ]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


class Run(NamedTuple):
    """A demo that has ended."""

    folder: Path
    summary: dict[str, Any]
    log: str

    def numbers(self) -> tuple[dict[str, Any], bytes]:
        """What does not depend on the clock and the folder, and the picture."""
        found = {
            name: value for name, value in self.summary.items() if name not in ("seconds", "plot")
        }
        return found, (self.folder / "demo" / "clusters.png").read_bytes()


def whole_run(folder: Path, *options: str) -> Run:
    running = shoal_demo(folder, "--json", *options)
    output, log = running.communicate(timeout=900)
    assert running.returncode == 0, log
    return Run(folder, json.loads(output), log)


@pytest.fixture(scope="module")
def compared_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The demo with all models and otherwise its defaults, of which the seed is one, as fast as it
    goes."""
    return whole_run(tmp_path_factory.mktemp("compared"), "--compare", "--seconds", "2")


def test_the_history_of_the_demo_is_that_of_its_sixteen_days(
    compared_run: Run,
) -> None:
    (server,) = (compared_run.folder / "demo").glob("server*")
    reader = HistoryReader(server / HISTORY_FILE)
    starts = [counted.start for counted in reader.each_bin("rooms", 21600, 0, math.inf)]
    first = datetime(2015, 2, 2, 12, tzinfo=UTC).timestamp()
    last = datetime(2015, 2, 18, 12, tzinfo=UTC).timestamp()
    assert min(starts) == first
    assert last - 21600 <= max(starts) <= last
    assert len({start // 86400 for start in starts}) == 17, "of sixteen times 24 hours"


def test_the_history_of_the_demo_shows_what_the_office_does_by_day_night_and_weekend(
    compared_run: Run,
) -> None:
    (server,) = (compared_run.folder / "demo").glob("server*")
    reader = HistoryReader(server / HISTORY_FILE)
    names = reader.names("rooms")
    assert names is not None
    (lit,) = [identity for identity, _, label in names.clusters if "Light high" in str(label)]
    readings: Counter[tuple[str, bool]] = Counter()
    for counted in reader.each_bin("rooms", 1800, 0, math.inf):
        at = datetime.fromtimestamp(counted.start, UTC)
        time = "between"
        if at.weekday() >= 5:
            time = "weekend"
        elif 9 <= at.hour < 18:
            time = "day"
        elif at.hour < 6:
            time = "night"
        for identity, n in readings_table(counted.clusters).tolist():
            readings[time, identity == lit] += n

    def share(time: str) -> float:
        return readings[time, True] / (readings[time, True] + readings[time, False])

    assert share("day") > 0.6
    assert share("night") < 0.2
    assert share("weekend") < 0.2


def test_the_demo_learns_every_reading_and_writes_a_plot(compared_run: Run) -> None:
    folder, summary, log = compared_run
    assert (summary["readings"], summary["rejected"], summary["clients"]) == (ROWS, 0, 5)
    assert summary["clusters"] == summary["known"]["rooms"]
    assert list(summary["known"]) == ["rooms", "steady", "fcac", "fuzzy"]
    assert summary["found"][0].startswith(f"The office has {summary['clusters']} states: ")
    assert any(
        "Light is high: " in sentence and " lux, elsewhere " in sentence
        for sentence in summary["found"][1:]
    )
    assert len(summary["found"]) == 1 + summary["clusters"], "a sentence on all, and one on each"
    assert summary["occupancy"].startswith("Somebody was in ")
    assert "protects nothing" in summary["remark"]
    assert "protects nothing" in log
    found = {model["model"]: model for model in summary["models"]}
    assert {name: (model["learns_from"], model["epsilon"]) for name, model in found.items()} == {
        "rooms": ("private counts", 4.0),
        "steady": ("noisy rows", 400.0),
        "fcac": ("noisy rows", 400.0),
        "fuzzy": ("noisy rows", 400.0),
    }
    assert found["rooms"]["agreement"] > 0.8
    assert found["rooms"]["agreement"] > found["fcac"]["agreement"]
    assert 0 < summary["readings"] - summary["counted"] < 5 * 400, "of open windows"
    assert summary["nodes"] >= summary["clusters"]
    assert summary["updates"] >= 100
    assert list(summary["rounds"]) == ["fuzzy"]
    assert summary["rounds"]["fuzzy"]["round"] >= 1
    assert summary["rounds"]["fuzzy"]["clusters"] == summary["clusters"], (
        "as many as the steady model has at the end"
    )
    assert summary["epsilon_total"] == 404.0, "noisy rows count once"
    assert re.findall(r"\d+", summary["price"])[:3] == ["404", "4", "400"]
    assert (folder / summary["plot"]).read_bytes().startswith(PNG)
    assert summary["price"] in log
    assert "http://127.0.0.1:" in log


@pytest.mark.integration
def test_every_run_with_a_seed_gives_the_same_numbers(compared_run: Run, tmp_path: Path) -> None:
    assert whole_run(tmp_path, "--compare", "--seconds", "2").numbers() == compared_run.numbers()


def test_with_a_random_seed_every_client_draws_a_secret_key(
    tmp_path: Path,
) -> None:
    def first_status(config: Config) -> ServerStatus:
        return initial_status(config, 0.0)

    keys = []
    for run, seed in (("one", None), ("other", None), ("fixed", 3), ("again", 3), ("changed", 4)):
        file = prepare_folder(tmp_path / run, None, 0)
        with open_demo(file, 1, 60.0, seed, first_status):
            keys.append((tmp_path / run / "clients" / "client-1" / "noise.key").read_bytes())
    assert keys[0] != keys[1]
    assert keys[2] == keys[3]
    assert keys[3] != keys[4]
    ran = CliRunner().invoke(shoal, ["demo", "--seed", "often"])
    assert "from 0 on nor random" in ran.output


def test_the_clock_moves_in_ticks_and_never_ahead_of_real_time() -> None:
    real = 1000.3
    clock = TickingClock(lambda: real)
    assert (clock(), clock.elapsed()) == (1000.0, 0.0)
    assert [clock.advance() for _ in range(6)] == [True, True, True, True, False, False]
    assert clock.elapsed() == 4 * TICK_S


def test_a_line_of_progress_counts_one_cluster_and_several() -> None:
    moments = iter((0.0, 1e3, 1e3, 2e3, 2e3))
    stream = io.StringIO()
    progress = LineProgress(stream, lambda: next(moments))
    total = {"readings": 1200, "nodes": 30, "epsilon_total": 4.0}
    for clusters in (1, 12):
        progress.show([], {**total, "clusters": clusters}, 1200, None)
    one, several = stream.getvalue().splitlines()
    assert one == "  1,200 readings learnt,   30 nodes,   1 cluster, epsilon 4 per reading"
    assert " 12 clusters, " in several


def test_its_federation_file_has_the_budget_and_port_of_the_options(tmp_path: Path) -> None:
    def epsilons(epsilon: float | None, compare: bool) -> tuple[list[float | None], float | None]:
        contract = load_config(prepare_folder(tmp_path / "demo", epsilon, 0, compare)).resolved
        return [model.epsilon for model in contract.models.values()], contract.total_epsilon

    assert epsilons(None, True) == ([4.0, 400.0, 400.0, 400.0], 404.0)
    assert epsilons(20.0, True) == ([20.0] * 4, 40.0)
    assert epsilons(None, False) == ([4.0], 4.0)
    assert epsilons(1.0, False) == ([1.0], 1.0)
    assert load_config(prepare_folder(tmp_path / "demo", None, port=1234)).server.port == 1234


def test_the_demo_publishes_counts_alone_and_finds_the_hours_in_which_somebody_is_there(
    tmp_path: Path,
) -> None:
    running = shoal_demo(tmp_path, "--seconds", "2", "--epsilon", "1", "--json")
    output, log = running.communicate(timeout=900)
    assert running.returncode == 0, log
    summary = json.loads(output)
    assert re.findall(r"\d+", summary["price"]) == ["1"]
    assert "private counts of rooms" in summary["price"]
    assert summary["epsilon_total"] == 1.0
    assert (summary["readings"], list(summary["known"]), summary["rounds"]) == (ROWS, ["rooms"], {})
    assert summary["models"][0]["agreement"] > 0.6
    exported = CliRunner().invoke(
        shoal, ["history", "export", "--config", str(tmp_path / "demo" / "office.toml")]
    )
    # A history begins with the first known cluster, so readings may have fallen to these alone.
    exported_clusters = {line.split(",")[2] for line in exported.output.splitlines()[1:]}
    assert exported_clusters >= {"0", "1"}, "clusters of the readings"
    config = load_config(tmp_path / "demo" / "office.toml")
    with closing(open_log(config.log)) as log_:
        first, end = log_.bounds(config.contract.updates_topic)[0]
        records, _ = log_.read(config.contract.updates_topic, {0: first}, end - first, 0.0)
    updates = [Update.decode(record.value, record.headers) for record in records]
    assert {update.model for update in updates} == {"rooms"}
    assert {update.privacy["mechanism"] for update in updates} == {COUNT_MECHANISM}


def test_a_picture_shows_the_features_that_set_clusters_apart_and_the_times_of_each() -> None:
    rows = np.array([[0.1, 0.5, 0.2], [0.2, 0.4, 0.3], [0.1, 0.6, 0.8], [0.2, 0.5, 0.9]])
    assert separating_features(rows, np.array([4, 4, 9, 9]))[0] == 2
    assert separating_features(rows[:, :1], np.array([4, 4, 4, 4])) == (0, 0)
    assert colours(np.array([7, 3, 3, -1])) == {3: "C0", 7: "C1"}
    minutes = np.array([0, 1, 2, 3, 60, 61], dtype="datetime64[m]").astype("datetime64[s]")
    found = stretches(np.array([True, True, False, True, True, True]), minutes)
    assert np.round(np.array(found) * 1440) == pytest.approx(np.array([[0, 2], [3, 1], [60, 2]]))
    assert stretches(np.zeros(6, dtype=bool), minutes) == []


def test_ctrl_c_stops_it_in_order(tmp_path: Path) -> None:
    running = shoal_demo(tmp_path, "--seconds", "60")
    assert running.stderr is not None
    while "readings learnt" not in running.stderr.readline():
        pass
    running.send_signal(signal.SIGINT)
    output, log = running.communicate(timeout=900)
    assert running.returncode == 0, log
    assert re.fullmatch(rf"Stopped after \d+ seconds and [\d,]+ of {ROWS:,} readings.\n", output)
    assert not (tmp_path / "demo" / "clusters.png").exists()
    assert "Traceback" not in log


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "thesis.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(SettingsError, match="files that are not the demo's"):
        prepare_folder(tmp_path / "demo", None, 0)
    assert (tmp_path / "demo" / "thesis.tex").exists()


def test_the_agreement_is_the_adjusted_rand_index_of_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    for classes, labels in ((1, 1), (2, 1), (2, 3), (5, 40), (200, 200)):
        rows = generator.integers(0, classes, 200)
        columns = generator.integers(-1, labels, 200)
        assert adjusted_rand(rows, columns) == pytest.approx(
            adjusted_rand_score(rows, columns), abs=1e-12
        )
    for same in (np.zeros(5, int), np.arange(5), np.zeros(0, int)):
        assert adjusted_rand(same, same) == 1.0
