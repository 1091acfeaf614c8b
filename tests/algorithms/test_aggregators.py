"""What a region contributes: for counts the flat result, for points each reading once, for nodes
the updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.algorithms.claims import Box, Claims
from shoal.algorithms.cluster_tree import CLUSTER_TREE
from shoal.algorithms.density_tree import DENSITY_TREE
from shoal.algorithms.density_tree.region import (
    PARTIAL_WINDOWS_MAX,
    DensityTreeAggregator,
    windows_max,
)
from shoal.algorithms.density_tree.server import DensityTreeServer
from shoal.algorithms.fcac import FCAC
from shoal.algorithms.registry import load_algorithm, streaming_names
from shoal.algorithms.streaming import Aggregator, Arrays, Contribution, StreamingAlgorithm
from shoal.errors import InvalidData, InvalidState
from shoal.privacy.count_noise import count_noise
from shoal.protocol.codec import pack
from tests.algorithms.test_density_tree import CORNERS, blobs
from tests.small_plant import nodes_at

WINDOW = 100
EPOCH_WINDOWS = 20
"""windows between two changes of the tree"""
NOISE = count_noise(2.0)
OPTIONS: Mapping[str, Any] = {
    "noise_variance": NOISE.variance,
    "window_readings": WINDOW,
    "grow_readings": WINDOW * EPOCH_WINDOWS,
    "oblique_axes": 1,
}
AGGREGATED = [name for name in streaming_names() if load_algorithm(name).aggregates]


def counted(rows: NDArray[np.float64], server: DensityTreeServer, number: int) -> Arrays:
    """The update of one window, with noise."""
    window = server.plan.count(rows, np.ones(len(rows), dtype=bool), b"client", number)
    return window.update(
        window.counts + NOISE.draw(number.to_bytes(4, "little"), len(window.counts))
    )


def contributions_of(windows: Sequence[Arrays], regions: int) -> list[Arrays]:
    """The windows as the contributions of so many regions, each of which has some of them."""
    found = []
    for region in range(regions):
        aggregator = DensityTreeAggregator(WINDOW, NOISE.variance)
        for window in windows[region::regions]:
            aggregator.add(window, int(window["places"][0]))
        found.append(aggregator.contribute())
    return found


def absorb(server: DensityTreeServer, updates: Sequence[Arrays]) -> None:
    server.absorb([Contribution("c", number, arrays) for number, arrays in enumerate(updates)], b"")


@pytest.mark.parametrize("regions", [1, 3])
def test_counts_added_up_by_regions_grow_the_same_tree_as_without_regions(regions: int) -> None:
    rows, _ = blobs(12 * WINDOW * EPOCH_WINDOWS, CORNERS, seed=3)
    # How many axes a window samples is else found from single windows, which sums do not tell.
    options = {**OPTIONS, "axes_per_window": 2}
    flat = DensityTreeServer(3, **options)
    world = DensityTreeServer(3, **options)
    for epoch in range(12):
        first = epoch * EPOCH_WINDOWS
        numbers = range(first, first + EPOCH_WINDOWS)
        windows = [
            counted(rows[number * WINDOW : (number + 1) * WINDOW], flat, number)
            for number in numbers
        ]
        absorb(flat, windows)
        absorb(world, contributions_of(windows, regions))
        assert flat.plan.digest == world.plan.digest, "both ask clients for the same counts"
    assert len(set(flat.snapshot()["cluster"].tolist())) >= 3
    assert np.array_equal(flat.predict(rows), world.predict(rows))
    ours = flat.state()
    theirs = world.state()
    assert_same_counts(ours["tree"], theirs["tree"])


def assert_same_counts(ours: Any, theirs: Any) -> None:
    """All whole numbers are the same; real numbers agree to 9 digits, but for recent readings,
    which fade."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"recent", "recent_noise"}:
            assert_same_counts(ours[name], theirs[name])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for array, other in zip(ours, theirs, strict=True):
            assert_same_counts(array, other)
    elif isinstance(ours, float | np.ndarray):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=0)
    else:
        assert ours == theirs


