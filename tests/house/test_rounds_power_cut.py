"""Power cuts at every call while a model is in its rounds change nothing: the round that was open
goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.config.settings import load_config
from shoal.protocol.codec import pack
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports.sqlite.log import SqliteLog
from tests.house.power_cut import THINNED, cut_at_every_call
from tests.house.rounds_federation import (
    KMEANS,
    create_rounds_federation,
    run_in_rounds,
    snapshots_by_version,
)
from tests.house.small_federation import (
    all_records,
    clock,
    contents,
    give_noise_keys,
    updates_by_client,
)

CLIENTS = ("attic", "cellar")
CALLS = ((Checkpoint, "save"), (SqliteLog, "publish"), (SqliteLog, "flush"), (SqliteLog, "read"))


def outcome(file: Path) -> dict[str, Any]:
    """Everything that must not depend on power cuts."""
    config = load_config(file)
    updates = updates_by_client(config)
    with resumed(open_server(config, clock=clock)) as server:
        rounds = server.models()["heaps"].state()["rounds"]
        names = (
            "phase",
            "params",
            "round",
            "closed_rounds",
            "request",
            "policy_state",
            "combined_readings",
        )
        model = pack({name: rounds[name] for name in names})
    return {
        "model": model,
        "updates": {
            c: {n: {contents(record) for record in again} for n, again in by.items()}
            for c, by in updates.items()
        },
        "snapshots": snapshots_by_version(config, "heaps"),
        "rejected": len(all_records(config.log.address, config.contract.rejected_topic)),
    }


@THINNED
def test_a_power_cut_at_any_call_changes_nothing(memory_folder: Path, every: int) -> None:
    folder = memory_folder / "run"
    folder.mkdir()
    file = create_rounds_federation(folder, KMEANS, CLIENTS, readings=60)
    give_noise_keys(folder, CLIENTS)
    undisturbed = cut_at_every_call(
        CALLS, file, memory_folder, lambda file: run_in_rounds(file, CLIENTS), outcome, every
    )
    # Without a cut the model takes several rounds, and then sleeps.
    assert undisturbed["updates"].keys() == set(CLIENTS)
    assert all(len(by_number) >= 3 for by_number in undisturbed["updates"].values()), undisturbed[
        "updates"
    ]
    assert max(undisturbed["snapshots"]) >= 4
    assert undisturbed["rejected"] == 0
