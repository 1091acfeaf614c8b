"""`shoal producer`, as people and supervisors use it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click import Context
from click.testing import CliRunner

from shoal.cli.main import shoal
from shoal.cli.options import CLIENT_NAME
from shoal.client_nodes.labelling.labels_command import labels
from shoal.errors import SettingsError, ShoalError
from shoal.producers.producer_command import producer
from shoal.protocol.readings import USER_ID
from shoal.protocol.topics import READINGS
from shoal.transports import open_log
from shoal.transports.base import beginning
from tests.federation_text import federation_text
from tests.producers.running_producer import csv_of, plain_rows, stored_in

FEDERATION = federation_text(
    "test",
    features=[{"name": "a", "low": 0, "high": 1e9}, {"name": "b", "low": 0, "high": 1}],
    models=[{"name": "m", "algorithm": "fcac"}],
)
PATIENCE_S = 300.0


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "federation.toml"
    path.write_text(FEDERATION)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data" / "clients"


def totals_of(*arguments: str | Path) -> dict[str, Any]:
    """What the command says it has done."""
    result = CliRunner().invoke(producer, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    done: dict[str, Any] = json.loads(result.stdout)
    return done


def rejected(*arguments: str | Path) -> str:
    """Why the command will not."""
    result = CliRunner().invoke(producer, list(map(str, arguments)))
    assert isinstance(result.exception, ShoalError)
    assert result.exception.exit_code == 2
    return str(result.exception)


def test_nothing_in_the_files_is_nothing_done(config: Path, tmp_path: Path) -> None:
    done = totals_of("--config", config, csv_of(tmp_path / "a.csv", []))
    assert (done["published"], done["finished"], done["clients"]) == (0, True, {})


def test_files_of_all_kinds_go_to_the_clients_of_the_federation_file(
    config: Path, folder: Path, tmp_path: Path
) -> None:
    csv = csv_of(tmp_path / "a.csv", plain_rows(10))
    lines = tmp_path / "b.jsonl"
    lines.write_text(
        "".join(json.dumps({"t": 100 + n, "a": 10 + n, "b": 0.5}) + "\n" for n in range(5))
    )
    done = totals_of(
        "--config", config, "--data", csv, lines, "--time-column", "t", "--clients", "3"
    )
    assert done["published"] == 15
    assert done["clients"] == {"client-1": 5, "client-2": 5, "client-3": 5}
    stored = stored_in(folder)
    assert sorted(
        reading.values[0] for readings in stored.values() for reading in readings
    ) == list(range(15))
    assert (
        totals_of("--config", config, csv, lines, "--time-column", "t", "--clients", "3")[
            "published"
        ]
        == 0
    )
    again = totals_of(
        "--config", config, csv, lines, "--time-column", "t", "--clients", "3", "--again"
    )
    assert again["published"] == 15


def test_the_readings_of_a_client_are_its_owners_alone(
    config: Path, folder: Path, tmp_path: Path
) -> None:
    totals_of("--config", config, csv_of(tmp_path / "a.csv", plain_rows(3)))
    assert (folder / "client-1").stat().st_mode & 0o077 == 0


def test_a_column_names_the_clients_and_another_one_a_feature(config: Path, tmp_path: Path) -> None:
    path = csv_of(tmp_path / "a.csv", [(1, 2, "Room 1"), (3, 4, "hall")], header="a,bb,room")
    readings = tmp_path / "elsewhere"
    done = totals_of(
        "--config",
        config,
        path,
        "--column",
        "b=bb",
        "--split",
        "column:room",
        "--readings",
        readings,
    )
    assert list(done["clients"]) == ["hall", "room-1-e28e96c7614f"]
    assert [reading.values for reading in stored_in(readings)["hall"]] == [[3.0, 4.0]]


def test_a_client_that_data_call_by_another_name_is_printed_kept_and_found_by_every_command(
    config: Path, folder: Path, tmp_path: Path
) -> None:
    path = csv_of(tmp_path / "a.csv", [(1, 2, "Werk Süd"), (3, 4, "hall")], header="a,b,plant")
    arguments = ["--config", str(config), str(path), "--split", "column:plant"]
    result = CliRunner().invoke(producer, arguments, catch_exceptions=False)
    (name,) = stored_in(folder).keys() - {"hall"}
    assert f"'Werk Süd' has the name {name}" in result.stderr
    assert (folder / name / "name.txt").read_text(encoding="utf-8") == "Werk Süd\n"
    assert not (folder / "hall" / "name.txt").exists()
    for given in ("Werk Süd", name):
        with pytest.raises(SettingsError, match=f"{name} has no labels"):
            CliRunner().invoke(
                labels, ["export", "--config", str(config), "--name", given], catch_exceptions=False
            )
        elsewhere = ["--only", given, "--readings", str(tmp_path / given)]
        CliRunner().invoke(producer, [*arguments, *elsewhere], catch_exceptions=False)
        assert list(stored_in(tmp_path / given)) == [name]


@pytest.mark.parametrize(
    ("words", "parameter"),
    [
        ("client", "name"),
        ("producer", "name"),
        ("producer", "only"),
        ("quarantine", "client"),
        ("unlearn", "client"),
        ("labels export", "name"),
        ("labels relabel", "name"),
        ("privacy report", "name"),
        ("keys new", "name"),
    ],
)
def test_a_name_of_a_client_is_taken_as_people_write_it(words: str, parameter: str) -> None:
    command: Any = shoal
    for word in words.split():
        command = command.get_command(Context(command), word)
    (found,) = (
        option for option in command.get_params(Context(command)) if option.name == parameter
    )
    assert found.type is CLIENT_NAME


def test_a_user_column_is_stored_with_the_readings_and_needed_where_users_are_protected(
    config: Path, tmp_path: Path
) -> None:
    path = csv_of(tmp_path / "a.csv", [(1, 2, "anna"), (3, 4, "")], header="a,b,who")
    plain = config.read_text()
    mode = next(line for line in plain.splitlines() if line.startswith("mode"))
    terms = 'mode = "formal"\ncounts_epsilon = 4\nunit = "user"\nreadings_per_window_max = 2'
    assert 'algorithm = "fcac"' in plain
    config.write_text(
        plain.replace(mode, terms).replace('algorithm = "fcac"', 'algorithm = "density_tree"')
    )
    assert "--user-column" in rejected("--config", config, path)
    assert "user_id of [mqtt]" in rejected("--config", config, "--mqtt", "--name", "attic")
    readings = tmp_path / "readings"
    totals_of("--config", config, path, "--user-column", "who", "--readings", readings)
    with closing(open_log(f"sqlite:{readings / 'client-1' / 'readings.db'}")) as log:
        records, _ = log.read(READINGS, beginning(log, READINGS))
    assert [dict(record.headers).get(USER_ID) for record in records] == [b"anna", None]


def test_faults_of_rows_are_described_and_no_value_is_printed(config: Path, tmp_path: Path) -> None:
    path = csv_of(tmp_path / "a.csv", [("noon", 12.75, "x"), (1, 2)], header="t,a,b")
    result = CliRunner().invoke(
        producer, ["--config", str(config), str(path), "--time-column", "t"]
    )
    assert "2 readings published to 1 clients" in result.output
    assert "1 rows had no readable time" in result.output
    assert "1 rows had more or fewer" in result.output
    assert "12.75" not in result.output
    assert "noon" not in result.output


def test_a_printed_federation_feeds_its_stream(tmp_path: Path) -> None:
    printed = CliRunner().invoke(producer, ["--synthetic", "plant", "--print-federation"])
    path = tmp_path / "plant.toml"
    path.write_text(printed.stdout)
    done = totals_of(
        "--config",
        path,
        "--synthetic",
        "plant",
        "--clients",
        "2",
        "--speed",
        "max",
        "--limit",
        "101",
    )
    assert done["clients"] == {"client-1": 51, "client-2": 50}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "--config FILE is needed"),
        (["--print-federation"], "--print-federation needs FILES or --synthetic"),
        (
            ["--config", "CONFIG"],
            "name a source of readings: FILES or --influx or --kafka or --mqtt or --synthetic",
        ),
        (
            ["--config", "CONFIG", "DATA", "--synthetic", "plant"],
            "FILES and --synthetic are sources of readings",
        ),
        (["--config", "CONFIG", "--synthetic", "plant"], "no feature 'a'; it has temperature"),
        (
            ["--config", "CONFIG", "--synthetic", "plant", "--loop"],
            "--loop means nothing with --synthetic",
        ),
        (
            ["--config", "CONFIG", "--synthetic", "plant", "--time-column", "t"],
            "--time-column means nothing",
        ),
        (
            ["--config", "CONFIG", "--synthetic", "plant", "--split", "blocks"],
            "--split means nothing with --synthetic",
        ),
        (["--config", "CONFIG", "missing.csv"], "no such file"),
        (["--config", "CONFIG", "DATA", "--split", "fair"], "the rules are"),
        (
            ["--config", "CONFIG", "DATA", "--column", "c=d"],
            "write FEATURE=COLUMN; the features are a, b",
        ),
        (
            ["--config", "CONFIG", "DATA", "--column", "a=d"],
            "column 'd' is missing; the columns are 't', 'a'",
        ),
        (["--config", "CONFIG", "DATA", "--speed", "60x"], "name a time column"),
        (
            ["--config", "CONFIG", "DATA", "--speed", "60x", "--shuffle", "--time-column", "t"],
            "do not shuffle",
        ),
        (
            ["--config", "CONFIG", "DATA", "--speed", "60x", "--rate", "3/s"],
            "--speed means nothing with --rate",
        ),
        (["--config", "CONFIG", "DATA", "--speed", "soon"], "write 60x"),
        (["--config", "CONFIG", "DATA", "--rate", "0"], "write 100/s"),
        (["--config", "CONFIG", "DATA", "--clients", "0"], "1 to 256"),
    ],
)
def test_wrong_options_are_refused_in_one_line_that_says_what_to_do(
    config: Path, tmp_path: Path, arguments: list[str], why: str
) -> None:
    data = csv_of(tmp_path / "a.csv", plain_rows(3))
    real = {"CONFIG": str(config), "DATA": str(data)}
    message = rejected(*(real.get(argument, argument) for argument in arguments))
    assert why in message
    assert "\n" not in message


def test_a_folder_that_cannot_be_made_is_refused(config: Path, tmp_path: Path) -> None:
    data = csv_of(tmp_path / "a.csv", plain_rows(3))
    assert str(data / "below") in rejected("--config", config, data, "--readings", data / "below")
    (tmp_path / "client-1").write_text("a file where the folder should be")
    assert "client-1: cannot be made" in rejected("--config", config, data, "--readings", tmp_path)


def test_with_json_everything_printed_besides_the_totals_is_events_of_the_client(
    config: Path, tmp_path: Path
) -> None:
    data = csv_of(tmp_path / "a.csv", plain_rows(4))
    words = ["--config", config, data, "--clients", "2", "--only", "client-2", "--json"]
    lines = (
        CliRunner()
        .invoke(producer, list(map(str, words)), catch_exceptions=False)
        .stderr.splitlines()
    )
    assert [(json.loads(line)["event"], json.loads(line)["client"]) for line in lines] == [
        ("started", "client-2")
    ]


def test_every_option_has_a_help_text() -> None:
    for parameter in producer.get_params(Context(producer)):
        if parameter.param_type_name == "option":
            assert str(getattr(parameter, "help", "")).endswith((".", "]")), parameter.name


@contextmanager
def running(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, surely ended afterwards."""
    started = subprocess.Popen(
        [sys.executable, "-m", "shoal", "producer", *map(str, arguments), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    with started:
        try:
            yield started
        finally:
            started.kill()


def stored_rows(folder: Path, client: str) -> int:
    """How many readings stand in a log that a process is writing."""
    if not (folder / client / "readings.db").exists():
        return 0
    try:
        with closing(open_log(f"sqlite:{folder / client / 'readings.db'}")) as log:
            return log.bounds(READINGS)[0][1]
    except ShoalError:
        return 0  # it is being made just now


def until_stored(process: subprocess.Popen[str], folder: Path, client: str, rows: int) -> None:
    """Wait until the client has `rows` readings or the process has ended."""
    patient_until = time.monotonic() + PATIENCE_S
    while stored_rows(folder, client) < rows and process.poll() is None:
        assert time.monotonic() < patient_until, "nothing comes"
        time.sleep(0.002)


def test_killed_again_and_again_it_publishes_every_reading_once(
    config: Path, folder: Path, tmp_path: Path
) -> None:
    rows = 24_000
    data = csv_of(tmp_path / "a.csv", plain_rows(rows, classes=7))
    arguments = (
        "--config",
        config,
        data,
        "--time-column",
        "t",
        "--split",
        "dirichlet:label:0.5",
        "--clients",
        "3",
    )
    killed = 0
    for share in (0.0, 0.1, 0.3, 0.6, 0.8):
        with running(*arguments) as process:
            until_stored(process, folder, "client-1", 1 + int(share * rows / 3))
            killed += process.poll() is None
            process.kill()
    with running(*arguments) as process:
        done = json.loads(process.communicate(timeout=PATIENCE_S)[0])
    assert killed >= 2
    assert done["finished"]
    assert done["position"] == rows
    stored = stored_in(folder)
    for readings in stored.values():
        assert [reading.row for reading in readings] == sorted(
            {reading.row for reading in readings}
        )
    everything = {reading.row: reading for readings in stored.values() for reading in readings}
    assert sum(map(len, stored.values())) == len(everything) == rows
    assert all(
        reading.values == [row, 0.5] and reading.time == row for row, reading in everything.items()
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_ends_in_order_and_prints_its_totals(
    config: Path, folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    data = csv_of(tmp_path / "a.csv", plain_rows(100))
    with running("--config", config, data, "--rate", "20/s") as process:
        until_stored(process, folder, "client-1", 3)
        process.send_signal(number)
        done = json.loads(process.communicate(timeout=PATIENCE_S)[0])
        assert process.returncode == 0
    assert not done["finished"]
    assert done["published"] == stored_rows(folder, "client-1")
    assert 3 <= done["published"] < 100
    assert totals_of("--config", config, data)["published"] == 100 - done["published"]


# Sensors over MQTT: what is refused before a connection is opened.


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--mqtt"], "--mqtt and --name CLIENT go together"),
        (["--name", "attic"], "--mqtt and --name CLIENT go together"),
        (["--mqtt", "--name", "attic"], r"--mqtt needs the section \[mqtt.topics\]"),
        (
            ["--mqtt", "--name", "attic", "--limit", "3"],
            "--limit means nothing with --mqtt; leave it out",
        ),
        (["--mqtt", "--name", "attic", "--speed", "60x"], "--speed means nothing with --mqtt"),
        (
            ["--mqtt", "--name", "attic", "--synthetic", "plant"],
            "--mqtt and --synthetic are sources of readings",
        ),
        (["--mqtt", "--name", "attic", "--column", "a=b"], "--column means nothing with --mqtt"),
        (["--mqtt", "--name", "attic", "a.csv"], "FILES and --mqtt are sources of readings"),
    ],
)
def test_what_means_nothing_with_mqtt_is_refused(config: Path, words: list[str], why: str) -> None:
    assert re.search(why, rejected("--config", config, *words))


def test_without_the_library_the_error_is_the_command_to_install_it(config: Path) -> None:
    config.write_text(FEDERATION + '[mqtt.topics]\na = "x"\nb = "y"\n')
    words = ["producer", "--config", str(config), "--mqtt", "--name", "attic"]
    program = (
        f"import sys; sys.modules['paho'] = None; sys.argv[1:] = {words}; from shoal.cli.main"
        " import main; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "pip install '.[mqtt]'" in ended.stderr.splitlines()[-1]
