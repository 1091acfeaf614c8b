"""A package outside this repository adds one extension of each kind; a federation runs on it,
unchanged."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.federation_text import federation_text

HERE = Path(__file__).parent
PACKAGE = HERE / "package"
MODULES = ("corners", "middle", "coarse", "folder", "tides", "diary")
PATIENCE_S = 300.0
FEDERATION = federation_text(
    "harbour",
    features=[
        {"name": "Level", "unit": "m", "low": 0.0, "high": 10.0},
        {"name": "Current", "unit": "m/s", "low": -2.0, "high": 2.0},
    ],
    privacy={"mode": "coarse", "levels": 9},
    models=[
        {"name": "tides", "algorithm": "corners"},
        {"name": "mean", "algorithm": "middle", "rounds": {"deadline_s": 5.0}},
    ],
    log={"address": "folder:log"},
    client={"publish_readings": 50},
    server={"port": 0, "snapshot_updates": 1, "snapshot_s": 0.1, "pool_clients": 2},
    events={"diary": {"path": "diary.txt"}},
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that has the package installed beside shoal."""
    target = tmp_path_factory.mktemp("site")
    options = [
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--disable-pip-version-check",
        "--no-index",
    ]
    # From a copy: a build leaves files beside the sources.
    source = tmp_path_factory.mktemp("source") / "package"
    subprocess.run(["cp", "-r", str(PACKAGE), str(source)], check=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", target, source], check=True
    )
    return {**os.environ, "PYTHONPATH": str(target)}


def shoal(environment: dict[str, str], *words: str) -> str:
    """What a command prints. It must succeed."""
    command = [sys.executable, "-m", "shoal", *words]
    told = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


