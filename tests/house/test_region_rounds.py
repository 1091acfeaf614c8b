"""Models in rounds below an upstream federation: it combines the sum of all clients' answers,
whatever is killed."""

from __future__ import annotations

import logging
import shutil
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from shoal.algorithms.registry import rounds_algorithm
from shoal.algorithms.rounds.arrays import sum_answers
from shoal.algorithms.streaming import Arrays
from shoal.config.settings import load_config
from shoal.protocol.codec import pack
from shoal.protocol.messages import Update
from shoal.protocol.regions import Region, RegionUpdate, decode_update
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.regions.following import FollowingRounds
from tests.house.region_federations import (
    IN_ROUNDS,
    REGIONS,
    UPSTREAM,
    WORLD,
    file_of,
    running_region,
    step_all,
    write_file,
    write_world,
)
from tests.house.small_federation import all_records, clock

READINGS = 300


class Finished(NamedTuple):
    """An upstream federation that has run until all its models sleep."""

    folder: Path
    """not to be changed"""
    params: dict[tuple[str, int], Arrays]
    """(model, round) -> the parameters with which the upstream federation opened the round"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("rounds")
    write_world(folder, READINGS, models=tuple(IN_ROUNDS))
    params: dict[tuple[str, int], Arrays] = {}
    with ExitStack() as stack:
        regions = [
            stack.enter_context(running_region(file_of(folder, region), REGIONS[region]))
            for region in REGIONS
        ]
        world = stack.enter_context(
            resumed(open_server(load_config(file_of(folder, WORLD)), clock=clock))
        )
        while any([*(region.step() for region in regions), world.step()]):
            for model in world.models().values():
                if model.snapshot is not None and model.snapshot.round is not None:
                    params.setdefault((model.name, model.snapshot.round), model.snapshot.arrays)
    return Finished(folder, params)


@pytest.fixture
def world(finished: Finished, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(finished.folder, tmp_path / "federations"))


def answers_in(folder: Path, federation: str) -> dict[tuple[str, int], dict[str, Update]]:
    """(model, round) -> client or region -> its first answer in the log of a federation."""
    config = load_config(file_of(folder, federation))
    found: dict[tuple[str, int], dict[str, Update]] = defaultdict(dict)
    for record in all_records(config.log.address, config.contract.updates_topic):
        update = decode_update(record.value, record.headers)
        assert update.round is not None
        found[update.model, update.round].setdefault(update.client, update)
    return dict(found)


def assert_close(one: Arrays, other: Arrays) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("model", IN_ROUNDS)
def test_a_region_answers_with_the_sum_of_its_clients_answers(
    finished: Finished, model: str
) -> None:
    levels = answers_in(finished.folder, WORLD)
    numbers = sorted(number for name, number in levels if name == model)
    assert numbers == [1, 2, 3, 4]
    own = {region: answers_in(finished.folder, region) for region in REGIONS}
    for number in numbers:
        assert set(levels[model, number]) == set(REGIONS)
        for region, clients in REGIONS.items():
            answer = levels[model, number][region]
            parts = own[region][model, number]
            assert set(parts) == set(clients)
            table = rounds_algorithm(answer.algorithm).update
            added = sum_answers(
                finished.params[model, number],
                table,
                [parts[part].arrays for part in sorted(parts)],
            )
            assert added is not None
            assert pack(dict(answer.arrays)) == pack(added)
            assert answer.readings == sum(part.readings for part in parts.values())


@pytest.mark.parametrize("model", IN_ROUNDS)
def test_the_next_parameters_are_those_of_a_flat_federation(finished: Finished, model: str) -> None:
    """Those that all four clients' own answers combine to."""
    own = {region: answers_in(finished.folder, region) for region in REGIONS}
    for number in (1, 2, 3):
        flat = [
            answer for region in REGIONS for _, answer in sorted(own[region][model, number].items())
        ]
        assert len(flat) == 4
        combine = rounds_algorithm(flat[0].algorithm).combine
        found = combine(finished.params[model, number], [totals.arrays for totals in flat])
        assert_close(found, finished.params[model, number + 1])


