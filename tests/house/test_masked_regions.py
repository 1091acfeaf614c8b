"""Regions with masked counts: each unmasks its own sums, and passes them on with the noise that is
in them."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from shoal.algorithms.density_tree import DensityTreeCounter, DensityTreeServer
from shoal.algorithms.streaming import Contribution
from shoal.cli.check import check
from shoal.config.settings import load_config
from shoal.config.upstream import load_upstream
from shoal.errors import InvalidState, MessageRejected, SettingsError
from shoal.helper_node.node import helper_name
from shoal.privacy.masks import helper_public, mask, pair_key
from shoal.protocol.codec import pack
from shoal.protocol.masked import (
    CloseRound,
    HelperSum,
    MaskedCounts,
    RoundPlan,
    signed_counts,
    words_of,
)
from shoal.protocol.messages import Snapshot
from shoal.protocol.regions import Region, RegionUpdate
from shoal.protocol.validation import Validator
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.node import ServerNode
from shoal.server_node.regions.bridge import open_bridge
from shoal.server_node.regions.hierarchy import UpstreamState
from shoal.server_node.report.privacy import clients_note
from tests.house.masked_federation import FILE, MaskedFederation, model_state
from tests.house.processes import wait_until
from tests.house.small_federation import all_records

HELPERS = {"north": 2, "south": 1}
"""region -> its number of helpers"""
UPSTREAM = """
[upstream]
file = "{file}"
publish_readings = 10
publish_s = 1
"""


class World:
    """Two regions of masked counts below one federation, and the nodes of all."""

    def __init__(self, folder: Path, address: str = "sqlite:federation.db") -> None:
        self.file = folder / "world" / "federation.toml"
        self.file.parent.mkdir()
        self.regions: dict[str, MaskedFederation] = {}
        tables = []
        for name, helpers in HELPERS.items():
            (folder / name).mkdir()
            # The file of the world names the helpers of regions, so it is written after theirs.
            self.regions[name] = region = MaskedFederation(
                folder / name,
                clients=4,
                helpers=helpers,
                epsilon=30.0,
                privacy="clip = 40",
                name=name,
                address=address,
                more=UPSTREAM.format(file=self.file),
            )
            own = region.config.contract.federation
            for helper in region.config.contract.privacy.helpers:
                tables.append(
                    f'[[privacy.helpers]]\nname = "{helper.name}"\nkey = "{helper.key}"\nregion ='
                    f' "{own}"'
                )
        names = [region.config.contract.federation for region in self.regions.values()]
        text = FILE.format(
            name="world" if address.startswith("sqlite:") else f"world-{names[0]}",
            epsilon=30.0,
            window=40,
            batch_min=3,
            privacy="clip = 40",
            helpers="\n".join(tables),
            address=address,
        )
        self.file.write_text(
            text.replace("port = 0", f"port = 0\nregions = {names}").replace("'", '"')
        )
        self.config = load_config(self.file)
        self.clock = self.regions["north"].clock
        for region in self.regions.values():
            region.clock = self.clock

    @contextmanager
    def server(self) -> Iterator[ServerNode]:
        """The server of the world, resumed."""
        with resumed(open_server(self.config, clock=self.clock)) as node:
            yield node

    @contextmanager
    def region(
        self, name: str, rebuild: bool = False, bridged: bool = True
    ) -> Iterator[tuple[ServerNode, list[Any]]]:
        """The server of a region, and its bridge."""
        config = self.regions[name].config
        newest = {}
        upstream = load_upstream(config)
        assert upstream is not None

        def keep(snapshot: Snapshot) -> None:
            newest[snapshot.model] = snapshot

        with ExitStack() as stack:
            state = UpstreamState(upstream, config.upstream, newest.get)
            server = stack.enter_context(
                resumed(open_server(config, rebuild, clock=self.clock, upstream=state))
            )
            bridges = (
                [stack.enter_context(resumed(open_bridge(config, upstream.config, keep)))]
                if bridged
                else []
            )
            yield server, bridges

    def run(
        self,
        regions: Sequence[str] = tuple(HELPERS),
        without: Sequence[str] = (),
        until: Callable[[], bool] = lambda: False,
    ) -> bytes:
        """Step all nodes, with time passing, until nothing happens for a while; the state of the
        world's model.

        `without`: helpers, bridges ("bridge") that do not run.
        """
        with ExitStack() as stack:
            world = stack.enter_context(self.server())
            nodes: list[Any] = [world]
            for name in regions:
                own = self.regions[name]
                server, bridges = stack.enter_context(
                    self.region(name, bridged="bridge" not in without)
                )
                nodes += [
                    server,
                    *bridges,
                    *(stack.enter_context(own.client(client)) for client in own.names),
                ]
                nodes += [
                    stack.enter_context(own.helper(helper))
                    for helper in own.helpers
                    if f"{name}/{helper}" not in without
                ]
            idle = 0
            while idle < 6 and not until():
                worked = [node.step() for node in nodes]
                idle = 0 if any(worked) else idle + 1
                self.clock.now += 3.0
            return model_state(world)

    def feed(self, windows: int, first: int = 0) -> None:
        """Put windows of readings into the logs of all clients."""
        for region in self.regions.values():
            region.feed(windows, first=first)

    def passed_on(self) -> list[RegionUpdate]:
        """What regions have contributed, in the order of the world's log."""
        records = all_records(self.config.log.address, self.config.contract.updates_topic)
        return [
            RegionUpdate.decode(record.value, record.headers)
            for record in records
            if ("type", RegionUpdate.TYPE.encode()) in record.headers
        ]


