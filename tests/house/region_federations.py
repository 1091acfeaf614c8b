"""Two regions of two clients each below one world, on embedded logs; each federation has a folder
of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from shoal.client_nodes.bootstrap import open_client
from shoal.client_nodes.node import ClientNode
from shoal.config.settings import Config, load_config
from shoal.config.upstream import load_upstream
from shoal.protocol.messages import Snapshot
from shoal.protocol.regions import Contribute
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.node import ServerNode
from shoal.server_node.regions.bridge import Bridge, open_bridge
from shoal.server_node.regions.hierarchy import UpstreamState
from shoal.transports import open_log
from tests.house.counting_federation import rooms
from tests.house.small_federation import clock, write_readings

FILE = """
[federation]
name = "{name}"
[[features]]
name = "warm"
low = -10
high = 50
[[features]]
name = "damp"
low = 0
high = 100
[privacy]
mode = "formal"
epsilon_per_reading = 200
counts_epsilon = 4
window_readings = 50
times = "{times}"
{models}
[log]
address = "sqlite:federation.db"
[client]
folder = "clients"
publish_readings = 50
publish_s = 86400
batch_readings_max = 70
[server]
folder = "server"
pool_clients = 2
pool_s = 86400
snapshot_updates = 3
snapshot_s = 86400
batch_updates_max = 4
port = 0
{more}
"""
UPSTREAM = """
[upstream]
file = "../{above}/federation.toml"
publish_readings = 150
publish_s = {publish_s}
"""
MODELS = {
    "cells": (
        '[[models]]\nname = "cells"\nalgorithm = "density_tree"\noptions = { grow_readings = 300 }'
    ),
    "points": '[[models]]\nname = "points"\nalgorithm = "cluster_tree"',
    "nodes": '[[models]]\nname = "nodes"\nalgorithm = "fcac"',
}
_ROUNDS = 'rounds = { between = "fresh", rounds_max = 4, tolerance = 0 }'
STATES = {
    "states": (
        '[[models]]\nname = "states"\nalgorithm = "states"\noptions = { evaluate_every = 700 }'
    )
}
IN_ROUNDS = {
    "means": (
        f'[[models]]\nname = "means"\nalgorithm = "kmeans"\noptions = {{ clusters = 3 }}\n{_ROUNDS}'
    ),
    "fuzzy": (
        f'[[models]]\nname = "fuzzy"\nalgorithm = "fcm"\noptions = {{ clusters = 3 }}\n{_ROUNDS}'
    ),
    "mixture": (
        f'[[models]]\nname = "mixture"\nalgorithm = "gmm"\noptions = {{ clusters = 3 }}\n{_ROUNDS}'
    ),
    "rules": (
        '[[models]]\nname = "rules"\nalgorithm = "tsk"\noptions = { target = "damp", clusters = 3'
        f" }}\n{_ROUNDS}"
    ),
}
"""models in rounds, in which no answer of an earlier round counts again"""
REGIONS = {"north": ("attic", "cellar"), "south": ("garden", "shed")}
WORLD = "world"


def write_world(
    folder: Path, readings: int, publish_s: float = 86400.0, models: Sequence[str] = tuple(MODELS)
) -> None:
    """Write the files of the upstream federation and its regions, and `readings` readings of each
    client."""
    write_file(folder, WORLD, "", models)
    seed = 0
    for region, clients in REGIONS.items():
        file = write_file(folder, region, UPSTREAM.format(above=WORLD, publish_s=publish_s), models)
        for client in clients:
            write_readings(load_config(file), client, rooms(readings, seed))
            seed += 1


def write_file(
    folder: Path,
    name: str,
    more: str = "",
    models: Sequence[str] = tuple(MODELS),
    times: str = "arrival",
) -> Path:
    """Write the file of one federation; `more` are more sections, `times` those that its updates
    state."""
    file = file_of(folder, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    more = f'regions = ["north", "south", "harbour", "alps", "baltic", "cape"]\n{more}'
    declared = {**MODELS, **IN_ROUNDS, **STATES}
    text = FILE.format(
        name=name, models="\n".join(declared[model] for model in models), more=more, times=times
    )
    file.write_text(text, encoding="utf-8")
    return file


def file_of(folder: Path, name: str) -> Path:
    """The file of a federation."""
    return folder / name / "federation.toml"


class RegionNodes(NamedTuple):
    """A region that runs in this process."""

    clients: list[ClientNode]
    server: ServerNode
    bridge: Bridge

    def step(self) -> bool:
        """One step of each; whether any did anything."""
        return any(
            [*(client.step() for client in self.clients), self.server.step(), self.bridge.step()]
        )


@contextmanager
def running_region(
    file: Path, clients: Sequence[str], rebuild: bool = False, clock: Callable[[], float] = clock
) -> Iterator[RegionNodes]:
    """The nodes of a region, each resumed from its checkpoint."""
    config = load_config(file)
    upstream = load_upstream(config)
    assert upstream is not None
    newest: dict[str, Snapshot] = {}

    def keep(snapshot: Snapshot) -> None:
        newest[snapshot.model] = snapshot

    with ExitStack() as stack:
        state = UpstreamState(upstream, config.upstream, newest.get)
        server = stack.enter_context(
            resumed(open_server(config, rebuild, clock=clock, upstream=state))
        )
        bridge = stack.enter_context(resumed(open_bridge(config, upstream.config, keep)))
        nodes = [
            stack.enter_context(resumed(open_client(config, client, clock=clock)))
            for client in clients
        ]
        yield RegionNodes(nodes, server, bridge)


def run_world(folder: Path) -> None:
    """Let all nodes take steps in turn until none has anything to do, then let the regions
    contribute the rest."""
    step_all(folder, REGIONS)
    for name in REGIONS:
        request_contributions(load_config(file_of(folder, name)))
    step_all(folder, dict.fromkeys(REGIONS, ()))


def step_all(folder: Path, regions: Mapping[str, Sequence[str]]) -> None:
    """Let the nodes of these regions, their clients and the upstream server take steps until none
    has more to do."""
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(running_region(file_of(folder, name), regions[name]))
            for name in regions
        ]
        world = stack.enter_context(
            resumed(open_server(load_config(file_of(folder, WORLD)), clock=clock))
        )
        while any([*(region.step() for region in nodes), world.step()]):
            pass


def request_contributions(config: Config) -> None:
    """Write a request to contribute for each model to the log of a region."""
    contract = config.contract
    with closing(open_log(config.log)) as log:
        for model in contract.models:
            request = Contribute(contract.federation, contract.digest, model.name)
            key = contract.update_key(model.name)
            log.publish(contract.updates_topic, request.encode(), key, Contribute.headers())
        log.flush()
