"""Two regions below an upstream federation: every reading counts there once, whatever is killed,
rebuilt or forged."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.algorithms.counting import without_far_noise
from shoal.algorithms.density_tree import DENSITY_TREE
from shoal.algorithms.density_tree.arrays import blocks_of
from shoal.algorithms.density_tree.options import DensityTreeOptions
from shoal.algorithms.streaming import Contribution
from shoal.config.settings import Config, load_config
from shoal.config.upstream import load_upstream
from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.codec import pack
from shoal.protocol.messages import Update
from shoal.protocol.quarantine import QuarantineRequest
from shoal.protocol.regions import Region, RegionUpdate, decode_update
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.node import ServerNode
from shoal.server_node.regions.bridge import open_bridge
from shoal.transports import open_log
from tests.house.region_federations import (
    MODELS,
    REGIONS,
    WORLD,
    file_of,
    request_contributions,
    run_world,
    running_region,
    write_file,
    write_world,
)
from tests.house.small_federation import all_records, clock

READINGS = 900


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an upstream federation that has run to its end, to be copied and not to be
    changed."""
    folder = tmp_path_factory.mktemp("regions")
    write_world(folder, READINGS)
    run_world(folder)
    return folder


@pytest.fixture
def world(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(finished, tmp_path / "federations"))


def updates_in(config: Config) -> list[Update]:
    """Every update in the log of a federation."""
    records = all_records(config.log.address, config.contract.updates_topic)
    return [
        decode_update(record.value, record.headers)
        for record in records
        if ("type", b"contribute") not in record.headers
    ]


def contributions_to(folder: Path) -> dict[tuple[str, str], list[Update]]:
    """(region, model) -> the updates in the upstream federation's log, in their order."""
    found = defaultdict(list)
    for update in updates_in(load_config(file_of(folder, WORLD))):
        found[update.client, update.model].append(update)
    return dict(found)


def each_once(updates: list[Update]) -> list[Update]:
    """Updates of one model, without those that are there again.

    A node publishes its outbox again when it starts; how much that is depends on how far it got in
    one step, and so on the pace of the machine. What comes again is the same to the byte.
    """
    found: dict[tuple[str, int], Update] = {}
    for update in updates:
        first = found.setdefault((update.client, update.sequence), update)
        assert pack(vars_of(first)) == pack(vars_of(update))
    return list(found.values())


def world_models(folder: Path) -> Mapping[str, bytes]:
    """name -> state of each of the upstream federation's models, as bytes."""
    with resumed(open_server(load_config(file_of(folder, WORLD)), clock=clock)) as server:
        return {name: pack(model.state()) for name, model in server.models().items()}


def test_every_reading_of_every_client_counts_once_in_the_upstream_federation(
    finished: Path,
) -> None:
    found = contributions_to(finished)
    assert set(found) == {(region, model) for region in REGIONS for model in MODELS}
    for (region, model), published in found.items():
        updates = each_once(published)
        assert [update.sequence for update in updates] == list(range(1, len(updates) + 1))
        own = each_once(
            [
                update
                for update in updates_in(load_config(file_of(finished, region)))
                if update.model == model
            ]
        )
        assert (
            sum(update.readings for update in updates)
            == sum(cluster.readings for cluster in own)
            > 0
        )
        assert len(updates) < len(own), "a contribution is of several updates"
    with resumed(open_server(load_config(file_of(finished, WORLD)), clock=clock)) as server:
        status = server.status()
    assert status.rejected == {}
    assert status.regions == [Region(region, len(clients)) for region, clients in REGIONS.items()]


