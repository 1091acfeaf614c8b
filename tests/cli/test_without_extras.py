"""Every command in an environment without extras: it runs, or names the extra that is missing, and
nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from importlib.metadata import Distribution, distribution
from pathlib import Path

import click
import pytest

from reproduction.reproduce_command import reproduce
from shoal.cli.main import shoal as group
from tests.forked_python import ForkedPython
from tests.house.small_federation import write_federation

ROOT = Path(__file__).parents[2]
EXTRA = re.compile(r"pip install '\.\[(\w+)\]'")
Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.long


def required(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """The distribution and all that it needs, without extras."""
    if name not in found:
        found[name] = distribution(name)
        for line in found[name].requires or ():
            if (
                "extra ==" not in line
                and "python_version" not in line
                and "sys_platform" not in line
            ):
                match = re.match(r"[\w.-]+", line)
                assert match is not None
                required(match.group(), found)
    return found


def copied(found: dict[str, Distribution]) -> Iterator[tuple[Path, str]]:
    """(place, name) of each top-level entry that the distributions have installed."""
    for module in found.values():
        for entry in {
            file.parts[0]
            for file in module.files or ()
            if file.parts[0] not in ("..", "__pycache__")
        }:
            yield Path(str(module.locate_file(entry))), entry


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with shoal and no extra: what pip would install, without the
    network."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    found = required("shoal", {})
    shoal = found.pop("shoal")
    assert {"numpy", "msgpack", "pydantic", "click", "prometheus-client"} <= set(found)
    for place, entry in copied(found):
        (packages / entry).symlink_to(place)
    # The sources themselves, and the entry points that were installed with them.
    metadata = packages / "shoal-0.dist-info"
    metadata.mkdir()
    for file in ("METADATA", "entry_points.txt"):
        text = shoal.read_text(file) or shoal.read_text("PKG-INFO")
        assert text
        (metadata / file).write_text(text, encoding="utf-8")
    (packages / "shoal.pth").write_text(f"{ROOT}\n", encoding="utf-8")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def commands(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedPython]:
    with closing(ForkedPython(python=python)) as commands:
        yield commands


@pytest.fixture
def run(commands: ForkedPython, tmp_path: Path) -> Run:
    """Runs a command of shoal in that environment, in an empty folder."""
    return partial(commands.run_text, cwd=tmp_path)


@pytest.fixture
def file(run: Run, tmp_path: Path) -> Path:
    path = tmp_path / "plant.toml"
    path.write_text(
        run("producer", "--synthetic", "gaussians", "--print-federation").stdout, encoding="utf-8"
    )
    return path


def assert_missing(ended: subprocess.CompletedProcess[str], extra: str) -> None:
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert ended.stderr.startswith("shoal: ")
    assert ended.stderr.count("\n") == 1
    assert EXTRA.findall(ended.stderr) == [extra]


def test_no_extra_is_in_the_environment(python: Path) -> None:
    for module in (
        "sklearn",
        "scipy",
        "matplotlib",
        "starlette",
        "kafka",
        "paho",
        "pyarrow",
        "rich",
        "river",
    ):
        found = subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False)
        assert found.returncode == 1, module


def test_every_command_has_its_help(run: Run) -> None:
    for name in group.list_commands(click.Context(group)):
        ended = run(name, "--help")
        assert (ended.returncode, ended.stderr) == (0, ""), name
        assert ended.stdout.startswith("Usage:"), name


@pytest.mark.parametrize("name", sorted(reproduce.commands))
def test_an_experiment_names_the_extra_before_it_starts_a_worker(
    run: Run, tmp_path: Path, name: str
) -> None:
    (tmp_path / "phoneme.csv").write_text("a,label\n1,0\n2,1\n", encoding="utf-8")
    options = [option.name for option in reproduce.commands[name].params]
    words = [
        *(("--data", tmp_path) if "data" in options else ()),
        *(("--out", tmp_path / "out") if name == "all" else ()),
        *(("--jobs", 2) if "jobs" in options else ()),
    ]
    ended = run("reproduce", name, *words)
    if name == "tsk":  # it scores predictions and needs no extra: here its data are missing
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
        assert "auto_mpg" in ended.stderr
    else:
        assert_missing(ended, "evaluate")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["phoneme.csv"]


def test_an_error_object_is_printed_with_json(run: Run) -> None:
    ended = run("reproduce", "gmm", "--json")
    assert ended.returncode == 2
    assert json.loads(ended.stderr)["exit_code"] == 2


def test_the_demo_names_the_extra(run: Run) -> None:
    assert_missing(run("demo", "--clients", 3), "demo")


def test_a_server_without_a_page_and_a_client_run(run: Run, file: Path) -> None:
    fed = run(
        "producer",
        "--config",
        file,
        "--synthetic",
        "gaussians",
        "--clients",
        2,
        "--speed",
        "max",
        "--limit",
        1200,
    )
    assert fed.returncode == 0, fed.stderr
    for name in ("client-1", "client-2"):
        assert (
            run(
                "client", "--config", file, "--name", name, "--until-idle", 0, "--no-wait"
            ).returncode
            == 0
        )
    served = run("server", "--config", file, "--no-page", "--until-idle", 0, "--json")
    assert served.returncode == 0, served.stderr
    assert json.loads(served.stdout)["models"]
    for words in (("events", "list"), ("rejected", "list"), ("topics", "ensure")):
        assert run(*words, "--config", file).returncode == 0, words


@pytest.mark.parametrize("command", ["server", "page"])
def test_a_page_names_its_extra_and_nothing_else(run: Run, file: Path, command: str) -> None:
    assert_missing(run(command, "--config", file, "--until-idle", 0), "server")


@pytest.mark.parametrize(
    "words",
    [
        ("client", "--name", "client-1"),
        ("server", "--no-page"),
        ("events", "list"),
        ("topics", "ensure"),
        ("rejected", "list"),
        ("name", "1", "north"),
    ],
    ids=" ".join,
)
def test_a_log_on_kafka_names_the_extra_and_nothing_else(
    run: Run, file: Path, words: tuple[str, ...]
) -> None:
    text = re.sub(
        r"^address = .*$",
        'address = "kafka://127.0.0.1:9"',
        file.read_text(encoding="utf-8"),
        flags=re.M,
    )
    if "kafka://" not in text:
        text += '\n[log]\naddress = "kafka://127.0.0.1:9"\n'
    file.write_text(text, encoding="utf-8")
    assert_missing(run(*words, "--config", file), "kafka")


def test_a_replica_names_its_extra_and_nothing_else(run: Run, tmp_path: Path) -> None:
    file = write_federation(tmp_path, address="kafka://127.0.0.1:9")
    assert_missing(run("replica", "--config", file, "--name", "one"), "scale")


def test_parquet_and_mqtt_name_their_extras(run: Run, file: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").touch()
    assert_missing(run("producer", "--config", file, tmp_path / "rows.parquet"), "parquet")
    with file.open("a", encoding="utf-8") as more:
        more.write('\n[events.mqtt]\nhost = "127.0.0.1"\n')
    assert_missing(run("events", "forward", "--config", file), "mqtt")


@pytest.mark.parametrize("name", ["events", "keys", "labels", "rejected", "reproduce", "topics"])
def test_a_group_without_its_subcommand_prints_its_help(run: Run, name: str) -> None:
    ended = run(name)
    assert (ended.stdout + ended.stderr).startswith("Usage:")
    assert (ended.stdout + ended.stderr).count("\n") > 5
