"""Row F6: the wall clock steps hours back and forth, and each fsync takes seconds: every reading
counts once.

A library that is loaded before all others (`clock_and_disk.c`) steps the wall clock of real
processes; sleeps and the steady clock stay as they are.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.telemetry.slow_files import SLOW_S
from tests.forked_python import NODES, ForkedPython
from tests.house import federation_processes
from tests.house import processes as processes_module
from tests.house.federation_processes import (
    check_exactly_once,
    finish,
    keep_feeding,
    prepare_federation,
    start_all,
    wait_for_updates,
)
from tests.house.processes import killed_on_exit, wait_until

MINUTES_AT_0 = 100_000


@pytest.fixture
def preloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The library, compiled and preloaded in every process that is started from now on."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) on this machine")
    library = tmp_path / "clock_and_disk.so"
    source = Path(__file__).with_name("clock_and_disk.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True
    )
    monkeypatch.setenv("LD_PRELOAD", str(library))
    # The processes of other tests are forked from a Python that began without the library.
    python = ForkedPython(NODES)
    monkeypatch.setattr(processes_module, "nodes", lambda: python)
    yield library
    python.close()


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["sqlite", "kafka"])
def test_steps_of_the_clock_neither_lose_nor_repeat_a_reading(
    preloaded: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    address = "sqlite:federation.db"
    if kind == "kafka":
        address = f"kafka://{request.getfixturevalue('kafka_bootstrap')}"
    steps = tmp_path / "steps"
    chance = random.Random(6)
    steps.write_bytes(b"")
    with steps.open("r+b") as file:
        file.truncate(MINUTES_AT_0)
    monkeypatch.setenv("STEP_FILE", str(steps))
    plant = prepare_federation(tmp_path, address)
    processes = start_all(plant, 600)
    with killed_on_exit(processes), steps.open("r+b") as file:
        for _ in range(12):
            keep_feeding(processes, plant)
            file.truncate(MINUTES_AT_0 + chance.choice([-180, -1, 0, 1, 180]))
            time.sleep(chance.uniform(0.2, 1.0))
            if chance.random() < 0.3:
                place = chance.randrange(len(processes) - 1)
                processes[place].kill()
                processes[place] = processes[place].restarted()
        file.truncate(MINUTES_AT_0)
        wait_for_updates(processes, plant)
        assert all(process.running() for process in processes[:-1]), "none has ended by itself"
        finish(processes, tmp_path)
    check_exactly_once(plant, tmp_path)


@pytest.mark.integration
def test_a_disk_whose_fsync_takes_a_second_slows_everything_and_breaks_nothing(
    preloaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federation_processes, "PART_READINGS", 300)
    monkeypatch.setenv("SLOW_MS", "1000")
    plant = prepare_federation(tmp_path, "sqlite:federation.db")
    processes = start_all(plant)
    with killed_on_exit(processes):
        wait_for_updates(processes, plant)
        assert all(process.running() for process in processes[:-1])
        monkeypatch.delenv("SLOW_MS")
        finish(processes, tmp_path)
    check_exactly_once(plant, tmp_path)


SLOW_FILES = {
    "/run/federation.db": 0,
    "/server/checkpoint.db": 0,
    "/attic/readings.db": 1,
    "/attic/checkpoint.db": 1,
    "/attic/ledger.db": 1,
}
"""a part of the path -> the number of a process that writes the file: the server, or a client"""


@pytest.mark.integration
@pytest.mark.parametrize("slow", SLOW_FILES)
def test_a_slow_file_is_named_and_only_what_writes_it_waits(
    preloaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    monkeypatch.setattr(federation_processes, "PART_READINGS", 300)
    monkeypatch.setenv("SLOW_MS", str(int(1000 * SLOW_S + 1000)))
    monkeypatch.setenv("SLOW_FILE", slow)
    folder = tmp_path / "run"
    folder.mkdir()
    plant = prepare_federation(folder, "sqlite:federation.db")
    processes = start_all(plant)
    with killed_on_exit(processes):
        waiting = processes[SLOW_FILES[slow]]
        said = re.compile(f"write_slow.*{slow}")
        wait_until(lambda: said.search(waiting.log_text()) is not None)
        if slow != "/run/federation.db":  # all write that one
            wait_for_updates(processes, plant, number=3)
        assert all(process.running() for process in processes[:-1])
        monkeypatch.delenv("SLOW_MS")
        finish(processes, folder)
    check_exactly_once(plant, tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=False
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.integration
def test_a_disk_that_is_full_for_a_while_loses_no_reading(small_disk: Path, tmp_path: Path) -> None:
    plant = prepare_federation(small_disk, "sqlite:federation.db")
    processes = start_all(plant, 3000)
    with killed_on_exit(processes):
        wait_until(lambda: any("disk full" in process.log_text() for process in processes))
        assert all(process.running() for process in processes[:-1]), "they wait for room"
        subprocess.run(["mount", "-o", "remount,size=400m", str(small_disk)], check=True)
        finish(processes, small_disk)
    check_exactly_once(plant, tmp_path)
