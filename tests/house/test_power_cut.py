"""Power cuts before and after every call that reads or writes the checkpoint or a log.

The final model must be the same bit for bit, every update must have the same sequence number and
content, and labels and rejected readings must be as without a power cut.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import load_config
from shoal.protocol.codec import unpack
from shoal.protocol.topics import LABELS, REJECTED
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.service import resumed
from shoal.transports import open_log
from shoal.transports.base import latest
from shoal.transports.sqlite.log import SqliteLog
from tests.house.power_cut import THINNED, cut_at_every_call, cut_power_at, run_forked
from tests.house.small_federation import (
    all_records,
    clock,
    contents,
    create_federation,
    final_model,
    give_noise_keys,
    run_to_end,
    updates_by_client,
)

CLIENTS = ("attic", "cellar")
CALLS = ((Checkpoint, "save"), (SqliteLog, "publish"), (SqliteLog, "flush"), (SqliteLog, "read"))
pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="a power cut is simulated in a forked process"
)


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
        "updates": {
            c: {n: contents(again[0]) for n, again in by.items()} for c, by in updates.items()
        },
        "local_results": local_results,
        "rejected": len(all_records(config.log.address, config.contract.rejected_topic)),
    }


def learn_and_label(file: Path) -> None:
    """Run the federation, then the clients again: they label what they learnt before there was a
    snapshot."""
    run_to_end(file, CLIENTS)
    config = load_config(file)
    for client in CLIENTS:
        with resumed(open_client(config, client, clock=clock)) as node:
            while node.step():
                pass


@THINNED
def test_a_power_cut_at_any_call_changes_nothing(memory_folder: Path, every: int) -> None:
    ready = memory_folder / "ready"
    ready.mkdir()
    create_federation(
        ready, CLIENTS, readings=130, publish_readings=40, batch_readings_max=50, pool_clients=2
    )
    give_noise_keys(ready, CLIENTS)
    file = shutil.copytree(ready, memory_folder / "run") / "federation.toml"
    undisturbed = cut_at_every_call(CALLS, file, memory_folder, learn_and_label, outcome, every)
    assert undisturbed["updates"].keys() == set(CLIENTS)
    assert all(len(labels) == 130 for _, labels, _ in undisturbed["local_results"].values())

    # Processes that are killed leave such disks, too.
    for number, (kind, name) in enumerate(CALLS):
        killed = shutil.copytree(ready, memory_folder / f"killed-{number}") / "federation.toml"

        def run_until_cut(
            file: Path = killed, call: tuple[type, str] = (kind, name), after: bool = number > 1
        ) -> None:
            cut_power_at(*call, 8, after)
            learn_and_label(file)

        assert run_forked(run_until_cut) == signal.SIGKILL
        learn_and_label(killed)
        assert outcome(killed) == undisturbed, name
