"""Every engine, with any number of workers and parts, makes the same updates and the same
models."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from shoal.errors import InvalidData, InvalidState, MissingExtra, SettingsError
from shoal.onebox.replay.engine import FOLDER, Engine, LocalEngine, pieces_to_take_apart, take_apart
from shoal.onebox.replay.plan import ReplayPlan, make_plan
from shoal.onebox.replay.results import digest_of, learnt, records, updates_file
from shoal.onebox.replay.run import Progress, open_engine, replay
from tests.conftest import without
from tests.replay.plant_files import (
    CLIENTS,
    COLUMNS,
    KEY,
    config,
    outcome,
    plan_of,
    replayed,
    write_files,
)

STARTED = [pytest.param("spark_engine", marks=pytest.mark.integration)]
ENGINES = ["two_workers", *STARTED]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(request.param)
    return found


def test_every_engine_gives_the_outcome_of_this_process(
    tmp_path: Path, files: list[Path], engine: Engine, in_this_process: dict[str, Any]
) -> None:
    totals = in_this_process["totals"]
    assert (totals.clients, totals.readings) == (len(CLIENTS), 120 * len(CLIENTS))
    assert totals.rejected > 0
    assert totals.records > 30
    assert replayed(plan_of(tmp_path, files, parts=4), engine) == in_this_process


@pytest.mark.parametrize("parts", [2, 5, 40])
def test_the_number_of_parts_makes_no_difference(
    tmp_path: Path, files: list[Path], parts: int, in_this_process: dict[str, Any]
) -> None:
    assert replayed(plan_of(tmp_path, files, parts=parts), LocalEngine(1)) == in_this_process


def test_without_a_column_of_sequence_numbers_the_order_of_the_rows_counts(
    tmp_path: Path, files: list[Path], engine: Engine
) -> None:
    def plan(name: str, given: list[Path]) -> ReplayPlan:
        return make_plan(config(), COLUMNS, given, tmp_path / name, KEY, parts=3)

    here = replayed(plan("here", files), LocalEngine(1))
    assert replayed(plan("engine", files), engine) == here
    assert replayed(plan("swapped", files[::-1]), LocalEngine(1))["digest"] != here["digest"]


def test_the_canonical_order_is_that_of_time_client_and_number(
    tmp_path: Path, files: list[Path]
) -> None:
    plan = plan_of(tmp_path, files)
    result = replay(plan, LocalEngine(1))
    found = list(records(plan))
    keys = [record[:3] for record in found]
    assert keys == sorted(set(keys))
    assert len(found) == result.totals.records
    assert digest_of(found[::-1]) != result.digest


def test_other_noise_keys_and_settings_make_other_updates(
    tmp_path: Path, files: list[Path], in_this_process: dict[str, Any]
) -> None:
    other_key = make_plan(config(), COLUMNS, files, tmp_path / "key", bytes(32))
    digests = {
        replayed(plan, LocalEngine(1))["digest"]
        for plan in (other_key, plan_of(tmp_path / "publish", files, publish_readings=39))
    }
    assert len(digests | {in_this_process["digest"]}) == 3


def test_a_replay_that_was_interrupted_learns_only_what_is_left(
    tmp_path: Path, files: list[Path], engine: Engine, in_this_process: dict[str, Any]
) -> None:
    plan = plan_of(tmp_path, files)
    replay(plan, LocalEngine(1))
    kept = updates_file(plan, 0)
    lost = [updates_file(plan, part) for part in (1, 3)]
    before = kept.stat().st_mtime_ns
    for file in lost:
        file.unlink()
    seen: list[int] = []
    result = replay(plan, engine, Progress(readings=lambda learnt, total: seen.append(learnt)))
    assert outcome(result) == in_this_process
    assert 0 < seen[0] < seen[-1] == plan.readings
    assert kept.stat().st_mtime_ns == before


def test_a_replay_that_is_done_learns_nothing_again(tmp_path: Path) -> None:
    days = tmp_path / "days"
    days.mkdir()
    plan = plan_of(tmp_path / "replay", write_files(days))
    first = replayed(plan, LocalEngine(1))
    shutil.rmtree(days)
    assert replayed(plan, LocalEngine(1)) == first


def test_a_folder_of_another_replay_is_left_alone(tmp_path: Path, files: list[Path]) -> None:
    replay(plan_of(tmp_path, files), LocalEngine(1))
    with pytest.raises(InvalidState, match="differs in publish_readings"):
        replay(plan_of(tmp_path, files, publish_readings=39), LocalEngine(1))
    with pytest.raises(InvalidState, match="differs in files"):
        replay(plan_of(tmp_path, files[:1]), LocalEngine(1))


def test_a_damaged_result_is_named_and_not_used(tmp_path: Path, files: list[Path]) -> None:
    plan = plan_of(tmp_path, files)
    replay(plan, LocalEngine(1))
    updates_file(plan, 2).write_bytes(b"ARROW1 and no more")
    with pytest.raises(InvalidState, match=r"updates-00002\.arrow: damaged; remove it"):
        learnt(plan)


def test_readings_that_are_brought_together_are_private_to_their_owner_and_removed_at_the_end(
    tmp_path: Path, files: list[Path]
) -> None:
    plan = plan_of(tmp_path, files)
    for piece in pieces_to_take_apart(plan):
        take_apart(plan, piece)
    assert (plan.folder / FOLDER).stat().st_mode & 0o077 == 0
    replay(plan, LocalEngine(1))
    assert not (plan.folder / FOLDER).exists()
    # A kill after the last part may have left them.
    pieces_to_take_apart(plan)
    replay(plan, LocalEngine(1))
    assert not (plan.folder / FOLDER).exists()


def test_files_without_rows_give_a_replay_without_updates(tmp_path: Path, engine: Engine) -> None:
    days = tmp_path / "days"
    days.mkdir()
    plan = plan_of(tmp_path / "replay", write_files(days, per_client=0))
    found = replayed(plan, engine)
    assert (found["totals"].clients, found["totals"].records) == (0, 0)
    assert {answers for _, _, answers in found["models"].values()} == {0}


def test_an_engine_that_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    monkeypatch.delitem(sys.modules, "shoal.onebox.replay.spark_engine", raising=False)
    with pytest.raises(
        MissingExtra, match=r"--engine spark needs an extra: pip install '\.\[spark\]'"
    ):
        open_engine("spark", 1)


@pytest.mark.integration
def test_spark_without_java_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if importlib.util.find_spec("pyspark") is None:
        without("Spark", "it is not installed; pip install '.[spark]'")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(SettingsError, match="--engine spark needs Java 17 or later"):
        open_engine("spark", 1)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="sockets are found in /proc")
@pytest.mark.parametrize("started", STARTED)
def test_an_engine_started_here_listens_on_loopback_alone(
    request: pytest.FixtureRequest, started: str
) -> None:
    engine: Engine = request.getfixturevalue(started)
    assert list(engine.spread(len, ["one", "two"])) == [3, 3]
    addresses = listening(os.getpid())
    assert addresses
    assert {address for address in addresses if not address.is_loopback} == set()


def listening(process: int) -> set[IPv4Address | IPv6Address]:
    """The addresses on which a process and all that it has started listen, as the kernel shows them
    (Linux)."""
    sockets: set[str] = set()
    waiting = [process]
    while waiting:
        place = Path(f"/proc/{waiting.pop()}")
        for fd in place.glob("fd/*"):
            with suppress(OSError):  # it was closed meanwhile
                sockets.add(os.readlink(fd))
        for tasks in place.glob("task/*/children"):
            with suppress(OSError):  # it has ended meanwhile
                waiting += map(int, tasks.read_text().split())
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()
    ]
    is_listening = "0A"
    return {
        _address(line[1])
        for line in lines
        if line[3] == is_listening and f"socket:[{line[9]}]" in sockets
    }


def _address(local: str) -> IPv4Address | IPv6Address:
    """The address of "0100007F:1F90" in /proc/net/tcp, or in tcp6: words of four bytes in the order
    of this machine."""
    words = np.frombuffer(bytes.fromhex(local.partition(":")[0]), dtype=">u4")
    address = ip_address(words.astype("=u4").tobytes())
    return getattr(address, "ipv4_mapped", None) or address


def test_an_error_of_a_worker_is_the_error_of_the_replay(tmp_path: Path, engine: Engine) -> None:
    days = tmp_path / "days"
    days.mkdir()
    plan = plan_of(tmp_path / "replay", _with_a_time_that_cannot_be(days))
    with pytest.raises(InvalidData, match="a time that cannot be; times are seconds since 1970"):
        replay(plan, engine)


def _with_a_time_that_cannot_be(folder: Path) -> list[Path]:
    file, *_ = write_files(folder)
    table = parquet.read_table(file)
    times = table.column("time").to_pylist()
    times[len(times) // 2] = 1e300
    place = table.schema.get_field_index("time")
    parquet.write_table(table.set_column(place, "time", pa.array(times)), file)
    return [file]
