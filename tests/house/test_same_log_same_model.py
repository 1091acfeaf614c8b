"""The same log gives the same model, in any batching and with any restarts."""

from __future__ import annotations

import random
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from shoal.client_nodes.bootstrap import open_client
from shoal.config.resolved import resolve
from shoal.config.settings import Config, load_config
from shoal.protocol.messages import Update
from shoal.protocol.topics import ensure_topics
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.history.store import HistoryStore
from shoal.server_node.node import ServerNode
from shoal.transports import open_log
from tests.house.small_federation import CLIENTS, clock, create_federation, model_bytes


def run_in_any_order(config: Config, chance: random.Random) -> bytes:
    """Step clients and server in random order until all are idle; returns the model."""
    with ExitStack() as stack:
        clients = [
            stack.enter_context(resumed(open_client(config, name, clock=clock))) for name in CLIENTS
        ]
        server = stack.enter_context(resumed(open_server(config, clock=clock)))
        nodes = [*clients, server]
        quiet = 0
        while quiet < 20 * len(nodes):
            quiet = 0 if chance.choice(nodes).step() else quiet + 1
        while any(node.step() for node in nodes):
            pass
        return model_bytes(server)


def replay(
    config: Config, checkpoint_file: Path, batch_updates_max: int, stop_every: int | None = None
) -> bytes:
    """The model of a new server that reads the log, and is restarted every `stop_every` steps."""
    settings = config.server.model_copy(update={"batch_updates_max": batch_updates_max})
    with closing(open_log(config.log.address)) as log:
        done = False
        while not done:
            with Checkpoint(checkpoint_file, "replay") as checkpoint:
                server = ServerNode(
                    resolve(config.contract),
                    settings,
                    log,
                    checkpoint,
                    rebuild=True,
                    clock=clock,
                    history=HistoryStore(config.resolved),
                )
                server.resume()
                steps = 0
                while stop_every is None or steps < stop_every:
                    steps += 1
                    if not server.step():
                        done = True
                        break
                model = model_bytes(server)
        return model


@pytest.mark.parametrize("seed", range(3))
def test_any_batching_and_any_restart_give_the_same_model_for_the_same_log(
    seed: int, tmp_path: Path
) -> None:
    config = load_config(
        create_federation(tmp_path, readings=300, publish_readings=20, batch_readings_max=33)
    )
    expected = run_in_any_order(config, random.Random(seed))
    for name, batch, stop_every in (
        ("one", 1, None),
        ("seven", 7, 2),
        ("all", 10_000, None),
        ("again", 10_000, None),
    ):
        assert replay(config, tmp_path / f"{name}.db", batch, stop_every) == expected, name


def test_the_first_pool_does_not_depend_on_the_order_of_clients(tmp_path: Path) -> None:
    config = load_config(
        create_federation(tmp_path, readings=60, publish_readings=60, pool_clients=3)
    )
    models = set()
    for order in (CLIENTS, CLIENTS[::-1]):
        folder = tmp_path / order[0]
        folder.mkdir()
        address = f"sqlite:{folder / 'federation.db'}"
        there = config.model_copy(
            update={"log": config.log.model_copy(update={"address": address})}
        )
        for client in order:
            copy_updates(config, there, client)
        models.add(replay(there, folder / "replay.db", 100))
    assert len(models) == 1


def copy_updates(config: Config, there: Config, client: str) -> None:
    """Run a client on the first log and copy its updates to another."""
    with resumed(open_client(config, client, clock=clock)) as node:
        while node.step():
            pass
    with (
        closing(open_log(config.log.address)) as log,
        closing(open_log(there.log.address)) as other,
    ):
        ensure_topics(other, config.contract)
        topic = config.contract.updates_topic
        for record in log.read(topic, {0: 0})[0]:
            if Update.decode(record.value, record.headers).client == client:
                other.publish(topic, record.value, record.key, record.headers)
        other.flush()