def test_clients_of_a_region_have_the_parameters_of_the_upstream_federation(
    finished: Finished,
) -> None:
    with ExitStack() as stack:
        world = stack.enter_context(
            resumed(open_server(load_config(file_of(finished.folder, WORLD)), clock=clock))
        )
        for name in REGIONS:
            region = stack.enter_context(running_region(file_of(finished.folder, name), ())).server
            assert region.idle
            for model in IN_ROUNDS:
                above = world.models()[model].snapshot
                below = region.models()[model].snapshot
                assert above is not None
                assert below is not None
                assert below.round_request is None, "no client is asked any more"
                assert pack(dict(above.arrays)) == pack(dict(below.arrays))
        assert world.status().rejected == {}
        assert world.status().regions == [
            Region(region, len(clients)) for region, clients in REGIONS.items()
        ]


def test_regions_that_stop_after_every_step_answer_each_round_once(tmp_path: Path) -> None:
    write_world(tmp_path, READINGS, models=["means"])
    finished = False
    while not finished:
        with ExitStack() as stack:
            regions = [
                stack.enter_context(running_region(file_of(tmp_path, region), REGIONS[region]))
                for region in REGIONS
            ]
            world = stack.enter_context(
                resumed(open_server(load_config(file_of(tmp_path, WORLD)), clock=clock))
            )
            for node in (*regions, world, *regions):
                node.step()
            finished = world.idle and world.models()["means"].snapshot is not None
    config = load_config(file_of(tmp_path, WORLD))
    contents: dict[tuple[str, int], set[bytes]] = defaultdict(set)
    rounds: dict[str, list[int]] = defaultdict(list)
    for record in all_records(config.log.address, config.contract.updates_topic):
        update = decode_update(record.value, record.headers)
        assert update.round is not None
        if not contents[update.client, update.sequence]:
            rounds[update.client].append(update.round)
        contents[update.client, update.sequence].add(pack(dict(vars(update))))
    assert rounds == {region: [1, 2, 3, 4] for region in REGIONS}
    assert all(len(same) == 1 for same in contents.values()), "a number has one content"


def test_a_region_that_has_lost_its_checkpoint_goes_on_with_its_numbers(world: Path) -> None:
    config = load_config(file_of(world, WORLD))
    shutil.rmtree(file_of(world, "north").parent / "server")
    with ExitStack() as stack:
        server = stack.enter_context(resumed(open_server(config, clock=lambda: clock() + 3600)))
        north = stack.enter_context(
            running_region(file_of(world, "north"), REGIONS["north"], rebuild=True)
        )
        south = stack.enter_context(running_region(file_of(world, "south"), REGIONS["south"]))
        while any([server.step(), north.step(), south.step()]):
            pass
        assert server.status().rejected == {}
    numbers = [
        answer["north"].sequence
        for answer in answers_in(world, WORLD).values()
        if answer["north"].model == "means"
    ]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 4, "it has answered a round after it was rebuilt"


@pytest.mark.parametrize(
    ("version", "made_at", "adopted"), [(1, 1.0, False), (99, 1.0, True), (1, 2e9, True)]
)
def test_a_region_follows_newer_snapshots_alone(
    world: Path, version: int, made_at: float, adopted: bool
) -> None:
    """After a start it sees those that are kept, oldest first; in a log that was made anew,
    versions begin again."""
    with (
        resumed(open_server(load_config(file_of(world, WORLD)), clock=clock)) as above,
        running_region(file_of(world, "north"), ()) as north,
    ):
        newest = above.models()["means"].snapshot
        model = north.server.models()["means"]
        assert newest is not None
        assert isinstance(model, FollowingRounds)
        other = replace(
            newest, version=version, made_at=made_at, arrays={**newest.arrays, "weight": np.ones(3)}
        )
        model.follow(other, None, clock())
        assert model.params is not None
        assert (model.params["weight"].tolist() == [1.0, 1.0, 1.0]) is adopted