def of_kind(federation: MaskedFederation, kind: type[Any]) -> list[Any]:
    """The messages of this kind in a region's log, in order."""
    return [kind.decode(record.value, record.headers) for record in federation.records(kind.TYPE)]


def plain_sums(region: MaskedFederation) -> list[tuple[dict[str, np.ndarray], int]]:
    """Each batch of a region, from plain counts and the helpers' noise: its arrays, and how many
    readings it has."""
    options = region.config.resolved.models["clusters"].options
    counter = DensityTreeCounter(2, **options)
    found = []
    by_place = {record.offset: record for record in region.records("masked_counts")}
    plans = {plan.round: plan for plan in of_kind(region, RoundPlan)}
    # some are published again
    for close in {message.round: message for message in of_kind(region, CloseRound)}.values():
        if plans[close.round].snapshot:
            counter.adopt(Snapshot.decode(plans[close.round].snapshot, Snapshot.headers()).arrays)
        messages = [
            MaskedCounts.decode(by_place[o].value, by_place[o].headers) for o in close.places
        ]
        cohort = (f"{close.federation}/clusters".encode(), close.round)
        total = np.zeros(close.cells, dtype=np.int64)
        for message in messages:
            public = message.client.encode() + b"\0clusters"
            rows = region.rows(message.client, 1, message.window)
            counted = counter.count(rows, np.ones(len(rows), bool), public, message.window, cohort)
            total += counted.counts
        for name in region.helpers:
            masks = np.zeros(close.cells, dtype=np.uint32)
            for message in messages:
                own = (close.federation, close.contract, close.model, name, message.client)
                names = (*own, region.log_name)
                pair = pair_key(region.secret(name), message.key, names)
                masks += mask(pair, message.entry.name(close.round, close.plan), close.cells)
            sums = of_kind(region, HelperSum)
            answer = next(
                message
                for message in sums
                if (message.helper, message.round) == (name, close.round)
            )
            total += signed_counts(masks - words_of(answer.total))
        places = sum(message.places for message in messages)
        found.append(({**counted.update(total), "places": np.array([places])}, places))
    return found


