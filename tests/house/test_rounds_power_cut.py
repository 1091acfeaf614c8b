"""The power is cut at every call while a model goes through its rounds: it ends as if nothing had happened.

Each run is a forked process that kills itself with SIGKILL; another one goes on from what is on the disk, in the
middle of whatever round was open.
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
from tests.house.power import cut_at_every_call
from tests.house.rounds_federation import KMEANS, begin_in_rounds, run_in_rounds, snapshots_by_version
from tests.house.small_federation import all_records, clock, said, updates_by_client

CLIENTS = ("attic", "cellar")
# Every call of those that write, and of the many that read each 23rd.
CALLS = ((Checkpoint, "save", 1), (SqliteLog, "publish", 17), (SqliteLog, "flush", 1), (SqliteLog, "read", 23))
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forked processes are how the power is cut here")


def outcome(file: Path) -> dict[str, Any]:
    """Everything that must not depend on cuts."""
    config = load_config(file)
    updates = updates_by_client(config)
    with open_server(config, clock=clock) as server:
        state = server.models()["heaps"].state()
        model = pack({name: state[name] for name in ("params", "round", "in_a_row", "call", "memory", "readings")})
    return {
        "model": model,
        "updates": {c: {n: {said(each) for each in again} for n, again in by.items()} for c, by in updates.items()},
        "snapshots": snapshots_by_version(config, "heaps"),
        "rejected": len(all_records(config.log.address, config.contract.rejected_topic)),
    }


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation with readings, before anything was learnt; its noise keys are made in a first run."""
    folder = tmp_path_factory.mktemp("ready") / "run"
    folder.mkdir()
    begin_in_rounds(folder, KMEANS, CLIENTS, readings=60)
    return folder


@pytest.fixture(scope="module")
def undisturbed(ready: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How it ends when nothing happens. Keys are made here, and shared by all runs."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    shutil.copytree(ready, folder)
    run_in_rounds(folder / "house.toml", CLIENTS)
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


def test_undisturbed_it_goes_through_several_rounds_and_comes_to_rest(undisturbed: dict[str, Any]) -> None:
    assert undisturbed["updates"].keys() == set(CLIENTS)
    assert all(len(by_number) >= 3 for by_number in undisturbed["updates"].values()), undisturbed["updates"]
    assert max(undisturbed["snapshots"]) >= 4
    assert undisturbed["rejected"] == 0


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("kind", "name", "every"), CALLS, ids=[name for _, name, _ in CALLS])
def test_a_cut_at_any_call_changes_nothing(
    kind: type, name: str, every: int, after: bool, ready: Path, undisturbed: dict[str, Any], memory_folder: Path
) -> None:
    cut_at_every_call(
        kind,
        name,
        after,
        lambda number: a_run(ready, memory_folder / f"{number}"),
        lambda file: run_in_rounds(file, CLIENTS),
        outcome,
        undisturbed,
        every,
    )