def test_the_counts_in_the_upstream_federation_are_those_of_all_clients_to_the_last_bit(
    finished: Path,
) -> None:
    """All but noise far below zero, which is drawn rarely: it counts as less far wherever it is
    summed."""
    options = load_config(file_of(finished, WORLD)).resolved.models["cells"].options
    variance = DensityTreeOptions.parse(options).noise_variance

    def cells_in(config: Config) -> list[Update]:
        return each_once([update for update in updates_in(config) if update.model == "cells"])

    def summed(updates: list[Update]) -> dict[tuple[int, ...], np.ndarray]:
        totals: dict[tuple[int, ...], np.ndarray] = {}
        for update in updates:
            for block in blocks_of(update.arrays, update.client):
                key = (block.leaf, block.axis, block.epoch, len(block.counts))
                counts = without_far_noise(block.counts, variance, block.windows).astype(np.int64)
                totals[key] = totals.get(key, np.int64(0)) + counts
        return totals

    flat: list[Update] = []
    for region in REGIONS:
        flat += cells_in(load_config(file_of(finished, region)))
    expected = summed(flat)
    found = summed(cells_in(load_config(file_of(finished, WORLD))))
    assert expected.keys() == found.keys()
    assert max(key[2] for key in found) > 0 or max(key[0] for key in found) > 0, (
        "the tree has changed on the way"
    )
    assert all(np.array_equal(expected[key], found[key]) for key in expected)


def test_clients_of_a_region_count_by_the_plan_of_the_upstream_federation(finished: Path) -> None:
    with ExitStack() as stack:
        world = stack.enter_context(
            resumed(open_server(load_config(file_of(finished, WORLD)), clock=clock))
        )
        plan = world.models()["cells"].snapshot
        assert plan is not None
        for name in REGIONS:
            region = stack.enter_context(
                running_region(file_of(finished, name), ())
            ).server.models()["cells"]
            assert region.snapshot is not None
            known = [
                version
                for version in range(1, plan.version + 1)
                if version == region.state()["half"]["followed"]["snapshot"]
            ]
            assert known, "it follows a version that the upstream federation has published"
            assert len(region.snapshot.arrays["leaf_id"]) > 1


def test_a_region_that_counts_by_the_upstream_plan_shows_the_upstream_clusters_and_events(
    finished: Path,
) -> None:
    """It has few of the readings itself, and none between two upstream snapshots."""

    def shown(server: ServerNode) -> tuple[dict[int, float], list[str]]:
        model = server.models()["cells"]
        events = [event.text for event in model.status().events]
        return {cluster.identity: cluster.recent_share for cluster in model.lineage.known}, events

    with ExitStack() as stack:
        shares, events = shown(
            stack.enter_context(
                resumed(open_server(load_config(file_of(finished, WORLD)), clock=clock))
            )
        )
        assert len(shares) > 1
        assert sum(shares.values()) == pytest.approx(1.0)
        for name in REGIONS:
            region = stack.enter_context(running_region(file_of(finished, name), ())).server
            assert shown(region) == (pytest.approx(shares), events)


def test_what_a_region_publishes_is_a_function_of_its_log_of_updates_alone(world: Path) -> None:
    """No checkpoint, no clock, no reading: the log alone gives the same contributions, bit
    for bit."""
    before = contributions_to(world)
    for name in REGIONS:
        shutil.rmtree(file_of(world, name).parent / "server")
        shutil.rmtree(file_of(world, name).parent / "clients")
        with running_region(file_of(world, name), (), rebuild=True) as region:
            while region.step():
                pass
    repeated = contributions_to(world)
    assert before.keys() == repeated.keys()
    for key, updates in before.items():
        assert [pack(vars_of(update)) for update in each_once(repeated[key])] == [
            pack(vars_of(update)) for update in each_once(updates)
        ]
        # The bridge has lost its place too: it copies what is in the topic of contributions, then
        # what is made again.
        times = Counter(update.sequence for update in repeated[key])
        assert min(times.values()) >= 3
    models = world_models(world)
    with resumed(open_server(load_config(file_of(world, WORLD)), clock=clock)) as server:
        results = Counter[str]()
        while server.step():
            pass
        results.update(server.status().rejected)
        after = {name: pack(model.state()) for name, model in server.models().items()}
    assert results == {}
    assert after == models, "the upstream federation drops all of it as repeated"


