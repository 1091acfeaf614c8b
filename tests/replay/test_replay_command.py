"""`shoal replay` as a user runs it: kills, publishing, and what it says about files that cannot be
replayed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from shoal.cli.main import shoal
from shoal.config.settings import load_config
from shoal.errors import ShoalError
from shoal.onebox.replay.engine import LocalEngine
from shoal.onebox.replay.results import updates_file
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports import open_log
from shoal.transports.base import beginning
from tests.federation_text import federation_text
from tests.replay.plant_files import CLIENTS, KEY, plan_of, replayed, write_files

FEDERATION = federation_text(
    privacy={"mode": "formal", "epsilon_per_reading": 100},
    client={"publish_readings": 40, "publish_s": 100.0},
    log={"address": "sqlite:federation.db"},
    server={"folder": "server"},
)
COLUMNS = ["--client-column", "room", "--time-column", "time", "--sequence-column", "order"]
PATIENCE_S = 120.0
PARTS = 9
TRIES = 20


@pytest.fixture
def plant(tmp_path: Path) -> Path:
    """A federation file."""
    file = tmp_path / "plant.toml"
    file.write_text(FEDERATION, encoding="utf-8")
    return file


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The key of the other tests in a file."""
    file = tmp_path / "key"
    file.touch(mode=0o600)
    file.write_bytes(KEY)
    return file


def words(plant: Path, key: Path, folder: Path, files: list[Path], *more: str) -> list[str]:
    options = [
        "--config",
        str(plant),
        "--key",
        str(key),
        "--folder",
        str(folder),
        *COLUMNS,
        "--json",
        *more,
    ]
    return ["replay", *options, *map(str, files)]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(shoal, list(map(str, arguments)))


def error_of(ran: Result) -> tuple[int, str]:
    """The exit code and the message of an error that was raised on purpose."""
    assert isinstance(ran.exception, ShoalError), ran.output
    return ran.exception.exit_code, str(ran.exception)