def test_a_region_of_a_region_adds_up_on_each_level(tmp_path: Path) -> None:
    write_world(tmp_path, READINGS, models=["means"])
    north = file_of(tmp_path, "north")
    # Its only client is the region below it.
    north.write_text(
        north.read_text(encoding="utf-8").replace("pool_clients = 2", "pool_clients = 1"), "utf-8"
    )
    write_file(tmp_path, "harbour", UPSTREAM.format(above="north", publish_s=86400), ["means"])
    shutil.move(north.parent / "clients", tmp_path / "harbour" / "clients")
    with ExitStack() as stack:
        harbour = stack.enter_context(
            running_region(file_of(tmp_path, "harbour"), REGIONS["north"])
        )
        middle = stack.enter_context(running_region(north, ()))
        south = stack.enter_context(running_region(file_of(tmp_path, "south"), REGIONS["south"]))
        world = stack.enter_context(
            resumed(open_server(load_config(file_of(tmp_path, WORLD)), clock=clock))
        )
        while any([harbour.step(), middle.step(), south.step(), world.step()]):
            pass
        assert world.status().regions == [
            Region("north", 0),
            Region("north/harbour", 2),
            Region("south", 2),
        ]
    top = answers_in(tmp_path, WORLD)["means", 1]["north"]
    assert isinstance(top, RegionUpdate)
    clients = answers_in(tmp_path, "harbour")["means", 1]
    assert top.readings == sum(client.readings for client in clients.values()) > 0
    assert_close(
        {"count": top.arrays["count"]},
        {"count": sum(client.arrays["count"] for client in clients.values())},
    )


def test_a_region_answers_from_no_more_readings_than_an_update_may_be_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_world(tmp_path, 600, models=["means"])
    for name in (WORLD, *REGIONS):
        file = file_of(tmp_path, name)
        text = file.read_text(encoding="utf-8").replace(
            '"kmeans"\n', '"kmeans"\nreadings_max = 1000\n'
        )
        file.write_text(text, encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        step_all(tmp_path, REGIONS)
    first = answers_in(tmp_path, "north")["means", 4]
    answer = answers_in(tmp_path, WORLD)["means", 4]["north"]
    assert sum(totals.readings for totals in first.values()) > 1000
    assert pack(dict(answer.arrays)) == pack(dict(first["attic"].arrays)), "the first one by name"
    assert "answers_left_out" in caplog.text


def test_a_region_answers_before_the_deadline_of_the_upstream_federation_with_what_it_has(
    tmp_path: Path,
) -> None:
    write_world(tmp_path, READINGS, models=["means"])
    now = clock()
    with (
        resumed(open_server(load_config(file_of(tmp_path, WORLD)), clock=lambda: now)) as world,
        running_region(file_of(tmp_path, "north"), ["attic"], clock=lambda: now) as north,
    ):
        while any([world.step(), north.step()]):
            pass
        request = world.models()["means"].snapshot
        assert request is not None
        assert request.round_request is not None
        assert answers_in(tmp_path, "north")["means", 1].keys() == {"attic"}
        assert answers_in(tmp_path, WORLD) == {}, "it still waits for the other client"
        now += 0.9 * (request.round_request["deadline"] - now)
        while any([world.step(), north.step()]):
            pass
    assert answers_in(tmp_path, WORLD)["means", 1].keys() == {"north"}


def test_a_region_without_answers_says_so_and_waits_for_the_next_request(tmp_path: Path) -> None:
    write_world(tmp_path, READINGS, models=["means"])
    now = clock()
    with (
        resumed(open_server(load_config(file_of(tmp_path, WORLD)), clock=lambda: now)) as world,
        running_region(file_of(tmp_path, "north"), (), clock=lambda: now) as north,
    ):
        for _ in range(2):
            while any([world.step(), north.step()]):
                pass
            opened = north.server.models()["means"].snapshot
            assert opened is not None
            assert opened.round_request is not None
            now += 20
            while north.server.step():
                pass
            assert not north.server.models()["means"].pending
        assert opened.version == 2, "the upstream federation has asked for the same round again"
    assert answers_in(tmp_path, WORLD) == {}