def test_sums_of_counts_have_the_same_bits_in_any_order_and_over_any_number_of_levels() -> None:
    server = DensityTreeServer(3, **OPTIONS)
    rows, _ = blobs(9 * WINDOW, CORNERS, seed=1)
    windows = [
        counted(rows[number * WINDOW : (number + 1) * WINDOW], server, number)
        for number in range(9)
    ]
    (flat,) = contributions_of(windows, 1)
    (backwards,) = contributions_of(windows[::-1], 1)
    (levels,) = contributions_of(contributions_of(windows, 3), 1)
    for name in flat.keys() - {"exposure"}:
        assert np.array_equal(flat[name], backwards[name])
        assert np.array_equal(flat[name], levels[name])
    np.testing.assert_allclose(flat["exposure"], levels["exposure"], rtol=1e-12)
    assert int(flat["places"][0]) == 9 * WINDOW


def test_honest_sums_of_windows_are_accepted_and_forged_ones_rejected() -> None:
    server = DensityTreeServer(3, **OPTIONS)
    rows, _ = blobs(30 * WINDOW, CORNERS, seed=1)
    windows = [
        counted(rows[number * WINDOW : (number + 1) * WINDOW], server, number)
        for number in range(30)
    ]
    (honest,) = contributions_of(windows, 1)
    claims = Claims(30 * WINDOW, Box(np.zeros(3), np.ones(3)))
    assert DENSITY_TREE.check_claims is not None
    DENSITY_TREE.check_claims(OPTIONS, honest, claims)
    forged: list[dict[str, Any]] = [
        {"count": honest["count"] + 10**6},
        {"windows": honest["windows"] + windows_max(30 * WINDOW, WINDOW)},
        {
            "windows": np.ones_like(honest["windows"]),
            "exposure": np.full_like(honest["exposure"], WINDOW + 1.0),
        },
        {"exposure": honest["exposure"] + 30 * WINDOW},
        {"places": honest["places"] + 1},
        {"count": honest["count"][:-1]},
    ]
    for change in forged:
        with pytest.raises(InvalidData):
            DENSITY_TREE.check_claims(OPTIONS, {**honest, **change}, claims)


def test_a_region_contributes_before_it_has_more_windows_than_its_readings_make() -> None:
    """Windows that time has closed have few readings each."""
    server = DensityTreeServer(3, **OPTIONS)
    aggregator = DensityTreeAggregator(WINDOW, NOISE.variance)
    added = 0
    rows, _ = blobs(100, CORNERS, seed=1)
    windows = [counted(rows[number : number + 1], server, number) for number in range(100)]
    while aggregator.has_room(windows[added], 1):
        aggregator.add(windows[added], 1)
        added += 1
    assert added >= PARTIAL_WINDOWS_MAX
    assert DENSITY_TREE.check_claims is not None
    DENSITY_TREE.check_claims(
        OPTIONS, aggregator.contribute(), Claims(added, Box(np.zeros(3), np.ones(3)))
    )


def updates_of(algorithm: StreamingAlgorithm, number: int) -> list[Arrays]:
    """Updates of one client."""
    if algorithm is DENSITY_TREE:
        server = DensityTreeServer(3)
        rows, _ = blobs(number * WINDOW, CORNERS, seed=2)
        return [
            counted(rows[window * WINDOW : (window + 1) * WINDOW], server, window)
            for window in range(number)
        ]
    client = algorithm.client({}, 3)
    rows, _ = blobs(number * WINDOW, CORNERS, seed=2)
    updates = []
    for window in range(number):
        client.learn(rows[window * WINDOW : (window + 1) * WINDOW])
        updates.append(client.contribute())
    return updates


def aggregator_of(algorithm: StreamingAlgorithm) -> Aggregator:
    assert algorithm.aggregation is not None
    return algorithm.aggregation.aggregator({}, 3)


