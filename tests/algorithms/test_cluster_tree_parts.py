"""The parts of cluster_tree's server: what memory counts, what dependence is measured, when a split
is shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.algorithms.cluster_tree import ClusterTreeClient, ClusterTreeServer
from shoal.algorithms.cluster_tree.cells import GATHERED, KNOWN, STRAY, Cells, merged_mass_max
from shoal.algorithms.cluster_tree.dependence import nearest_of_latest
from shoal.algorithms.cluster_tree.identities import Cluster, Identities
from shoal.algorithms.cluster_tree.joining import Joining, Weights
from shoal.algorithms.cluster_tree.partition import Partition, partition, still_present
from shoal.algorithms.streaming import Contribution
from shoal.kernels.distance import squared_by_differences
from shoal.kernels.sketching import Sketch, empty_sketch, located


def cells_of(mass: list[float], cluster: list[int]) -> Cells:
    cells = Cells.empty(1)
    cells.add(Sketch(np.arange(len(mass), dtype=np.float64)[:, None], np.array(mass)), 100)
    cells.cluster = np.array(cluster)
    return cells


def test_memory_is_bounded_in_independent_readings() -> None:
    cells = cells_of([300.0, 300.0, 4000.0], [0, 0, 1])
    cells.limit_mass(200.0, 1000.0, np.array([1.0, 1.0, 10.0]))
    np.testing.assert_allclose(cells.mass, [100.0, 100.0, 2000.0])


def test_a_cluster_may_keep_its_share_of_the_recent_readings() -> None:
    cells = Cells.empty(1)
    cells.add(
        Sketch(np.array([[0.0], [5.0], [9.0], [9.1]]), np.array([100.0, 100.0, 600.0, 1200.0])),
        1000,
    )
    cells.cluster = np.array([0, 1, 2, 2])
    cells.limit_mass(1000.0, 1000.0, np.ones(4))
    np.testing.assert_allclose(cells.mass[2:].sum(), 900.0)  # of 2000 recent readings 1800
    cells.limit_mass(700.0, 1000.0, np.ones(4))
    np.testing.assert_allclose(cells.mass[2:].sum(), 700.0)


@pytest.mark.parametrize(("d", "raised"), [(16, False), (64, True)])
def test_merged_cells_are_hardly_heavier_than_the_limit_where_no_pairs_are_left_below_it(
    d: int, raised: bool
) -> None:
    generator = np.random.default_rng([0, d])
    centres = generator.random((10, d))
    cells = Cells.empty(d)
    heaviest = 0.0
    for _ in range(30):
        before = len(cells)
        rows = centres[generator.integers(10, size=100)] + generator.normal(0, 0.02, (100, d))
        cells.add(Sketch(rows, np.ones(100)), 400)
        if len(cells) < before + 100:
            heaviest = max(
                heaviest, float(cells.mass.max()) / merged_mass_max(float(cells.mass.sum()), 400)
            )
    assert (heaviest > 1.0) is raised
    assert heaviest <= 1.3


def test_readings_far_from_all_cells_are_strays_until_another_one_comes_near() -> None:
    cells = cells_of([1.0, 1.0, 1.0], [0, 0, 0])
    cells.core = np.ones(3)
    cells.add(Sketch(np.array([[1.5], [-1.9], [20.0]]), np.ones(3)), 100)
    assert cells.place.tolist() == [KNOWN] * 5 + [STRAY]
    cells.add(Sketch(np.array([[21.0], [30.0], [31.0], [-50.0]]), np.ones(4)), 100)
    assert cells.place[6:].tolist() == [GATHERED, GATHERED, GATHERED, STRAY]
    cells.settle(cells.ids < 8)
    assert cells.place.tolist() == [KNOWN] * 8 + [GATHERED, STRAY]


def trees_built(rows: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> tuple[int, ClusterTreeServer]:
    """How often the tree was built for these rows, published in updates of 50, and the server
    then."""
    built = []

    def partitioned(*args: Any) -> Partition:
        built.append(len(args))
        return partition(*args)

    monkeypatch.setattr("shoal.algorithms.cluster_tree.server.partition", partitioned)
    client = ClusterTreeClient()
    server = ClusterTreeServer()
    for number, part in enumerate(np.split(rows, len(rows) // 50)):
        client.learn(part)
        server.absorb([Contribution("sensor", number, client.contribute())], b"")
    return len(built), server


def test_a_cluster_is_shown_when_it_is_born_and_not_at_the_next_rebuild(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = np.random.default_rng(3)
    truth = np.concatenate([generator.integers(2, size=4100), generator.integers(3, size=100)])
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])[truth] + generator.normal(
        0, 0.03, (4200, 2)
    )
    before, without = trees_built(rows[:4100], monkeypatch)
    assert without.identities == [0, 1]
    after, server = trees_built(rows, monkeypatch)
    assert server.identities == [0, 1, 2]
    assert set(server.active) == {0, 1, 2}
    assert before < after <= before + 2
    assert server.predict(np.array([[0.0, 1.0]])).tolist() == [2]


def test_the_tree_is_built_at_most_twice_as_often_however_often_readings_come_where_none_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = np.random.default_rng(4)
    usual, _ = trees_built(generator.normal(0, 1, (6000, 2)), monkeypatch)
    places = np.repeat(generator.uniform(-1000, 1000, (120, 2)), 50, axis=0)
    often, _ = trees_built(places + generator.normal(0, 1, (6000, 2)), monkeypatch)
    assert usual < often <= 2 * usual


def dependences(rows: np.ndarray) -> list[tuple[float, float]]:
    """(dependence, slow dependence) of each cluster after these rows, from one client."""
    client = ClusterTreeClient()
    server = ClusterTreeServer()
    for number, part in enumerate(np.split(rows, len(rows) // 250)):
        client.learn(part)
        server.absorb([Contribution("sensor", number, client.contribute())], b"")
    identities = server.state()["identities"]
    return [
        (1.0 + max(0.0, excess), 1.0 + max(0.0, slow_excess))
        for excess, slow_excess in zip(identities["excess"], identities["slow_excess"], strict=True)
    ]


def test_independent_readings_count_as_themselves() -> None:
    ((dependence, slow),) = dependences(np.random.default_rng(1).standard_normal((8000, 2)))
    assert dependence < 1.5
    assert slow < 4.0


def test_a_level_that_moves_over_thousands_of_readings_shows_in_the_slow_dependence_only() -> None:
    generator = np.random.default_rng(2)
    level = 4.0 * np.sin(np.arange(8000) / 8000 * 2 * np.pi)
    ((dependence, slow),) = dependences(level[:, None] + generator.standard_normal((8000, 2)))
    assert dependence < 2.0
    assert slow > 5.0


def present_at(recent: list[float]) -> np.ndarray:
    """The share that counts of the 40 readings of each cell, with these recent ones, at 0, 1, 2 ...
    of one cluster."""
    cells = cells_of([40.0] * len(recent), [0] * len(recent))
    cells.recent = np.array(recent)
    squared = (cells.centres - cells.centres.T).astype(np.float32) ** 2
    ones = np.ones(len(recent))
    return still_present(
        cells, ones.astype(np.bool_), squared, np.full(len(recent), 0.1, np.float32), ones
    )


def test_places_that_receive_fewer_readings_than_the_rest_of_their_cluster_have_been_left() -> None:
    assert present_at([10.0] * 6).tolist() == [1.0] * 6
    np.testing.assert_allclose(
        present_at([0.0, 0.0, 10.0, 10.0, 10.0, 10.0]), [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    )


def test_readings_where_none_were_before_do_not_say_that_the_old_places_have_been_left() -> None:
    """A cluster that is quiet, and another one that begins and is counted to it until it is told
    apart."""
    assert present_at([0.0, 0.0, 0.0, 0.0, 40.0, 40.0]).tolist() == [1.0] * 6


def test_a_split_that_is_not_shown_yet_must_be_found_again() -> None:
    known = Identities(1000.0, 4.5, 2.0)
    known.clusters = {0: Cluster(0.0, -1, True, True), 1: Cluster(5000.0, 0, False, False)}
    assert known.remain_apart((0, 1), 4.6, 5500.0)
    assert not known.remain_apart((0, 1), 4.4, 5500.0)
    assert known.remain_apart((0, 1), 2.1, 6000.0)  # a thousand readings later it is shown
    assert known.remain_apart((0, 1), 1.9, 6000.0)  # and lost only after as long a doubt
    assert not known.remain_apart((0, 1), 1.9, 7000.0)


@pytest.mark.parametrize(
    ("significance", "readings", "is_shown"),
    [
        (4.6, 5900.0, False),
        (6.75, 5400.0, False),
        (6.75, 5500.0, True),
        (9.0, 5000.0, True),
        (4.4, 5900.0, False),
    ],
)
def test_a_split_is_shown_the_sooner_the_more_certain_it_is(
    significance: float, readings: float, is_shown: bool
) -> None:
    known = Identities(1000.0, 4.5, 2.0)
    known.clusters = {0: Cluster(0.0, -1, True, True), 1: Cluster(5000.0, 0, False, False)}
    groups = np.array([0, 0, 2, 2])
    found = Partition(groups, {0: significance, 2: significance}, np.ones(4))
    known.assign(cells_of([10.0] * 4, [0, 0, 1, 1]), found, readings)
    known.settle(readings)
    assert known.shown(np.array([1])).tolist() == [1 if is_shown else 0]


def test_a_cluster_as_which_another_one_is_shown_is_not_settled() -> None:
    known = Identities(1000.0, 4.5, 2.0)
    known.clusters = {
        0: Cluster(0.0, -1, True, True),
        1: Cluster(5000.0, 0, False, False),
        2: Cluster(5000.0, 0, True, False),
    }
    identities = np.array([0, 1, 2, 2, -1])
    known.settle(5500.0)
    assert known.settled(identities).tolist() == [False, False, True, True, False]
    known.settle(6000.0)  # the split has lasted: it is shown
    assert known.settled(identities).tolist() == [True, True, True, True, False]


@pytest.mark.parametrize(("recent", "joined"), [((50.0, 50.0), False), ((50.0, 6.0), True)])
def test_sides_that_receive_readings_at_different_times_are_tested_with_the_slow_dependence(
    recent: tuple[float, float], joined: bool
) -> None:
    at = np.concatenate([np.linspace(0.0, 1.0, 50), np.linspace(3.0, 4.0, 50)])
    ones = np.ones(100)
    weights = Weights(
        ones, np.repeat(recent, 50) / 50, ones, 100.0 * ones, ones, np.zeros(100, dtype=np.int64)
    )
    squared = ((at[:, None] - at) ** 2).astype(np.float32)
    cores = np.zeros(100, dtype=np.float32)
    joining = Joining(
        weights, at[:, None], squared, cores, 10.0, 10.0, 4.5, lambda pair, found: True
    )
    first = np.array([*range(49), *range(50, 99), 49])
    group, apart = joining.join(np.stack([first, first + 1], axis=1), squared[first, first + 1])
    assert (len(set(group.tolist())) == 1) is joined
    assert len(apart) == (0 if joined else 2)


def test_the_nearest_cell_of_a_late_point_is_its_own_or_that_which_it_has_become_part_of() -> None:
    generator = np.random.default_rng(0)
    cells = Cells.empty(2)
    block = empty_sketch(2)
    for _ in range(6):
        points = Sketch(generator.random((40, 2)), np.ones(40))
        cells.add(points, 100)
        block = block.with_more(points)
    latest = block.points[100:]
    near = nearest_of_latest(latest, cells, located(cells.centres))
    assert 0 < np.count_nonzero((cells.centres[near] == latest).all(axis=1)) < len(latest)
    np.testing.assert_array_equal(
        near, squared_by_differences(latest, cells.centres).argmin(axis=1)
    )


def shown_after_each(rows: np.ndarray, **options: Any) -> list[int]:
    """How many clusters are shown after every 100 rows, which are published in updates of 50."""
    client = ClusterTreeClient()
    server = ClusterTreeServer(**options)
    counts = []
    for number, part in enumerate(np.split(rows, len(rows) // 50)):
        client.learn(part)
        server.absorb([Contribution("sensor", number, client.contribute())], b"")
        counts.append(len(server.identities))
    return counts[1::2]


@pytest.mark.parametrize(("own", "is_shown"), [(0.25, True), (0.02, False)])
def test_a_group_in_known_ground_is_shown_once_it_has_received_its_share_and_a_burst_never(
    own: float, is_shown: bool
) -> None:
    known = Identities(1000.0, 4.5, 2.0)
    known.clusters = {
        0: Cluster(0.0, -1, True, True),
        1: Cluster(5000.0, 0, True, False, waits=True),
    }
    cells = cells_of([300.0, 100.0], [0, 1])
    for readings in (5500.0, 6000.0, 6500.0):
        received = (np.random.default_rng(int(readings)).random(500) < own).astype(np.int64)
        known.count_received(cells, received, np.ones(500), before=readings - 500.0)
    known.settle(6500.0)
    assert known.shown(np.array([1])).tolist() == [1 if is_shown else 0]


def test_the_rest_of_a_burst_does_not_count_as_its_share() -> None:
    known = Identities(1000.0, 4.5, 2.0)
    known.clusters = {
        0: Cluster(0.0, -1, True, True),
        1: Cluster(5000.0, 0, True, False, waits=True),
    }
    cells = cells_of([300.0, 100.0], [0, 1])
    known.count_received(cells, np.repeat([1, 0], [200, 300]), np.ones(500), before=5000.0)
    known.settle(9000.0)
    assert known.shown(np.array([1])).tolist() == [0]


@pytest.mark.parametrize(("gap", "waits"), [(1.0, True), (9.0, False)])
def test_only_what_lies_within_the_ground_of_a_cluster_waits_for_its_share(
    gap: float, waits: bool
) -> None:
    cells = cells_of([10.0] * 6, [0] * 6)
    cells.centres[3:] += gap
    known = Identities(1000.0, 4.5, 2.0)
    known.clusters = {0: Cluster(0.0, -1, True, True)}
    known.n_created = 1
    known.assign(cells, Partition(np.repeat([0, 3], 3), {0: 20.0, 3: 20.0}, np.ones(6)), 5000.0)
    known.settle(9000.0)
    assert known.shown(np.array([1])).tolist() == [0 if waits else 1]


@pytest.mark.parametrize(
    ("gap", "present", "at_once"),
    [(1.0, 1.0, False), (9.0, 1.0, True), (1.0, 0.9, True)],
    ids=["a part", "beyond its ground", "moved"],
)
def test_a_part_of_a_cluster_that_has_not_moved_is_shown_at_a_review(
    gap: float, present: float, at_once: bool
) -> None:
    cells = cells_of([10.0] * 6, [0] * 6)
    cells.centres[3:] += gap
    known = Identities(1000.0, 4.5, 2.0)
    known.clusters = {0: Cluster(0.0, -1, True, True)}
    known.n_created = 1
    here = np.where(np.arange(6) < 2, present, 1.0)
    found = Partition(np.repeat([0, 3], 3), {0: 20.0, 3: 20.0}, np.ones(6), present=here)
    known.assign(cells, found, 1900.0, by_review=True)
    known.settle(3800.0)
    assert known.shown(np.array([1])).tolist() == [1 if at_once else 0]
    known.review(4000.0)
    known.settle(3900.0)
    assert known.shown(np.array([1])).tolist() == [1]
    assert known.next_review == 8000.0


@pytest.mark.parametrize(
    ("rate", "slow_excess", "present", "born"),
    [
        (0.5, 0.0, 1.0, True),
        (0.3, 0.0, 1.0, False),
        (0.5, 19.0, 1.0, False),
        (0.5, 0.0, 0.2, False),
    ],
    ids=["newer", "long there", "of a sensor", "moved"],
)
def test_a_part_with_newer_readings_than_the_rest_is_a_birth_and_shown_at_once(
    rate: float, slow_excess: float, present: float, born: bool
) -> None:
    cells = cells_of([10.0] * 6, [0] * 6)
    cells.recent[:3], cells.recent[3:] = 1.0, 10.0 * rate
    known = Identities(1000.0, 4.5, 2.0)
    known.clusters = {0: Cluster(0.0, -1, True, True, slow_excess=slow_excess)}
    known.n_created = 1
    here = np.repeat([present, 1.0], 3)
    known.assign(
        cells,
        Partition(np.repeat([0, 3], 3), {0: 5.0, 3: 5.0}, np.ones(6), present=here),
        1900.0,
        True,
    )
    known.settle(1900.0)
    assert known.clusters[1].appeared is born
    assert known.shown(np.array([1])).tolist() == [1 if born else 0]


@pytest.mark.parametrize("seed", range(3))
def test_a_birth_beside_a_known_cluster_is_shown_before_the_next_review(seed: int) -> None:
    generator = np.random.default_rng(seed)
    is_late = (np.arange(3900) >= 2600) & (generator.random(3900) < 0.1)
    truth = np.where(is_late, 2, generator.integers(2, size=3900))
    rows = np.array([[0.0, 0.0], [40.0, 0.0], [0.0, 8.0]])[truth] + generator.standard_normal(
        (3900, 2)
    )
    shown = shown_after_each(rows[:3800])
    assert shown[25] == 2
    assert shown[-1] == 3


def test_reviews_come_when_the_readings_have_doubled_and_then_every_8000() -> None:
    known = Identities(1000.0, 4.5, 2.0)
    due = []
    for _ in range(5):
        due.append(known.next_review)
        known.review(known.next_review)
    assert due == [2000.0, 4000.0, 8000.0, 16000.0, 24000.0]


def test_a_barely_significant_part_must_last_a_review_only_where_readings_are_dependent() -> None:
    known = Identities(1000.0, 4.5, 2.0)
    known.clusters = {
        0: Cluster(0.0, -1, True, True),
        1: Cluster(3900.0, 0, False, False, reviewed=False),
        2: Cluster(3900.0, 0, False, False, reviewed=False, slow_excess=0.4),
        3: Cluster(3900.0, 0, True, False, reviewed=False, waits=True),
    }
    known.review(4000.0)
    known.settle(5000.0)
    assert known.shown(np.array([1, 2, 3])).tolist() == [1, 0, 0]
    known.review(8000.0)
    known.settle(7900.0)
    assert known.shown(np.array([1, 2, 3])).tolist() == [1, 2, 0]


def test_overlapping_clusters_are_told_apart_at_reviews_only() -> None:
    generator = np.random.default_rng(101)
    rows = generator.standard_normal((6000, 2))
    rows[:, 0] += 4.0 * generator.integers(4, size=6000)
    shown = np.array(shown_after_each(rows))
    changed = 100 * (1 + np.flatnonzero(np.diff(shown)) + 1)
    assert shown[-1] == 4
    assert {int(at) for at in changed if at > 2000} <= {3900, 4000}


def test_a_cluster_that_was_never_shown_does_not_outlive_the_one_it_was_shown_as() -> None:
    known = Identities(1000.0, 4.5, 2.0)
    known.clusters = {0: Cluster(0.0, -1, True, True), 1: Cluster(5000.0, 0, False, False)}
    known.settle(5000.0)
    cells = cells_of([10.0, 30.0], [0, 1])
    known.assign(cells, Partition(np.array([0, 0]), {}, np.ones(2)), 5500.0)
    assert cells.cluster.tolist() == [0, 0]


def crowd(k: int, n: int) -> np.ndarray:
    """n rows of k blobs on a grid of four features, 15 standard deviations apart or more."""
    generator = np.random.default_rng(k)
    grid = np.stack(np.meshgrid(*[np.arange(4.0)] * 4), axis=-1).reshape(-1, 4)
    centres = grid[generator.choice(len(grid), k, replace=False)]
    return centres[generator.integers(k, size=n)] + generator.normal(0.0, 1.0 / 15.0, (n, 4))


def test_the_memory_grows_with_the_places_before_they_are_told_apart() -> None:
    rows = crowd(100, 5000)
    assert shown_after_each(rows)[-1] > 80
    assert shown_after_each(rows, growth_max=1.0)[-1] < 20


def test_a_memory_that_is_too_small_for_the_clusters_says_so() -> None:
    def unresolved(**options: Any) -> int:
        client = ClusterTreeClient()
        server = ClusterTreeServer(4, **options)
        for number, part in enumerate(np.split(crowd(100, 6000), 40)):
            client.learn(part)
            server.absorb([Contribution("sensor", number, client.contribute())], b"")
        assert server.snapshot()["unresolved"].tolist() == (
            [server.unresolved] if server.unresolved else []
        )
        return server.unresolved

    assert 70 <= unresolved(growth_max=1.0) <= 120
    assert unresolved() == 0


def test_a_valley_is_found_by_what_lies_in_its_middle() -> None:
    # Two long lines, six of their standard deviations apart: somewhere along them there are two
    # readings, one of each, around which there are nearly as many as around the others.
    generator = np.random.default_rng(5)
    rows = np.stack(
        [generator.uniform(0.0, 60.0, size=1500), generator.standard_normal(1500)], axis=1
    )
    rows[750:, 1] += 6.0
    cells = Cells.empty(2)
    cells.add(Sketch(rows, np.ones(1500)), 1500)
    nothing = np.zeros(1500, dtype=np.bool_)
    ones = np.ones(1500)
    found = partition(
        cells, located(rows), nothing, nothing, ones, ones, 4.5, lambda pair, significance: False
    )
    _, sizes = np.unique(found.group, return_counts=True)
    assert len(sizes) == 2
    assert sizes.min() > 700


@pytest.mark.parametrize(("slow_dependence", "groups"), [(1.0, 2), (1.29, 2), (1.31, 1)])
def test_the_densest_places_tell_overlapping_clusters_apart_where_readings_are_independent(
    slow_dependence: float, groups: int
) -> None:
    # Two normal clusters of four features, 4.4 standard deviations apart: around their median
    # readings there is not more than between them.
    generator = np.random.default_rng(3)
    rows = generator.standard_normal((3000, 4))
    rows[1500:, 0] += 4.4
    cells = Cells.empty(4)
    cells.add(Sketch(rows, np.ones(3000)), 3000)
    nothing = np.zeros(3000, dtype=np.bool_)
    ones = np.ones(3000)
    found = partition(
        cells,
        located(rows),
        nothing,
        nothing,
        ones,
        slow_dependence * ones,
        4.5,
        lambda pair, significance: False,
    )
    assert len(np.unique(found.group)) == groups
