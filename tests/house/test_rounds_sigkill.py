"""Processes killed in the middle of rounds, on both transports, end as if nothing had happened.

Clients read all their readings before the first round, and a round waits for every client, so only
one outcome is right: that of an undisturbed federation in one process.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import Config, load_config
from shoal.onebox.federation import OneBox
from shoal.protocol.codec import pack
from shoal.protocol.messages import Snapshot, Update
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.models.rounds import RoundsModel
from shoal.server_node.node import ServerNode
from shoal.transports import open_log
from shoal.transports.base import Log, latest
from tests.house.processes import Process, kill_all, killed_on_exit
from tests.house.rounds_federation import create_rounds_federation
from tests.house.small_federation import CLIENTS, all_records, clock, model_bytes

ROUNDS_MAX = 40
MODELS = f"""
[[models]]
name = "clusters"
algorithm = "fcac"

[[models]]
name = "heaps"
algorithm = "kmeans"
source = "clusters"
options = {{ clusters = 5 }}
[models.rounds]
quorum = 1
deadline_s = 3600
wake_s = 86400

[[models]]
name = "rules"
algorithm = "tsk"
source = "clusters"
options = {{ clusters = 3, target = "damp" }}
[models.rounds]
quorum = 1
deadline_s = 3600
wake_s = 86400

[[models]]
name = "shapes"
algorithm = "dbscan"
[models.rounds]
quorum = 1
deadline_s = 3600
wake_s = 86400

[[models]]
name = "ties"
algorithm = "spectral"
options = {{ clusters = 3, landmarks = 20 }}
[models.rounds]
quorum = 1
deadline_s = 3600
wake_s = 86400

[[models]]
name = "fuzzy"
algorithm = "fcm"
source = "clusters"
options = {{ clusters = 3 }}
[models.rounds]
quorum = 1
deadline_s = 3600
wake_s = 86400
tolerance = 0
rounds_max = {ROUNDS_MAX}
"""
IN_ROUNDS = ("heaps", "rules", "shapes", "ties", "fuzzy")
SERVER, ATTIC, CELLAR, GARDEN = range(4)
VICTIMS = ((ATTIC,), (SERVER,), (SERVER, CELLAR), (ATTIC, CELLAR, GARDEN), (SERVER,), (GARDEN,))
EVERY = 4
"""rounds from one kill to the next"""
TIMEOUT_S = 200.0


def federation(folder: Path, name: str, address: str = "sqlite:federation.db") -> Config:
    """A federation whose clients have read all their readings and whose server has not started."""
    folder.mkdir()
    file = create_rounds_federation(folder, MODELS, readings=200)
    text = file.read_text(encoding="utf-8").replace('name = "house"', f'name = "{name}"')
    file.write_text(text.replace('"sqlite:federation.db"', f'"{address}"'), encoding="utf-8")
    config = load_config(file)
    for client in CLIENTS:
        with resumed(open_client(config, client, clock=clock)) as node:
            while node.step():
                pass
    return config


def newest(config: Config, log: Log) -> dict[str, Snapshot]:
    """model -> its newest snapshot."""
    found = latest(log, config.contract.snapshots_topic)
    records = {
        model.name: found.get(model.name.encode()) for model in config.contract.models
    }  # the lease is in this topic too
    return {
        name: Snapshot.decode(record.value, record.headers)
        for name, record in records.items()
        if record is not None
    }


def round_of(config: Config, log: Log) -> int:
    snapshot = newest(config, log).get("fuzzy")
    return 0 if snapshot is None else snapshot.round or 0


def all_asleep(config: Config, log: Log) -> bool:
    snapshots = newest(config, log)
    return all(model in snapshots and snapshots[model].round_request is None for model in IN_ROUNDS)


def wait_for(what: Callable[[], bool], processes: list[Process]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not what():
        assert time.monotonic() < until, [process.log_text()[-2000:] for process in processes]
        time.sleep(0.01)


def outcome(config: Config, server: ServerNode) -> dict[str, Any]:
    """The models, their number of rounds, and the answer of each client in each round."""
    answers: dict[tuple[str, str, int | None], set[bytes]] = {}
    for record in all_records(config.log.address, config.contract.updates_topic):
        update = Update.decode(record.value, record.headers)
        if update.round is not None:
            answers.setdefault((update.model, update.client, update.round), set()).add(
                pack(update.arrays)
            )
    assert not all_records(config.log.address, config.contract.rejected_topic)
    rounds = {}
    for name, model in server.models().items():
        if isinstance(model, RoundsModel):
            seen = model.status().rounds
            assert seen is not None
            rounds[name] = (pack(model.params), seen.round, seen.counted)
    return {"clusters": model_bytes(server), "rounds": rounds, "answers": answers}


@pytest.mark.parametrize("where", ["sqlite", pytest.param("kafka", marks=pytest.mark.integration)])
def test_processes_killed_in_the_middle_of_rounds_end_as_if_nothing_had_happened(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # The random start depends on the federation's name, so both have the same.
    name = f"house-{uuid.uuid4().hex}"
    undisturbed = federation(tmp_path / "undisturbed", name)
    with OneBox(undisturbed, CLIENTS, clock) as box:
        box.run_until_idle()
        expected = outcome(undisturbed, box.server)
    assert set(expected["rounds"]) == set(IN_ROUNDS)
    assert expected["rounds"]["fuzzy"][1:] == (ROUNDS_MAX, len(CLIENTS))

    address = "sqlite:federation.db"
    if where == "kafka":
        address = f"kafka://{request.getfixturevalue('kafka_bootstrap')}"
    folder = tmp_path / "killed"
    config = federation(folder, name, address)
    arguments = [["server", "--config", "federation.toml", "--no-page"]]
    arguments += [["client", "--config", "federation.toml", "--name", client] for client in CLIENTS]
    processes = [
        Process(argument, folder / f"{argument[-1]}-{place}.txt")
        for place, argument in enumerate(arguments)
    ]
    with killed_on_exit(processes), closing(open_log(config.log)) as log:
        for number, victims in enumerate(VICTIMS):
            wait_for(lambda number=number: round_of(config, log) > EVERY * number, processes)
            kill_all(processes[place] for place in victims)
            for place in victims:
                processes[place] = processes[place].restarted()
        assert not all_asleep(config, log), "the last processes were killed after all rounds"
        wait_for(lambda: all_asleep(config, log), processes)
        for process in processes:
            assert process.stop() == 0, process.log_text()
    with resumed(open_server(config, clock=clock)) as server:
        assert outcome(config, server) == expected
