"""Power cuts before and after every call that reads or writes the checkpoint or a log.

Each run is a forked process that kills itself with SIGKILL at its n-th call; another one continues from what is on
the disk. The final model must be the same bit for bit, every update must have the same sequence number and content, and
labels and rejected readings must be as without a power cut.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from client_nodes.bootstrap import open_client
from shoal.config.settings import load_config
from shoal.protocol.codec import unpack
from shoal.protocol.topics import LABELS, REJECTED
from shoal.runtime.checkpoint import Checkpoint
from shoal.transports import open_log
from shoal.transports.base import latest
from shoal.transports.sqlite.log import SqliteLog
from tests.house.power_cut import cut_at_every_call
from tests.house.small_federation import (
    all_records,
    clock,
    contents,
    create_federation,
    final_model,
    run_to_end,
    updates_by_client,
)

CLIENTS = ("attic", "cellar")
# Every call of each method; of `publish`, which is called for each label, only each 7th.
CALLS = ((Checkpoint, "save", 1), (SqliteLog, "publish", 7), (SqliteLog, "flush", 1), (SqliteLog, "read", 1))
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a power cut is simulated in a forked process")


def outcome(file: Path) -> dict[str, Any]:
    """Everything that must not depend on power cuts."""
    config = load_config(file)
    updates = updates_by_client(config)
    local_results = {}
    for client in CLIENTS:
        log = open_log(f"sqlite:{config.client.folder / client / 'readings.db'}")
        labels = latest(log, LABELS)
        local_results[client] = (
            {key: record.value for key, record in latest(log, REJECTED).items()},
            sorted(labels),
            {unpack(record.value)["time"] for record in labels.values() if record.value},
        )
        log.close()
    return {
        "model": final_model(file),
        "updates": {c: {n: contents(again[0]) for n, again in by.items()} for c, by in updates.items()},
        "local_results": local_results,
        "rejected": len(all_records(config.log.address, config.contract.rejected_topic)),
    }


def learn_and_label(file: Path) -> None:
    """Run the federation, then the clients again: they label what they learnt before there was a snapshot."""
    run_to_end(file, CLIENTS)
    config = load_config(file)
    for client in CLIENTS:
        with open_client(config, client, clock=clock) as node:
            while node.step():
                pass


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation with readings and keys, before anything was learnt."""
    folder = tmp_path_factory.mktemp("ready")
    create_federation(folder, CLIENTS, readings=130, publish_readings=40, batch_readings_max=50, pool_clients=2)
    return folder


@pytest.fixture(scope="module")
def undisturbed(ready: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome without a power cut. The noise keys created here are those of all runs."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    shutil.copytree(ready, folder)
    learn_and_label(folder / "federation.toml")
    for client in CLIENTS:
        shutil.copy(folder / "clients" / client / "noise.key", ready / f"{client}.key")
    return outcome(folder / "federation.toml")


def create_run(ready: Path, folder: Path) -> Path:
    """A new copy with the same noise keys as all others."""
    shutil.copytree(ready, folder)
    for client in CLIENTS:
        client_folder = folder / "clients" / client
        Checkpoint(client_folder / "checkpoint.db", f"client {client} of house").close()
        shutil.copy(folder / f"{client}.key", client_folder / "noise.key")
    return folder / "federation.toml"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("kind", "name", "every"), CALLS, ids=[name for _, name, _ in CALLS])
def test_a_power_cut_at_any_call_changes_nothing(
    kind: type, name: str, every: int, after: bool, ready: Path, undisturbed: dict[str, Any], memory_folder: Path
) -> None:
    assert undisturbed["updates"].keys() == set(CLIENTS)
    assert all(len(labels) == 130 for _, labels, _ in undisturbed["local_results"].values())
    cut_at_every_call(
        kind,
        name,
        after,
        lambda number: create_run(ready, memory_folder / f"{number}"),
        learn_and_label,
        outcome,
        undisturbed,
        every,
    )
