"""Power cuts between the chunks of an update, on the client and on the server, change nothing."""

from __future__ import annotations

import itertools
import os
import signal
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shoal.client_nodes.bootstrap import open_client
from shoal.config.resolved import resolve
from shoal.config.settings import Config, load_config
from shoal.protocol.codec import pack
from shoal.protocol.messages import Update
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.history.store import HistoryStore
from shoal.server_node.node import ServerNode
from shoal.transports import open_log
from shoal.transports.base import Log
from shoal.transports.sqlite.log import SqliteLog
from tests.house.power_cut import THINNED, cut_at_every_call, run_forked
from tests.house.small_federation import (
    all_records,
    clock,
    create_federation,
    final_model,
    give_noise_keys,
    model_bytes,
    run_to_end,
)

CLIENTS = ("attic", "cellar")
RECORD_BYTES_MAX = 1576
"""room for one or two nodes; their number depends on the noise, but they never fit into three
chunks"""
CALLS = ((Checkpoint, "save"), (SqliteLog, "publish"))
pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="a power cut is simulated in a forked process"
)


@pytest.fixture(autouse=True)
def small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the topic of updates accept records of a few nodes only."""
    monkeypatch.setattr("tests.house.small_federation.load_config", small_config)


def small_config(file: Path) -> Config:
    """The settings of the file, but with smaller records than a file may set."""
    config = load_config(file)
    return config.model_copy(
        update={"log": config.log.model_copy(update={"update_bytes_max": RECORD_BYTES_MAX})}
    )


def outcome(file: Path) -> dict[str, Any]:
    """What must not depend on power cuts: the model, the chunks, what is incomplete and what was
    rejected."""
    config = small_config(file)
    chunks: dict[tuple[Any, ...], bytes] = {}
    for record in all_records(config.log.address, config.contract.updates_topic):
        chunk = Update.decode(record.value, record.headers)
        arrays = pack(dict(chunk.arrays))
        assert (
            chunks.setdefault((chunk.client, chunk.sequence, chunk.chunk, chunk.chunks), arrays)
            == arrays
        )
    with resumed(open_server(config, clock=clock)) as server:
        incomplete = len(server._reassembly)
    return {
        "model": final_model(file),
        "chunks": chunks,
        "incomplete": incomplete,
        "rejected": rejected(file),
    }


def rejected(file: Path) -> int:
    config = small_config(file)
    return len(all_records(config.log.address, config.contract.rejected_topic))


def flush_after_each_record(kind: type) -> None:
    """From now on, each record is stored before the next one is published, so that a cut leaves a
    part of an update."""
    real = kind.publish

    def publish(self: Any, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        self.flush()

    kind.publish = publish


@THINNED
def test_a_cut_between_chunks_changes_nothing(
    every: int, memory_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = memory_folder / "run"
    folder.mkdir()
    sizes = {
        "publish_readings": 150,
        "batch_readings_max": 200,
        "pool_clients": 2,
        "batch_updates_max": 1,
    }
    file = create_federation(folder, CLIENTS, readings=150, **sizes)
    file.write_text(
        file.read_text(encoding="utf-8").replace("label = true", "label = false"), encoding="utf-8"
    )
    give_noise_keys(folder, CLIENTS)
    monkeypatch.setattr(SqliteLog, "publish", SqliteLog.publish)  # restored after the test
    flush_after_each_record(SqliteLog)
    undisturbed = cut_at_every_call(
        CALLS, file, memory_folder, lambda file: run_to_end(file, CLIENTS), outcome, every
    )
    chunks = Counter((client, sequence) for client, sequence, *_ in undisturbed["chunks"])
    assert len(chunks) >= 2
    assert min(chunks.values()) > 2


@pytest.fixture(params=["embedded", "kafka"])
def address(request: pytest.FixtureRequest) -> str:
    if request.param == "embedded":
        return "sqlite:federation.db"
    return f"kafka://{request.getfixturevalue('kafka_bootstrap')}"


def test_a_client_killed_between_two_chunks_publishes_all_of_them_again(
    address: str, tmp_path: Path
) -> None:
    file = create_federation(
        tmp_path,
        ["attic"],
        readings=150,
        publish_readings=150,
        batch_readings_max=200,
        pool_clients=1,
        address=address,
    )
    config = small_config(file)

    def until_the_third_chunk_is_stored() -> None:
        with resumed(open_client(config, "attic", clock=clock)) as client:
            kind = type(client._outbox._log)
            flush_after_each_record(kind)
            publish = kind.publish
            chunks = itertools.count(1)

            def cut(log: Log, topic: str, *args: Any, **more: Any) -> None:
                publish(log, topic, *args, **more)
                # What goes to the client's own log does not count.
                if topic == config.contract.updates_topic and next(chunks) == 3:
                    os.kill(os.getpid(), signal.SIGKILL)

            kind.publish = cut  # type: ignore[method-assign]  # of this process, which is killed
            client.step()

    assert run_forked(until_the_third_chunk_is_stored) == signal.SIGKILL
    assert published_chunks(config) == [1, 2, 3]
    with resumed(open_server(config, clock=clock)) as server:
        assert server.step(10.0)
        assert len(server._reassembly) == 1
    run_to_end(file, ["attic"])
    expected = published_chunks(config)[-1]
    assert expected > 3
    assert published_chunks(config) == [1, 2, 3, *range(1, expected + 1)]
    with resumed(open_server(config, clock=clock)) as server:
        snapshot = server.models()["clusters"].snapshot
        assert len(server._reassembly) == 0
    assert snapshot is None or snapshot.updates == 1
    assert rejected(file) == 0
    assert final_model(file) == rebuilt(config, tmp_path / "rebuilt.db")


def rebuilt(config: Config, checkpoint_file: Path) -> bytes:
    """The model of a server that reads the log from its beginning."""
    with closing(open_log(config.log)) as log, Checkpoint(checkpoint_file, "rebuilt") as checkpoint:
        server = ServerNode(
            resolve(config.contract),
            config.server,
            log,
            checkpoint,
            rebuild=True,
            clock=clock,
            history=HistoryStore(config.resolved),
        )
        server.resume()
        while not server.up_to_date:
            server.step(1.0)
        return model_bytes(server)


def published_chunks(config: Config) -> list[int]:
    records = all_records(config.log.address, config.contract.updates_topic)
    return [Update.decode(record.value, record.headers).chunk for record in records]
