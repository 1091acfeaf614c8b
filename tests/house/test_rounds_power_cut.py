"""Power cuts at every call while a model is in its rounds change nothing.

Each run is a forked process that kills itself with SIGKILL; another one continues from what is on the disk, in the
middle of the round that was open.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from server_node.bootstrap import open_server
from shoal.config.settings import load_config
from shoal.protocol.codec import pack
from shoal.runtime.checkpoint import Checkpoint
from shoal.transports.sqlite.log import SqliteLog
from tests.house.power_cut import cut_at_every_call
from tests.house.rounds_federation import KMEANS, create_rounds_federation, run_in_rounds, snapshots_by_version
from tests.house.small_federation import all_records, clock, contents, updates_by_client

CLIENTS = ("attic", "cellar")
# Every call of methods that write, and each 23rd of those that read.
CALLS = ((Checkpoint, "save", 1), (SqliteLog, "publish", 17), (SqliteLog, "flush", 1), (SqliteLog, "read", 23))
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a power cut is simulated in a forked process")


def outcome(file: Path) -> dict[str, Any]:
    """Everything that must not depend on power cuts."""
    config = load_config(file)
    updates = updates_by_client(config)
    with open_server(config, clock=clock) as server:
        rounds = server.models()["heaps"].state()["rounds"]
        names = ("phase", "params", "round", "closed_rounds", "request", "policy_state", "combined_readings")
        model = pack({name: rounds[name] for name in names})
    return {
        "model": model,
        "updates": {c: {n: {contents(each) for each in again} for n, again in by.items()} for c, by in updates.items()},
        "snapshots": snapshots_by_version(config, "heaps"),
        "rejected": len(all_records(config.log.address, config.contract.rejected_topic)),
    }


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation with readings, before anything was learnt."""
    folder = tmp_path_factory.mktemp("ready") / "run"
    folder.mkdir()
    create_rounds_federation(folder, KMEANS, CLIENTS, readings=60)
    return folder


@pytest.fixture(scope="module")
def undisturbed(ready: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome without a power cut. The noise keys created here are those of all runs."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    shutil.copytree(ready, folder)
    run_in_rounds(folder / "federation.toml", CLIENTS)
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


def test_without_a_power_cut_the_model_takes_several_rounds_and_then_sleeps(undisturbed: dict[str, Any]) -> None:
    assert undisturbed["updates"].keys() == set(CLIENTS)
    assert all(len(by_number) >= 3 for by_number in undisturbed["updates"].values()), undisturbed["updates"]
    assert max(undisturbed["snapshots"]) >= 4
    assert undisturbed["rejected"] == 0


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("kind", "name", "every"), CALLS, ids=[name for _, name, _ in CALLS])
def test_a_power_cut_at_any_call_changes_nothing(
    kind: type, name: str, every: int, after: bool, ready: Path, undisturbed: dict[str, Any], memory_folder: Path
) -> None:
    cut_at_every_call(
        kind,
        name,
        after,
        lambda number: create_run(ready, memory_folder / f"{number}"),
        lambda file: run_in_rounds(file, CLIENTS),
        outcome,
        undisturbed,
        every,
    )