def test_a_region_keeps_its_clusters_while_the_upstream_server_is_rebuilt(world: Path) -> None:
    """Upstream snapshots made on the way show fewer clusters."""
    shutil.rmtree(file_of(world, WORLD).parent / "server")
    with (
        resumed(
            open_server(load_config(file_of(world, WORLD)), rebuild=True, clock=clock)
        ) as upstream,
        running_region(file_of(world, "north"), ()) as north,
    ):
        model = north.server.models()["cells"]
        rebuilt = upstream.models()["cells"]

        def clusters() -> list[object]:
            """Those that are known, and which have come and gone so far."""
            events = [event for event in model.status().events if event.kind != "share_moved"]
            return [[(cluster.identity, cluster.name) for cluster in model.lineage.known], events]

        before = clusters()
        readings = []
        while any([upstream.step(), north.step()]):
            if rebuilt.snapshot is not None:
                readings.append(rebuilt.snapshot.readings)
            assert clusters() == before
        assert readings[0] < readings[-1] == model.state()["half"]["readings"]


def vars_of(update: Update) -> dict[str, object]:
    return dict(vars(update))


def test_a_region_that_stops_at_any_step_and_starts_again_contributes_the_same(
    tmp_path: Path, finished: Path
) -> None:
    write_world(tmp_path, 300, models=["points", "nodes"])
    shutil.rmtree(tmp_path / "south")
    name = "north"
    clients = REGIONS["north"]
    for start in range(12):
        with running_region(file_of(tmp_path, name), clients) as region:
            for _ in range(start % 4 + 1):
                region.step()
    with running_region(file_of(tmp_path, name), clients) as region:
        while region.step():
            pass
    request_contributions(load_config(file_of(tmp_path, name)))
    with running_region(file_of(tmp_path, name), clients) as region:
        while region.step():
            pass
    found = contributions_to(tmp_path)
    for model in ("points", "nodes"):
        by_number: dict[int, set[bytes]] = defaultdict(set)
        for update in found[name, model]:
            by_number[update.sequence].add(pack(dict(update.arrays)))
        assert sorted(by_number) == list(range(1, len(by_number) + 1))
        assert all(len(contents) == 1 for contents in by_number.values()), (
            "a number has one content"
        )


def test_contributions_wait_while_the_upstream_federation_is_away_and_get_there_once(
    tmp_path: Path,
) -> None:
    write_world(tmp_path, 600, models=["points"])
    file = file_of(tmp_path, "north")
    with running_region(file, REGIONS["north"]) as region:
        while any([*(client.step() for client in region.clients), region.server.step()]):
            pass
        assert region.bridge.lag_records > 3
        assert region.server.models()["points"].snapshot is not None, (
            "the region serves its clients meanwhile"
        )
        assert contributions_to(tmp_path) == {}
        while region.bridge.step():
            pass
        assert region.bridge.lag_records == 0
    # As after a kill between the copy and the store of how far it has come.
    (file.parent / "server" / "upstream.db").unlink()
    with running_region(file, ()) as region:
        assert region.bridge.step()
    with resumed(open_server(load_config(file_of(tmp_path, WORLD)), clock=clock)) as server:
        while server.step():
            pass
        ((client, updates, readings, _),) = server.models()["points"].clients.totals()
    assert client == "north"
    numbers = Counter(update.sequence for update in contributions_to(tmp_path)["north", "points"])
    assert set(numbers) == set(range(1, updates + 1))
    assert min(numbers.values()) > 1, "each was copied again"
    assert readings == updates * 150


def test_an_update_that_has_come_through_the_federation_itself_is_rejected(world: Path) -> None:
    config = load_config(file_of(world, WORLD))
    update = contributions_to(world)["north", "points"][-1]
    assert isinstance(update, RegionUpdate)
    returned = replace(
        update, sequence=update.sequence + 1, regions=[["north", 2], ["north/world", 0]]
    )
    with closing(open_log(config.log)) as log:
        log.publish(
            config.contract.updates_topic,
            returned.encode(),
            config.contract.update_key("points"),
            RegionUpdate.headers(),
        )
        log.flush()
    with resumed(open_server(config, clock=clock)) as server:
        while server.step():
            pass
        assert server.status().rejected == {"cycle": 1}