@pytest.mark.parametrize("name", AGGREGATED)
def test_a_restored_aggregator_contributes_the_same_and_nothing_twice(name: str) -> None:
    algorithm = load_algorithm(name)
    assert isinstance(algorithm, StreamingAlgorithm)
    aggregator = aggregator_of(algorithm)
    assert not any(array.size for array in aggregator.contribute().values()), (
        "nothing is new at the start"
    )
    for arrays in updates_of(algorithm, 3):
        aggregator.add(arrays, WINDOW)
        restored = aggregator_of(algorithm)
        restored.restore(aggregator.state())
        aggregator = restored
    kept = aggregator.state()
    contributed = aggregator.contribute()
    assert any(array.size for array in contributed.values())
    assert not any(array.size for array in aggregator.contribute().values())
    again = aggregator_of(algorithm)
    again.restore(kept)
    for name_of_array, array in again.contribute().items():
        assert np.array_equal(array, contributed[name_of_array])


@pytest.mark.parametrize("name", AGGREGATED)
def test_a_damaged_state_is_refused_and_changes_nothing(name: str) -> None:
    algorithm = load_algorithm(name)
    assert isinstance(algorithm, StreamingAlgorithm)
    aggregator = aggregator_of(algorithm)
    for arrays in updates_of(algorithm, 2):
        aggregator.add(arrays, WINDOW)
    before = aggregator.state()
    for entry, value in before.items():
        damaged = [{name: kept for name, kept in before.items() if name != entry}]
        if isinstance(value, np.ndarray):
            damaged += [
                {**before, entry: array}
                for array in (value[:-1], value[:, None], value.astype(np.int16))
            ]
        for state in damaged:
            with pytest.raises(InvalidState):
                aggregator.restore(state)
    contributed = aggregator.contribute()
    again = aggregator_of(algorithm)
    again.restore(before)
    for entry, array in again.contribute().items():
        assert np.array_equal(array, contributed[entry])


@pytest.mark.parametrize("name", AGGREGATED)
def test_the_state_of_another_aggregator_is_refused(name: str) -> None:
    algorithm = load_algorithm(name)
    assert isinstance(algorithm, StreamingAlgorithm)
    with pytest.raises(InvalidState):
        aggregator_of(algorithm).restore({"version": 1, "half": "of something else"})


def test_merged_points_stand_for_every_reading_once_and_keep_its_mean() -> None:
    aggregator = aggregator_of(CLUSTER_TREE)
    updates = updates_of(CLUSTER_TREE, 40)
    for arrays in updates:
        aggregator.add(arrays, WINDOW)
    contributed = aggregator.contribute()
    points = contributed["point"]
    counts = contributed["count"]
    assert len(points) < sum(len(arrays["point"]) for arrays in updates) / 2, (
        "near points are merged"
    )
    assert counts.sum() == 40 * WINDOW
    given = [(arrays["point"] * arrays["count"][:, None]).sum(axis=0) for arrays in updates]
    np.testing.assert_allclose(
        (points * counts[:, None]).sum(axis=0), np.sum(given, axis=0), rtol=1e-9
    )


def test_only_one_update_of_a_contribution_may_stand_for_earlier_readings() -> None:
    """The receiver allows for the history of one client, not of many."""
    client = CLUSTER_TREE.client({}, 3)
    rows, _ = blobs(1000, CORNERS, seed=2)
    client.learn(rows)
    plain = client.contribute()
    client.reset_published()
    client.learn(rows[:10])
    with_history = client.contribute()
    aggregator = aggregator_of(CLUSTER_TREE)
    assert aggregator.has_room(with_history, 10)
    aggregator.add(with_history, 10)
    assert aggregator.has_room(plain, 1000)
    assert not aggregator.has_room(with_history, 10)