@pytest.fixture(scope="module")
def file(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The federation file of a harbour in which two clients have learnt 400 readings each."""
    file = tmp_path_factory.mktemp("harbour") / "harbour.toml"
    file.write_text(FEDERATION, encoding="utf-8")
    producer = (
        "producer",
        "--config",
        str(file),
        "--tides",
        "40",
        "--clients",
        "2",
        "--limit",
        "800",
    )
    shoal(environment, *producer)
    return file


@pytest.fixture(scope="module")
def server(environment: dict[str, str], file: Path) -> Iterator[str]:
    """The address of a server that has absorbed what both clients have published."""
    command = [sys.executable, "-m", "shoal", "server", "--config", str(file), "--json"]
    client = [sys.executable, "-m", "shoal", "client", "--config", str(file), "--name"]
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        assert process.stderr is not None
        address = next(
            event["address"]
            for event in map(json.loads, process.stderr)
            if event.get("event") == "page_served"
        )
        clients = [
            subprocess.Popen(
                [*client, f"client-{number}"], env=environment, stderr=subprocess.DEVNULL
            )
            for number in (1, 2)
        ]
        try:
            wait_for(
                address,
                lambda status: [model["readings"] for model in status["models"]] == [800, 800],
            )
            yield address
        finally:
            for client in (*clients, process):
                client.terminate()
            for client in clients:
                client.wait()


def wait_for(address: str, holds: Any) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds(status := answer(address, "/v1/status")):
        assert time.monotonic() < until, status
        time.sleep(0.1)


def answer(address: str, path: str, body: Any = None) -> Any:
    """The JSON that the server answers with."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        address.rstrip("/") + path, data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=900) as response:
        return json.load(response)


@pytest.mark.parametrize("module", MODULES)
def test_an_extension_takes_fewer_than_sixty_statements(module: str) -> None:
    tree = ast.parse((PACKAGE / "shoal_toys" / f"{module}.py").read_text(encoding="utf-8"))
    assert sum(isinstance(node, ast.stmt) for node in ast.walk(tree)) < 60


def test_check_describes_the_federation(environment: dict[str, str], file: Path) -> None:
    text = shoal(environment, "check", str(file))
    assert "Coarse values, no guarantee" in text
    assert "corners" in text
    listed = shoal(environment, "check", "--help") + shoal(environment, "producer", "--help")
    assert "--tides PERIOD" in listed


def test_a_wrong_term_of_the_mode_is_reported_as_any_other(
    environment: dict[str, str], file: Path
) -> None:
    wrong = file.with_name("wrong.toml")
    wrong.write_text(FEDERATION.replace("levels = 9", "levels = 1"), encoding="utf-8")
    command = [sys.executable, "-m", "shoal", "check", str(wrong)]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert told.returncode == 2
    assert "levels" in told.stderr


def test_the_streaming_algorithm_finds_both_tides_and_its_clusters_have_identities(
    server: str,
) -> None:
    snapshot = answer(server, "/v1/snapshot?model=tides")
    found = sorted((cluster["centre"], cluster["identity"]) for cluster in snapshot["clusters"])
    assert [centre for centre, _ in found] == [[0.0, -2.0], [10.0, 2.0]]
    assert sorted(identity for _, identity in found) == [0, 1]


def test_the_algorithm_in_rounds_finds_the_mean_of_all_rows(server: str) -> None:
    (cluster,) = answer(server, "/v1/snapshot?model=mean")["clusters"]
    # 1 m and 9 m, and the currents likewise, rounded to nine levels: .1 and .9 of each range become
    # 1/8 and 7/8.
    assert np.allclose(cluster["centre"], [5.0, 0.0])


def test_the_page_shows_both_models_and_the_mode(server: str) -> None:
    status = answer(server, "/v1/status")
    assert [model["algorithm"] for model in status["models"]] == ["corners", "middle"]
    assert status["privacy"]["title"] == "Coarse values, no guarantee"
    labels = [
        cluster["label"] for cluster in status["models"][0]["clustering"]["clusters"].values()
    ]
    assert any("Level high" in label for label in labels)


def test_predictions_tell_identities(server: str) -> None:
    told = answer(server, "/v1/predict?model=tides", [[9.0, 1.6], [1.0, -1.6], [9.0, 1.6]])
    high, low, again = told["identities"]
    assert high == again != low


def test_events_of_its_clusters_are_published(
    environment: dict[str, str], file: Path, server: str
) -> None:
    events = [
        json.loads(line)
        for line in shoal(
            environment, "events", "list", "--config", str(file), "--json"
        ).splitlines()
    ]
    assert {
        event["cluster"]
        for event in events
        if event["model"] == "tides" and event["kind"] == "birth"
    } == {0, 1}


def test_events_of_its_clusters_arrive_in_its_sink(
    environment: dict[str, str], file: Path, server: str
) -> None:
    shoal(environment, "events", "forward", "--config", str(file), "--until-idle", "0.3")
    lines = file.with_name("diary.txt").read_text(encoding="utf-8").splitlines()
    assert {"tides birth 0", "tides birth 1", "mean birth 0"} <= set(lines)


def test_a_wrong_setting_of_the_sink_is_reported_as_any_other(
    environment: dict[str, str], file: Path
) -> None:
    wrong = file.with_name("wrong-sink.toml")
    wrong.write_text(
        FEDERATION.replace('"path" = "diary.txt"', '"paths" = "diary.txt"'), encoding="utf-8"
    )
    command = [sys.executable, "-m", "shoal", "check", str(wrong)]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert told.returncode == 2
    assert "[events.diary]: path: is missing; paths: unknown name" in told.stderr


# The page that explains the package.

PAGE = HERE.parents[1] / "docs" / "how-to" / "extending.md"


def test_the_page_prints_files_of_the_package_as_they_are_and_links_to_the_others() -> None:
    page = PAGE.read_text(encoding="utf-8")
    printed = dict(re.findall(r"^`([^`\n]+)`:\n\n```\w+\n(.*?)^```$", page, re.M | re.S))
    linked = set(re.findall(r"\(\.\./\.\./tests/extending/package/(shoal_toys/\w+\.py)\)", page))
    files = [*PACKAGE.glob("*.toml"), *PACKAGE.glob("shoal_toys/[a-z]*.py")]
    texts = {str(file.relative_to(PACKAGE)): file.read_text(encoding="utf-8") for file in files}
    assert printed == {name: texts[name] for name in printed}
    assert {"pyproject.toml", "shoal_toys/middle.py"} <= set(printed)
    assert linked == set(texts) - set(printed)