def test_a_region_of_a_region_is_named_with_its_path_and_clients(tmp_path: Path) -> None:
    write_world(tmp_path, 300, models=["points"])
    north = file_of(tmp_path, "north")
    text = '[upstream]\nfile = "../north/federation.toml"\npublish_readings = 150\n'
    write_file(tmp_path, "harbour", text, ["points"])
    shutil.move(north.parent / "clients", tmp_path / "harbour" / "clients")
    with (
        running_region(file_of(tmp_path, "harbour"), REGIONS["north"]) as harbour,
        running_region(north, ()) as middle,
        resumed(open_server(load_config(file_of(tmp_path, WORLD)), clock=clock)) as world,
    ):
        while any([harbour.step(), middle.step(), world.step()]):
            pass
        assert world.status().regions == [Region("north", 0), Region("north/harbour", 2)]
        assert middle.server.status().regions == [Region("harbour", 2)]
        assert (
            world.metrics.registry.get_sample_value(
                "shoal_region_clients", {"region": "north/harbour"}
            )
            == 2
        )


def test_a_region_refuses_to_unlearn_and_says_why(world: Path) -> None:
    config = load_config(file_of(world, "north"))
    contract = config.contract
    request = QuarantineRequest(
        contract.federation, contract.digest, "points", "attic", "unlearn", "", made_at=0.0
    )
    with closing(open_log(config.log)) as log:
        log.publish(
            contract.updates_topic,
            request.encode(),
            contract.update_key("points"),
            QuarantineRequest.headers(),
        )
        log.flush()
    with running_region(file_of(world, "north"), ()) as region:
        while region.step():
            pass
        assert region.server.status().rejected == {"client": 1}


def test_a_region_whose_number_another_one_has_used_stops_with_advice(world: Path) -> None:
    """Two machines contribute under one name, to an upstream federation that has absorbed one of
    them."""
    config = load_config(file_of(world, "north"))
    upstream = load_upstream(config)
    assert upstream is not None
    update = contributions_to(world)["north", "points"][-1]
    assert isinstance(update, RegionUpdate)
    ours = replace(update, sequence=update.sequence + 1)
    other = replace(ours, made_at=ours.made_at + 1)
    contract = upstream.config.contract
    with closing(open_log(upstream.config.log)) as log, closing(open_log(config.log)) as own:
        key = contract.update_key("points")
        log.publish(contract.updates_topic, other.encode(), key, RegionUpdate.headers())
        log.flush()
        own.publish(config.contract.contributions_topic, ours.encode(), key, RegionUpdate.headers())
        own.flush()
    with resumed(open_bridge(config, upstream.config, lambda _: None)) as bridge:
        while bridge.step():
            pass
    with resumed(open_server(load_config(file_of(world, WORLD)), clock=clock)) as server:
        while server.step():
            pass
    with (
        pytest.raises(InvalidState, match="has another update with this number"),
        running_region(file_of(world, "north"), ()),
    ):
        pass


@pytest.mark.parametrize(
    "regions",
    [
        [],
        [["south", 2]],
        [["north", -1]],
        [["north/", 2]],
        [["north", 2, 3]],
        [["north", 2], ["south", 1]],
    ],
)
def test_an_update_of_a_region_must_name_the_regions_it_comes_through(
    finished: Path, regions: list[list[object]]
) -> None:
    update = contributions_to(finished)["north", "points"][0]
    assert isinstance(update, RegionUpdate)
    with pytest.raises(MessageRejected, match="regions"):
        replace(update, regions=regions)


def test_the_upstream_server_learns_what_a_flat_federation_would_from_the_same_contributions(
    finished: Path,
) -> None:
    """Nothing but what is in the log of updates reaches the upstream federation's model."""
    config = load_config(file_of(finished, WORLD))
    updates = [update for update in updates_in(config) if update.model == "cells"]
    model = config.contract.model("cells")
    assert model is not None
    half = DENSITY_TREE.server(config.resolved.models[model.name].options, 2)
    for update in updates:
        half.absorb([Contribution(update.client, update.sequence, update.arrays)], b"")
    with resumed(open_server(config, clock=clock)) as server:
        assert pack(half.state()) == pack(server.models()["cells"].state()["half"])