def plain_world(world: World) -> bytes:
    """The tree of the world from plain counts and noise, in the order in which batches have
    come."""
    options = world.config.resolved.models["clusters"].options
    server = DensityTreeServer(2, **options)
    sums = {
        region.config.contract.federation: (plain_sums(region), helpers)
        for region, helpers in zip(world.regions.values(), HELPERS.values(), strict=True)
    }
    # in their first order
    for update in {
        (record.client, record.sequence): record for record in world.passed_on()
    }.values():
        batches, helpers = sums[update.client]
        arrays, places = batches[update.sequence - 1]
        in_leaf = np.unique(arrays["leaf"], return_inverse=True)[1]
        counted = {
            **arrays,
            "windows": np.full(len(arrays["leaf"]), helpers),
            "exposure": places / np.bincount(in_leaf)[in_leaf],
        }
        order = np.lexsort((arrays["epoch"], arrays["axis"], arrays["leaf"]))
        parts = np.split(arrays["count"], np.cumsum(arrays["cells"])[:-1])
        counted["count"] = np.concatenate([parts[region] for region in order])
        for name in ("leaf", "axis", "epoch", "cells", "windows", "exposure"):
            counted[name] = counted[name][order]
        server.absorb([Contribution(update.client, update.sequence, counted)], b"")
    return pack(server.state())


