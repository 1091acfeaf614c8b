"""Parquet files of readings of a small plant, and plans to replay them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from shoal.config.contract import parse_contract
from shoal.config.settings import ClientSettings, Config
from shoal.onebox.replay.engine import Engine
from shoal.onebox.replay.parquet import Columns
from shoal.onebox.replay.plan import ReplayPlan, make_plan
from shoal.onebox.replay.run import ReplayResult, replay

KEY = bytes(range(32))
CLIENTS = [f"room-{number}" for number in range(9)]
COLUMNS = Columns(("warm", "damp"), "room", "time")
FORMAL = {"mode": "formal", "epsilon_per_reading": 100}
MODELS = [
    {"name": "clusters", "algorithm": "fcac"},
    {
        "name": "means",
        "algorithm": "kmeans",
        "options": {"clusters": 3},
        "rounds": {"rounds_max": 2},
    },
    {"name": "shares", "algorithm": "fcm", "options": {"clusters": 3}, "rounds": {"rounds_max": 2}},
    {
        "name": "mixture",
        "algorithm": "gmm",
        "options": {"clusters": 2},
        "rounds": {"rounds_max": 2},
    },
]


def config(
    privacy: dict[str, Any] | None = None,
    models: list[dict[str, Any]] | None = None,
    step: float = 0.0,
    **client: Any,
) -> Config:
    """A federation with the features warm, in steps of `step`, and damp. By default updates are
    made of 40 readings, or after 100 s."""
    contract = {
        "federation": {"name": "plant"},
        "features": [
            {"name": "warm", "low": -10, "high": 50, "step": step},
            {"name": "damp", "low": 0, "high": 100},
        ],
        "privacy": privacy or FORMAL,
        "models": models or MODELS,
    }
    settings = {"publish_readings": 40, "publish_s": 100.0, **client}
    return Config(contract=parse_contract(contract), client=ClientSettings(**settings))


def readings(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """-> times (n,) ascending, some equal and some far apart; values (n, 2), some of them
    missing."""
    rng = np.random.default_rng(seed)
    times = 1e9 + np.cumsum(rng.choice([0.0, 1.0, 2.5, 150.0], n, p=[0.1, 0.5, 0.35, 0.05]))
    heaps = np.array([[5.0, 80.0], [30.0, 25.0], [20.0, 60.0]])
    values = heaps[rng.integers(3, size=n)] + rng.normal(0, 2, (n, 2))
    values[rng.random((n, 2)) < 0.02] = np.nan
    return times, values


def write_files(folder: Path, per_client: int = 120, files: int = 2) -> list[Path]:
    """Files over which the readings of all clients are scattered in no order, row group by row
    group."""
    clients = []
    sequence = []
    times = []
    values = []
    for seed, name in enumerate(CLIENTS):
        own_times, own_values = readings(per_client, seed)
        clients += [name] * per_client
        sequence += range(per_client)
        times.append(own_times)
        values.append(own_values)
    order = np.random.default_rng(7).permutation(len(clients))
    table = pa.table(
        {
            "room": pa.array(clients).take(order),
            "time": np.concatenate(times)[order],
            "order": np.array(sequence)[order],
            "warm": pa.array(np.concatenate(values)[order, 0], from_pandas=True),
            "damp": np.concatenate(values)[order, 1],
        }
    )
    paths = []
    for number, rows in enumerate(np.array_split(np.arange(len(table)), files)):
        paths.append(folder / f"day-{number}.parquet")
        parquet.write_table(table.take(rows), paths[-1], row_group_size=150)
    return paths


def plan_of(folder: Path, files: list[Path], parts: int = 4, **settings: Any) -> ReplayPlan:
    """A plan in a folder; with a column of sequence numbers."""
    columns = Columns(COLUMNS.features, COLUMNS.client, COLUMNS.time, "order")
    return make_plan(config(**settings), columns, files, folder, KEY, parts)


def outcome(result: ReplayResult) -> dict[str, Any]:
    """What must be the same for every engine."""
    models = {
        name: (model.digest, model.rounds, model.answers) for name, model in result.models.items()
    }
    return {"digest": result.digest, "models": models, "totals": result.totals}


def replayed(plan: ReplayPlan, engine: Engine) -> dict[str, Any]:
    """The outcome of a replay."""
    return outcome(replay(plan, engine))