def summary_of(output: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def wait_until(condition: Any) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


def children_of(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def has_ended(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


@pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="the workers of a process are found in /proc"
)
def test_a_replay_killed_midway_continues_to_the_same_outcome(
    tmp_path: Path, plant: Path, key: Path, files: list[Path]
) -> None:
    whole = plan_of(
        tmp_path / "whole", files, parts=PARTS, models=[{"name": "clusters", "algorithm": "fcac"}]
    )
    expected = replayed(whole, LocalEngine(1))
    for attempt in range(TRIES):
        folder = tmp_path / f"killed-{attempt}"
        command = words(plant, key, folder, files, "--parts", str(PARTS), "--workers", "2")
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal", *command], stderr=subprocess.PIPE
        )
        wait_until(lambda folder=folder: any(folder.glob("updates-*.arrow")))
        workers = children_of(process.pid)
        process.kill()
        process.communicate()
        kept = {file: file.stat().st_mtime_ns for file in folder.glob("updates-*.arrow")}
        if len(kept) < PARTS and workers:
            break
    assert 0 < len(kept) < PARTS, "no kill came midway"
    wait_until(lambda: all(map(has_ended, workers)))
    finished = {file.name: file.stat().st_mtime_ns for file in folder.glob("updates-*.arrow")}
    resumed = run(*words(plant, key, folder, files, "--parts", str(PARTS), "--workers", "1"))
    assert resumed.exit_code == 0, resumed.output
    assert summary_of(resumed.stdout)["digest"] == expected["digest"]
    assert {name: (folder / name).stat().st_mtime_ns for name in finished} == finished, (
        "these were learnt twice"
    )


def test_a_server_absorbs_every_published_update_once(
    tmp_path: Path, plant: Path, key: Path, files: list[Path]
) -> None:
    for _ in range(2):
        ran = run(*words(plant, key, tmp_path / "replay", files, "--publish", "--workers", "1"))
        assert ran.exit_code == 0, ran.output
    summary = summary_of(ran.stdout)
    assert summary["published"] == summary["records"] > 0
    config = load_config(plant)
    with resumed(open_server(config)) as server:
        while server.step():
            pass
        status = server.status()
    with closing(open_log(config.log)) as log:
        rejected, _ = log.read(
            config.contract.rejected_topic, beginning(log, config.contract.rejected_topic)
        )
    assert not rejected
    assert sum(client.readings for client in status.clients) == 120 * len(CLIENTS)
    assert sum(client.updates for client in status.clients) == summary["records"]


def test_the_summary_for_people_has_the_digest_and_the_folder(
    tmp_path: Path, plant: Path, key: Path, files: list[Path]
) -> None:
    digest = summary_of(
        run(*words(plant, key, tmp_path / "programs", files, "--workers", "1")).stdout
    )["digest"]
    command = [word for word in words(plant, key, tmp_path / "replay", files) if word != "--json"]
    ran = run(*command, "--workers", "1")
    assert f"Replayed {120 * len(CLIENTS):,} readings of 9 clients in " in ran.stdout
    assert str(tmp_path / "replay") in ran.stdout
    assert digest in ran.stdout


def test_progress_has_the_time_left(
    tmp_path: Path, plant: Path, key: Path, files: list[Path]
) -> None:
    ran = run(*words(plant, key, tmp_path / "replay", files, "--workers", "1", "--parts", "4"))
    events = [json.loads(line) for line in ran.stderr.splitlines()]
    progress = [event for event in events if event["event"] == "replay_progress"]
    assert progress[0]["readings"] == 0
    assert progress[-1]["readings"] == progress[-1]["total"] == 120 * len(CLIENTS)
    assert progress[-1]["left_s"] == 0.0
    assert len(progress) == 5
    assert all(
        0 < event["readings"] < event["total"] and event["left_s"] >= 0.0
        for event in progress[1:-1]
    )


def test_without_a_key_a_secret_one_is_drawn_and_kept(
    tmp_path: Path, plant: Path, key: Path, files: list[Path]
) -> None:
    def digest(folder: str) -> str:
        command = words(plant, key, tmp_path / folder, files, "--workers", "1")
        del command[command.index("--key") : command.index("--key") + 2]
        return str(summary_of(run(*command).stdout)["digest"])

    assert digest("first") == digest("first") != digest("second")
    assert (tmp_path / "first" / "noise.key").stat().st_mode & 0o077 == 0


def test_no_reading_is_in_what_a_replay_writes_and_prints(
    tmp_path: Path, plant: Path, key: Path
) -> None:
    (file, *_) = write_files(tmp_path, files=1)
    folder = tmp_path / "replay"
    ran = run(*words(plant, key, folder, [file], "--workers", "1"))
    table = parquet.read_table(file)
    values = np.concatenate(
        [np.asarray(table.column(name).to_pylist(), dtype=float) for name in ("warm", "damp")]
    )
    written = (
        b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
        + ran.output.encode()
    )
    unit = np.concatenate(
        [(values[: len(values) // 2] + 10) / 60, values[len(values) // 2 :] / 100]
    )
    for value in [*values[:200].tolist(), *unit[:200].tolist()]:
        assert np.float64(value).tobytes() not in written or np.isnan(value)
        assert repr(value).encode() not in written or np.isnan(value)


def changed(folder: Path, **columns: Any) -> Path:
    """A file in which some columns are others, or are missing (None)."""
    (file, *_) = write_files(folder, per_client=3, files=1)
    table = parquet.read_table(file)
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        table = table.remove_column(place)
        if values is not None:
            table = table.add_column(place, name, pa.array((values * len(table))[: len(table)]))
    parquet.write_table(table, file)
    return file


@pytest.mark.parametrize(
    ("columns", "advice"),
    [
        ({"room": None}, "column 'room' is missing; the columns are time, order, warm, damp"),
        ({"warm": None}, "column 'warm' is missing"),
        ({"room": ["attic", None]}, "column 'room' is empty in a row"),
        ({"time": [1e9, None]}, "column 'time' is empty in a row"),
        ({"time": ["noon"]}, "column 'time' is of the type string; a replay takes numbers"),
        ({"time": [float("nan")]}, "a time that cannot be; times are seconds since 1970"),
        ({"warm": ["hot"]}, "column 'warm' is of the type string"),
        ({"order": [0.5]}, "column 'order' has numbers that are no int64"),
        ({"room": ["The Attic"]}, "'The Attic'"),
    ],
    ids=str,
)
def test_a_file_that_cannot_be_replayed_is_an_error_with_advice(
    tmp_path: Path, plant: Path, key: Path, columns: dict[str, Any], advice: str
) -> None:
    ran = run(
        *words(plant, key, tmp_path / "replay", [changed(tmp_path, **columns)], "--workers", "1")
    )
    code, message = error_of(ran)
    assert code in (2, 3)
    assert advice in message


def test_a_file_that_is_missing_a_folder_or_no_parquet_is_named(
    tmp_path: Path, plant: Path, key: Path
) -> None:
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 and nothing else PAR1")
    code, message = error_of(run(*words(plant, key, tmp_path / "replay", [broken])))
    assert (code, "broken.parquet: not a Parquet file, or damaged" in message) == (3, True)
    code, message = error_of(
        run(*words(plant, key, tmp_path / "replay", [tmp_path / "absent.parquet"]))
    )
    assert (code, "absent.parquet: no such file" in message) == (2, True)
    (tmp_path / "days").mkdir()
    code, message = error_of(run(*words(plant, key, tmp_path / "replay", [tmp_path / "days"])))
    assert (
        code,
        f"days: a folder; name the files in it: {tmp_path}/days/*.parquet" in message,
    ) == (2, True)
    assert not (tmp_path / "replay").exists()


@pytest.mark.parametrize(
    ("old", "new", "advice"),
    [
        (
            '"fcac"',
            '"dbscan"',
            "model clusters: the answers of clients to dbscan cannot be added up",
        ),
        (
            '"fcac"',
            '"fcac"\n[[models]]\nname = "means"\nalgorithm = "kmeans"\nsource = "clusters"',
            "model means starts from clusters that",
        ),
        (
            "publish_readings = 40",
            "epsilon_max = 5.0",
            "[client] epsilon_max limits what a client's ledger allows",
        ),
        (
            'epsilon_per_reading = 100\n[[models]]\nname = "clusters"\nalgorithm = "fcac"',
            'counts_epsilon = 2\n[[models]]\nname = "clusters"\nalgorithm = "density_tree"',
            "model clusters learns from counts",
        ),
    ],
)
def test_a_federation_that_cannot_be_replayed_is_refused_with_advice(
    tmp_path: Path, plant: Path, key: Path, files: list[Path], old: str, new: str, advice: str
) -> None:
    assert old in FEDERATION
    plant.write_text(FEDERATION.replace(old, new), encoding="utf-8")
    ran = run(*words(plant, key, tmp_path / "replay", files))
    code, message = error_of(ran)
    assert code == 2
    assert advice in message
    assert "shoal producer FILES --speed max" in message or "give it a number" in message
    assert not updates_file(plan_of(tmp_path / "replay", files), 0).exists()


@pytest.mark.parametrize(
    "times", [pa.timestamp("ns"), pa.timestamp("ms", "Europe/Madrid"), pa.int64()], ids=str
)
def test_times_may_be_timestamps(
    tmp_path: Path, plant: Path, key: Path, times: pa.DataType
) -> None:
    (file, *_) = write_files(tmp_path, files=1)
    table = parquet.read_table(file)
    seconds = np.floor(table.column("time").to_numpy())
    factor = {"ns": 10**9, "ms": 10**3}.get(getattr(times, "unit", ""), 1)
    whole = pa.array(seconds.astype(np.int64) * factor).cast(times)
    digests = []
    for number, column in enumerate((pa.array(seconds), whole)):
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(table.set_column(1, "time", column), path)
        ran = run(*words(plant, key, tmp_path / f"replay-{number}", [path], "--workers", "1"))
        digests.append(summary_of(ran.stdout)["digest"])
    assert digests[0] == digests[1]


def test_the_columns_are_those_of_the_federation_file_where_no_option_names_them(
    tmp_path: Path, plant: Path, key: Path, files: list[Path]
) -> None:
    named = run(*words(plant, key, tmp_path / "named", files))
    file = tmp_path / "columns.toml"
    file.write_text(
        f'{FEDERATION}[files]\nsplit = "column:room"\ntime_columns = ["time"]\n', encoding="utf-8"
    )
    options = ["--key", key, "--sequence-column", "order", "--json"]
    found = run("replay", "--config", file, "--folder", tmp_path / "found", *options, *files)
    assert found.exit_code == 0, found.output
    assert summary_of(found.stdout)["digest"] == summary_of(named.stdout)["digest"]
    for given, missing in (
        ("--time-column", "--client-column"),
        ("--client-column", "--time-column"),
    ):
        refused = run("replay", "--config", plant, given, "time", *files)
        assert refused.exit_code == 2
        assert missing in refused.output
