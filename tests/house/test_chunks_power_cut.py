"""The power is cut between the chunks of updates, at the client's end and at the server's: nothing changes."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from client_nodes.bootstrap import open_client
from server_node.bootstrap import open_server
from server_node.node import ServerNode
from shoal.config.settings import Config, load_config
from shoal.protocol.codec import pack
from shoal.protocol.messages import Update
from shoal.runtime.checkpoint import Checkpoint
from shoal.transports import open_log
from shoal.transports.sqlite.log import SqliteLog
from tests.house.power import cut_at_every_call, cut_the_power, in_a_process
from tests.house.small_federation import all_records, begin, clock, final_model, model_bytes, run_to_end

CLIENTS = ("attic", "cellar")
RECORD_BYTES_MAX = 1560
"""a node or two: how many nodes there are depends on the noise, but they never fit into three chunks"""
CALLS = ((Checkpoint, "save"), (SqliteLog, "publish"))
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forked processes are how the power is cut here")


@pytest.fixture(autouse=True)
def small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic of updates takes a few nodes at a time."""
    monkeypatch.setattr("small_federation.load_config", small_config)


def small_config(file: Path) -> Config:
    """As the file says, but with records so small as no file may say."""
    config = load_config(file)
    return config.model_copy(update={"log": config.log.model_copy(update={"update_bytes_max": RECORD_BYTES_MAX})})


def outcome(file: Path) -> dict[str, Any]:
    """The model, and what was said in chunks, without when it was made."""
    config = small_config(file)
    said: dict[tuple[Any, ...], bytes] = {}
    for record in all_records(config.log.address, config.contract.updates_topic):
        chunk = Update.decode(record.value, record.headers)
        arrays = pack(dict(chunk.arrays))
        assert said.setdefault((chunk.client, chunk.sequence, chunk.chunk, chunk.chunks), arrays) == arrays
    with open_server(config, clock=clock) as server:
        waiting = len(server._reassembly)
    return {"model": final_model(file), "said": said, "waiting": waiting, "rejected": rejected(file)}


def rejected(file: Path) -> int:
    config = small_config(file)
    return len(all_records(config.log.address, config.contract.rejected_topic))


def store_each_word_at_once(kind: type) -> None:
    """From now on, each record is on the disk before the next one is published: a cut leaves half an update there."""
    real = kind.publish

    def publish(self: Any, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        self.flush()

    kind.publish = publish


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation with readings, and the keys that all runs share, before anything was learnt."""
    folder = tmp_path_factory.mktemp("ready-for-chunks")
    sizes = {"publish_readings": 150, "batch_readings_max": 200, "pool_clients": 2, "batch_updates_max": 1}
    file = begin(folder, CLIENTS, readings=150, **sizes)
    file.write_text(file.read_text(encoding="utf-8").replace("label = true", "label = false"), encoding="utf-8")
    for client in CLIENTS:
        home = folder / "clients" / client
        Checkpoint(home / "checkpoint.db", f"client {client} of house").close()
        (home / "noise.key").write_bytes(client.encode().ljust(32, b"k"))
        (home / "noise.key").chmod(0o600)
    return folder


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("kind", "name"), CALLS, ids=[name for _, name in CALLS])
def test_a_cut_between_chunks_changes_nothing(
    kind: type, name: str, after: bool, ready: Path, memory_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ready, memory_folder / "undisturbed")
    run_to_end(memory_folder / "undisturbed" / "house.toml", CLIENTS)
    undisturbed = outcome(memory_folder / "undisturbed" / "house.toml")
    chunks = Counter((client, sequence) for client, sequence, *_ in undisturbed["said"])
    assert len(chunks) >= 2
    assert min(chunks.values()) > 2

    def a_run(number: int) -> Path:
        shutil.copytree(ready, memory_folder / f"{number}")
        return memory_folder / f"{number}" / "house.toml"

    monkeypatch.setattr(SqliteLog, "publish", SqliteLog.publish)  # put back at the end
    store_each_word_at_once(SqliteLog)
    cut_at_every_call(kind, name, after, a_run, lambda file: run_to_end(file, CLIENTS), outcome, undisturbed)


@pytest.fixture(params=["embedded", "kafka"])
def address(request: pytest.FixtureRequest) -> str:
    if request.param == "embedded":
        return "sqlite:federation.db"
    return f"kafka://{request.getfixturevalue('kafka_bootstrap')}"


def test_a_client_killed_between_two_chunks_says_them_all_again(address: str, tmp_path: Path) -> None:
    file = begin(
        tmp_path, ["attic"], readings=150, publish_readings=150, batch_readings_max=200, pool_clients=1, address=address
    )
    config = small_config(file)

    def until_the_third_part_is_stored() -> None:
        with open_client(config, "attic", clock=clock) as client:
            kind = type(client._outbox._log)
            store_each_word_at_once(kind)
            cut_the_power(kind, "publish", 3, after=True)
            # The client's labels and what it refuses go into its own log before it speaks.
            client._keep_locally = lambda _: None  # type: ignore[method-assign]  # this client alone must not
            client.step()

    assert in_a_process(until_the_third_part_is_stored) == signal.SIGKILL
    assert parts_said(config) == [1, 2, 3]
    with open_server(config, clock=clock) as server:
        assert server.step(10.0)
        assert len(server._reassembly) == 1
    run_to_end(file, ["attic"])
    wanted = parts_said(config)[-1]
    assert wanted > 3
    assert parts_said(config) == [1, 2, 3, *range(1, wanted + 1)]
    with open_server(config, clock=clock) as server:
        snapshot = server.models()["clusters"].snapshot
        assert len(server._reassembly) == 0
    assert snapshot is None or snapshot.updates == 1
    assert rejected(file) == 0
    assert final_model(file) == rebuilt(config, tmp_path / "rebuilt.db")


def rebuilt(config: Config, memory: Path) -> bytes:
    """The model of a server that learns the log from its beginning."""
    with closing(open_log(config.log)) as log, Checkpoint(memory, "rebuilt") as checkpoint:
        server = ServerNode(config.contract, config.server, log, checkpoint, rebuild=True, clock=clock)
        server.resume()
        while not server.up_to_date:
            server.step(1.0)
        return model_bytes(server)


def parts_said(config: Config) -> list[int]:
    records = all_records(config.log.address, config.contract.updates_topic)
    return [Update.decode(record.value, record.headers).chunk for record in records]