def test_a_region_of_fcac_passes_on_its_clients_updates_one_after_the_other() -> None:
    updates = updates_of(FCAC, 5)
    aggregator = aggregator_of(FCAC)
    above = aggregator_of(FCAC)
    for arrays in updates[:2]:
        aggregator.add(arrays, WINDOW)
    above.add(aggregator.contribute(), 2 * WINDOW)
    for arrays in updates[2:]:
        above.add(arrays, WINDOW)
    contributed = above.contribute()
    assert contributed["part"].tolist() == [len(arrays["count"]) for arrays in updates]
    for name in ("weight", "count"):
        assert np.array_equal(
            contributed[name], np.concatenate([arrays[name] for arrays in updates])
        )
    assert not any(array.size for array in above.contribute().values())


def test_the_upstream_federation_learns_a_contribution_of_fcac_as_it_learns_the_updates_in_it() -> (
    None
):
    """Which nodes have high winning counts is decided within each update, not within all of a
    region."""
    updates = updates_of(FCAC, 5)
    key = b"north 1"
    aggregator = aggregator_of(FCAC)
    for arrays in updates:
        aggregator.add(arrays, WINDOW)
    world, flat, pooled = (FCAC.server({}, 3) for _ in range(3))
    world.absorb([Contribution("north", 1, aggregator.contribute())], key)
    for number, arrays in enumerate(updates):
        flat.absorb([Contribution("north", 1, arrays)], key + number.to_bytes(4, "big"))
    pooled.absorb([Contribution("north", 1, arrays) for arrays in updates], key)
    assert pack(world.state()) == pack(flat.state()) != pack(pooled.state())


def test_a_contribution_of_fcac_is_pooled_with_others_as_the_updates_in_it() -> None:
    updates = updates_of(FCAC, 5)
    key = b"pool"
    aggregator = aggregator_of(FCAC)
    for arrays in updates[:3]:
        aggregator.add(arrays, WINDOW)
    world = FCAC.server({}, 3)
    flat = FCAC.server({}, 3)
    world.absorb(
        [Contribution("north", 1, aggregator.contribute()), *clients_contributions(updates[3:])],
        key,
    )
    flat.absorb(clients_contributions(updates), key)
    learnt = [
        # A node's origin is the region, whose clients the upstream federation does not know.
        {name: value for name, value in half.state().items() if not name.startswith("origin")}
        for half in (world, flat)
    ]
    assert pack(learnt[0]) == pack(learnt[1])
    assert pack(world.state()) != pack(flat.state())


def clients_contributions(updates: Sequence[Arrays]) -> list[Contribution]:
    return [Contribution(f"client-{number}", 1, arrays) for number, arrays in enumerate(updates)]


@pytest.mark.parametrize("parts", [[1], [2**62, 2**62], []])
def test_parts_of_another_number_of_nodes_are_refused(parts: list[int]) -> None:
    arrays = {**updates_of(FCAC, 1)[0], "part": np.array(parts, dtype=np.int64)}
    assert len(arrays["count"]) > 1
    half = FCAC.server({}, 3)
    with pytest.raises(InvalidData, match="nodes of its parts"):
        half.absorb([Contribution("north", 1, arrays)], b"")
    assert FCAC.check_claims is not None
    with pytest.raises(InvalidData, match="nodes of its parts"):
        FCAC.check_claims({}, arrays, Claims(10**6, Box(np.zeros(3), np.ones(3))))


def test_a_contribution_of_fcac_has_no_more_nodes_than_the_receiver_accepts() -> None:
    assert FCAC.aggregation is not None
    aggregator = FCAC.aggregation.aggregator({"nodes_max": 20}, 3)
    arrays = nodes_at(np.zeros((12, 3)))
    assert aggregator.has_room(arrays, WINDOW)
    aggregator.add(arrays, WINDOW)
    assert not aggregator.has_room(arrays, WINDOW)
    aggregator.contribute()
    assert aggregator.has_room(arrays, WINDOW)
