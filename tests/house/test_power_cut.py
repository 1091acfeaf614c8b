"""The power is cut at every call that touches memory or log, once before it and once after it.

Each run is a forked process that kills itself with SIGKILL at its n-th call; another one goes on from what is
on the disk. Whatever the instant, the final model is the same to the bit, every update stands under its number
with the same content, and labels and refused readings are as if nothing had happened.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from shoal.config.settings import load_config
from shoal.protocol.codec import unpack
from shoal.protocol.topics import LABELS, REJECTED
from shoal.runtime.checkpoint import Checkpoint
from shoal.transports import open_log
from shoal.transports.base import latest
from shoal.transports.sqlite.log import SqliteLog
from tests.house.power import cut_at_every_call
from tests.house.small_federation import all_records, begin, final_model, run_to_end, said, updates_by_client

CLIENTS = ("attic", "cellar")
# Every call of each, but of the many publish calls (a label for each reading) only each 7th.
CALLS = ((Checkpoint, "save", 1), (SqliteLog, "publish", 7), (SqliteLog, "flush", 1), (SqliteLog, "read", 1))
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forked processes are how the power is cut here")


def outcome(file: Path) -> dict[str, Any]:
    """Everything that must not depend on cuts."""
    config = load_config(file)
    updates = updates_by_client(config)
    kept = {}
    for client in CLIENTS:
        log = open_log(f"sqlite:{config.client.folder / client / 'readings.db'}")
        labels = latest(log, LABELS)
        kept[client] = (
            {key: record.value for key, record in latest(log, REJECTED).items()},
            sorted(labels),
            {unpack(record.value)["time"] for record in labels.values() if record.value},
        )
        log.close()
    return {
        "model": final_model(file),
        "updates": {c: {n: said(again[0]) for n, again in by.items()} for c, by in updates.items()},
        "kept": kept,
        "rejected": len(all_records(config.log.address, config.contract.rejected_topic)),
    }


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation with readings and keys, before anything was learnt."""
    folder = tmp_path_factory.mktemp("ready")
    begin(folder, CLIENTS, readings=130, publish_readings=40, batch_readings_max=50, pool_clients=2)
    return folder


@pytest.fixture(scope="module")
def undisturbed(ready: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How it ends when nothing happens. Keys are made here, and shared by all runs."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    shutil.copytree(ready, folder)
    run_to_end(folder / "house.toml", CLIENTS)
    for client in CLIENTS:
        shutil.copy(folder / "clients" / client / "noise.key", ready / f"{client}.key")
    return outcome(folder / "house.toml")


def a_run(ready: Path, folder: Path) -> Path:
    """A fresh copy, with the same noise keys as all others."""
    shutil.copytree(ready, folder)
    for client in CLIENTS:
        home = folder / "clients" / client
        Checkpoint(home / "checkpoint.db", f"client {client} of house").close()
        shutil.copy(folder / f"{client}.key", home / "noise.key")
    return folder / "house.toml"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("kind", "name", "every"), CALLS, ids=[name for _, name, _ in CALLS])
def test_a_cut_at_any_call_changes_nothing(
    kind: type, name: str, every: int, after: bool, ready: Path, undisturbed: dict[str, Any], memory_folder: Path
) -> None:
    assert undisturbed["updates"].keys() == set(CLIENTS)
    cut_at_every_call(
        kind,
        name,
        after,
        lambda number: a_run(ready, memory_folder / f"{number}"),
        lambda file: run_to_end(file, CLIENTS),
        outcome,
        undisturbed,
        every,
    )