def test_the_tree_of_the_world_is_that_of_plain_counts_with_the_noise_of_each_regions_own_helpers(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.feed(4)
    state = world.run()
    passed_on = world.passed_on()
    assert {record.client: record.sequence for record in passed_on} == {"north": 4, "south": 4}
    assert state == plain_world(world)
    assert {record.client: set(record.arrays["windows"].tolist()) for record in passed_on} == {
        "north": {2},
        "south": {1},
    }
    with world.server() as server:
        status = server.status()
    assert status.rejected == {}
    assert status.regions == [Region("north", 4), Region("south", 4)]
    note = clients_note(status.contract)
    assert "each region counts as one client" in note
    assert "cohort" not in note
    snapshots = [plan.snapshot for plan in of_kind(world.regions["north"], RoundPlan)]
    assert snapshots[0] == b"", "there is none yet"
    assert any(snapshots[1:]), "clients count under the plan of the world"


@pytest.mark.parametrize(
    "stops",
    [
        # In the normal run the test of a lost helper resumes a closed round, and the last case one
        # with a sum.
        pytest.param("at the close", marks=pytest.mark.integration),
        pytest.param("after the sum", marks=pytest.mark.integration),
        "before the bridge",
    ],
)
def test_a_region_that_dies_between_close_and_passing_on_passes_on_the_same_once(
    tmp_path: Path, stops: str
) -> None:
    world = World(tmp_path)
    world.feed(2)
    north = world.regions["north"]
    without = {
        "at the close": ["north/h0", "north/h1"],
        "after the sum": [],
        "before the bridge": ["bridge"],
    }[stops]
    kind = CloseRound if stops == "at the close" else HelperSum
    # The nodes end at any step: each resumes from what it has stored.
    world.run(["north"], without, until=lambda: len(of_kind(north, kind)) >= 1)
    world.run(["north"])
    assert [(record.client, record.sequence) for record in world.passed_on()] == [
        ("north", 1),
        ("north", 2),
    ]
    state = world.run()
    assert state == plain_world(world)


def test_a_region_rebuilt_from_its_log_passes_on_the_same_bytes_and_the_world_takes_none_twice(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.feed(3)
    before = world.run()
    passed_on = world.passed_on()
    north = world.regions["north"]
    with world.region("north") as (server, _):
        tree = model_state(server)
    shutil.rmtree(north.config.server.folder)
    with world.region("north", rebuild=True) as (server, bridges):
        while any([server.step(), *(bridge.step() for bridge in bridges)]):
            pass
        assert model_state(server) == tree
    again = [record.encode() for record in world.passed_on()[len(passed_on) :]]
    # The bridge has lost its place with the folder, so it copies those from before, and those that
    # were made again.
    assert again == 2 * [record.encode() for record in passed_on if record.client == "north"]
    assert world.run() == before


def test_a_helper_of_one_region_that_is_lost_stops_that_region_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.feed(2)
    world.run(without=["north/h1"])
    assert {record.client for record in world.passed_on()} == {"south"}
    world.run()
    assert sorted((record.client, record.sequence) for record in world.passed_on()) == [
        (region, number) for region in HELPERS for number in (1, 2)
    ]


def test_a_helper_of_a_region_restored_from_an_older_copy_stops(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.feed(1)
    world.run()
    folder = world.regions["south"].key_file("h0").parent
    shutil.copytree(folder, tmp_path / "copy")
    world.feed(1, first=1)
    world.run()
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    with pytest.raises(InvalidState, match="older than what the helper has published"):
        world.run()


@pytest.mark.integration
def test_regions_on_kafka_give_the_tree_of_plain_counts(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    world = World(tmp_path, f"kafka://{kafka_bootstrap}")
    world.feed(2)
    wait_until(lambda: world.run() == plain_world(world) and len(world.passed_on()) == 4)


def test_the_contract_of_the_world_says_whom_the_clients_of_each_region_trust(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    text = " ".join(
        CliRunner().invoke(check, [str(world.file)], catch_exceptions=False).output.split()
    )
    assert (
        "A client of region north relies on h0 or h1; no helper of another region protects it."
        in text
    )
    assert "as long as ONE of the helpers of its region keeps its secret" in text
    statement = world.config.resolved.models["clusters"].statement
    assert statement["helpers"] == ["north/h0", "north/h1", "south/h0"]
    region = " ".join(
        CliRunner()
        .invoke(check, [str(world.regions["north"].file)], catch_exceptions=False)
        .output.split()
    )
    assert "upstream" in region


def test_a_federation_of_regions_has_no_clients_and_no_helpers_of_its_own(tmp_path: Path) -> None:
    world = World(tmp_path)
    north = world.regions["north"]
    with pytest.raises(SettingsError, match="start the client with the file of its region"):
        MaskedFederation.client(_with_config(north, world), "c0").__enter__()
    with pytest.raises(SettingsError, match="give it the file of north"):
        helper_name(world.config.resolved, north.secret("h0"))
    text = world.file.read_text().replace('region = "south"', "")
    world.file.write_text(text)
    with pytest.raises(SettingsError, match="has no clients of its own"):
        _ = load_config(world.file).resolved


def _with_config(region: MaskedFederation, world: World) -> MaskedFederation:
    region.config = world.config.model_copy(update={"client": region.config.client})
    return region


def test_a_region_whose_helpers_the_world_does_not_name_does_not_start(tmp_path: Path) -> None:
    world = World(tmp_path)
    other = helper_public(secrets.token_bytes(32)).hex()
    key = next(helper.key for helper in world.regions["south"].config.contract.privacy.helpers)
    world.file.write_text(world.file.read_text().replace(key, other))
    with pytest.raises(
        SettingsError, match='with region = "south" must be those of south, which are h0'
    ):
        load_upstream(world.regions["south"].config)
    assert load_upstream(world.regions["north"].config) is not None


def test_what_says_it_is_of_a_region_that_the_contract_does_not_name_is_rejected(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.feed(1)
    world.run()
    like = world.passed_on()[0]
    checks = Validator(world.config.resolved)
    checks.check_update(like)
    with pytest.raises(MessageRejected, match="names no helpers of region west"):
        checks.check_update(replace(like, client="west", regions=[["west", 3]]))
    with pytest.raises(MessageRejected, match="windows"):
        checks.check_update(
            replace(like, arrays={**like.arrays, "windows": like.arrays["windows"] * 1000})
        )
