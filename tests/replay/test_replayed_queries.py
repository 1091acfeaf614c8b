"""Models whose server asks its clients, over replayed clients: what a server finds that reads the
updates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.streaming import Contribution
from shoal.onebox.replay.engine import LocalEngine
from shoal.onebox.replay.parquet import Columns
from shoal.onebox.replay.plan import ReplayPlan, make_plan
from shoal.onebox.replay.queries import run_queries
from shoal.onebox.replay.results import answers_file, records
from shoal.onebox.replay.run import replay
from shoal.protocol.messages import Update
from tests.replay.plant_files import KEY, config

MODELS = [{"name": "clusters", "algorithm": "fcac"}, {"name": "stays", "algorithm": "regimes"}]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four clients in two regimes of 100 readings each; the last one has a single reading, and
    another begins late."""
    columns: dict[str, list[float] | list[str]] = {"room": [], "time": [], "warm": [], "damp": []}
    for number, (n, start) in enumerate([(1_200, 0.0), (1_200, 0.0), (1_200, 5_000.0), (1, 50.0)]):
        rng = np.random.default_rng(number)
        state = (np.arange(n) + 37 * number) // 100 % 2
        columns["room"] += [f"room-{number}"] * n
        columns["time"] += (1e9 + start + np.arange(n)).tolist()
        columns["warm"] += (20 + 3 * number + rng.normal(size=n) + 4 * state).tolist()
        columns["damp"] += (50 + rng.normal(size=n) + 4 * state).tolist()
    path = tmp_path_factory.mktemp("looks") / "day.parquet"
    parquet.write_table(pa.table(columns), path)
    return path


def plan_of(folder: Path, file: Path, parts: int) -> ReplayPlan:
    settings = config({"mode": "off"}, MODELS, publish_readings=100)
    return make_plan(
        settings, Columns(("warm", "damp"), "room", "time"), [file], folder, KEY, parts
    )


def test_replayed_clients_answer_and_a_server_that_reads_the_updates_finds_the_same(
    tmp_path: Path, file: Path
) -> None:
    results = {}
    for parts in (1, 3):
        (tmp_path / str(parts)).mkdir()
        plan = plan_of(tmp_path / str(parts), file, parts)
        results[parts] = replay(plan, LocalEngine(1))
    assert results[1].digest == results[3].digest
    found = results[1].models["stays"]
    assert results[3].models["stays"].digest == found.digest
    assert (len(found.params["identity"]), found.answers) == (2, 3)
    np.testing.assert_allclose(found.params["dwell"], 100, rtol=0.4)
    assert not found.params["header"][4], "two evaluations agree"
    server = streaming_algorithm("regimes").server({}, 2)
    for record in records(plan):
        if record.model == "stays":
            update = Update.decode(record.value, Update.headers())
            server.absorb([Contribution(record.client, update.sequence, update.arrays)], b"")
    for name, array in server.snapshot().items():
        np.testing.assert_array_equal(array, found.params[name], err_msg=name)


def test_a_replay_that_was_killed_after_the_answers_gives_the_same(
    tmp_path: Path, file: Path
) -> None:
    plan = plan_of(tmp_path, file, 2)
    first = replay(plan, LocalEngine(1))
    assert replay(plan, LocalEngine(1)).digest == first.digest
    answers_file(plan, "stays").unlink()
    assert replay(plan, LocalEngine(1)).digest == first.digest


def test_without_readings_nothing_is_answered(tmp_path: Path, file: Path) -> None:
    plan = plan_of(tmp_path, file, 1)
    replay(plan, LocalEngine(1))
    answers_file(plan, "stays").unlink()
    model = plan.contract.models["stays"]
    answered = run_queries(plan, model, [])
    assert (answered.queries, answered.clients, answered.records) == (0, 0, [])
