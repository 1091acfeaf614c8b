"""Row A4: what one client of many sends, alone or among the others, neither displaces nor links nor
removes clusters.

The log of either kind gives the models the same updates in the same order, so the models alone are
tested here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

from benchmarks.robustness.bridge import CLUSTERS, SPREAD
from benchmarks.robustness.streaming import ROWS, attacked, honest_rows
from reproduction.experiment import scores
from shoal.algorithms.claims import Box, Claims
from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.from_counts.cells import CLIENTS_KEPT, Grid, NetCounts, links
from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.shares import CLIENT_SHARE_MAX, ClientShares
from shoal.algorithms.streaming import Arrays, Contribution, ServerHalf
from shoal.errors import InvalidData
from shoal.kernels.arrays import Bools, Ints
from shoal.privacy.count_noise import count_noise
from shoal.protocol.codec import pack

CENTRES = np.array([[0.2, 0.2], [0.8, 0.2], [0.2, 0.8], [0.8, 0.8]])


def send(server: ServerHalf, client: str, number: int, rows: np.ndarray, claimed: int = 1) -> None:
    half = streaming_algorithm("cluster_tree").client({}, 2)
    half.learn(rows)
    arrays = half.contribute()
    arrays = {**arrays, "count": arrays["count"] * claimed}
    server.absorb([Contribution(client, number, arrays)], b"%d" % number)


@pytest.mark.parametrize("claimed", [1, 250])
def test_uniform_rows_of_one_client_leave_the_clusters_of_the_others(claimed: int) -> None:
    random = np.random.default_rng(1)
    server = streaming_algorithm("cluster_tree").server({}, 2)
    for number in range(1, 28):
        rows = CENTRES[random.integers(4, size=300)] + random.normal(0, 0.03, (300, 2))
        send(server, f"client-{number % 9}", number, rows)
    before = server.predict(CENTRES)
    assert len(set(before.tolist())) == 4
    for number in range(28, 43):
        send(server, "alone", number, random.uniform(0, 1, (400, 2)), claimed)
    assert len(set(server.predict(CENTRES).tolist())) == 4


@pytest.mark.parametrize("readings", [50.0, 4000.0, 20_000.0])
def test_of_many_clients_that_send_alike_none_is_bound_whatever_the_size_of_their_updates(
    readings: float,
) -> None:
    shares = ClientShares()
    assert all(shares.admit(f"client-{number % 10}", readings) == 1.0 for number in range(60))
    lone = [shares.admit("client-1", readings) for _ in range(10 + int(4000 / readings))]
    assert max(lone[-5:]) < 0.5, "one that goes on alone is"


def test_of_up_to_two_clients_none_is_bound_and_the_share_of_one_of_more_is() -> None:
    shares = ClientShares()
    for others in ((), ("two",)):
        assert all(shares.admit(name, 400.0) == 1.0 for name in others)
        assert [shares.admit("one", 500.0) for _ in range(20)] == [1.0] * 20
    for number in range(20):
        assert shares.admit("two", 500.0) == 1.0, number
    taken = [shares.admit("three", 500.0) for _ in range(40)]
    assert 500.0 * sum(taken) <= 5000.0, "one that comes as the third has half"
    many = ClientShares()
    assert all(many.admit(f"client-{number % 9}", 400.0) == 1.0 for number in range(45))
    taken = sum(400.0 * many.admit("alone", 400.0) for _ in range(50))
    assert taken <= 4000.0 * CLIENT_SHARE_MAX / (1 - CLIENT_SHARE_MAX)
    assert many.admit("client-1", 400.0) == 1.0


def test_an_update_without_readings_counts_whole_and_changes_no_share() -> None:
    shares = ClientShares()
    shares.admit("one", 100.0)
    before = pack(shares.state().saved())
    assert shares.admit("two", 0.0) == 1.0
    assert pack(shares.state().saved()) == before


@pytest.mark.parametrize(
    ("algorithm", "attack"),
    [
        ("cluster_tree_from_counts", "alone, uniform"),
        ("cluster_tree_from_counts", "alone, bridges"),
        ("cluster_tree", "among, bridges"),
        ("density_tree", "among, bridges"),
    ],
)
def test_neither_uniform_rows_nor_rows_between_clusters_at_an_honest_rate_change_anything(
    algorithm: str, attack: str
) -> None:
    found, _ = attacked(algorithm, attack, seed=5, updates=5)
    assert found > 0.99


def test_a_client_that_has_always_had_most_readings_keeps_them() -> None:
    shares = ClientShares()
    names = [name for _ in range(30) for name in ["large"] * 9 + ["one", "two", "three"]]
    parts = [shares.admit(name, 300.0 if name == "large" else 100.0) for name in names]
    assert parts == [1.0] * len(parts)
    late = [shares.admit("late", 300.0) for _ in range(30)]
    assert late[-1] < 0.5, "one that comes later has to share"


def test_large_updates_beside_those_of_slow_clients_count_whole() -> None:
    shares = ClientShares()
    slow = ["one", "two", "three", "four", "five", "six"]
    for _ in range(8):
        assert all(shares.admit(name, 200.0) == 1.0 for name in slow)
    assert all(shares.admit(name, 10.0) == 1.0 for name in slow)
    assert shares.admit("fast", 400.0) == 1.0
    assert shares.admit("fast", 100_000.0) <= 0.02, (
        "of a claim far beyond, four updates by default count"
    )


VARIANCE = count_noise(1.0).variance
TAKING = {"most": -100, "few": -3}


@pytest.mark.parametrize("each", TAKING)
@pytest.mark.parametrize("d", [1, 2, 3])
def test_noise_of_a_client_that_takes_readings_away_window_by_window_counts_a_few_times_at_most(
    d: int, each: str
) -> None:
    grid = Grid(d)
    net = NetCounts(grid, VARIANCE)
    random = np.random.default_rng(3)
    near = np.abs(grid.corners - 0.5).max(axis=1) < 0.25
    taking = np.where(near, TAKING[each], 0)
    windows = [net.take("alone", taking) for _ in range(400)]
    assert sum(windows) <= 40
    honest = [count_noise(1.0).draw(random.bytes(8), grid.cells) for _ in range(100)]
    assert all(net.take("honest", noise) for noise in honest)


def strip(grid: Grid, low: float, high: float) -> np.ndarray:
    """A reading in each cell of a strip along the first feature."""
    x, y = grid.corners.T
    return np.where((x >= low) & (x < high) & (np.abs(y - 0.5) < 0.1), 1, 0)


@pytest.mark.parametrize(("others", "linked"), [(9, True), (2, False)])
def test_cells_that_one_client_alone_has_between_two_parts_of_others_are_links(
    others: int, linked: bool
) -> None:
    grid = Grid(2)
    net = NetCounts(grid, 0.0)
    two = 10 * strip(grid, 0.0, 0.3) + 10 * strip(grid, 0.7, 1.0)
    assert all(net.take(f"client-{number}", two) for number in range(others))
    assert net.take("alone", strip(grid, 0.3, 0.7))
    found = links(grid, (others * two + strip(grid, 0.3, 0.7)).astype(np.float64), net.owners())
    assert found.any() == linked
    x = grid.corners[found, 0]
    assert np.all((x >= 0.3) & (x < 0.7)), "of the parts of others nothing is left out"
    assert not linked or (x.max() > 0.6 and x.min() > 0.5), "and it may stay near one of them"


def test_a_cluster_that_one_site_alone_has_stays_near_one_other_or_none() -> None:
    grid = Grid(2)
    for low in (0.3, 0.5):
        net = NetCounts(grid, 0.0)
        assert all(net.take(f"client-{number}", strip(grid, 0.0, 0.3)) for number in range(9))
        assert net.take("site", strip(grid, low, 0.8))
        held = 9.0 * strip(grid, 0.0, 0.3) + strip(grid, low, 0.8)
        assert not links(grid, held, net.owners()).any()


def test_of_very_many_clients_those_that_sent_last_are_remembered() -> None:
    net = NetCounts(Grid(1), VARIANCE)
    for number in range(CLIENTS_KEPT + 5):
        net.take(f"client-{number}", np.zeros(64, dtype=np.int64))
    saved = net.state().net_client
    assert saved == [f"client-{number}" for number in range(5, CLIENTS_KEPT + 5)]


def test_a_client_that_takes_readings_away_from_a_cluster_of_density_tree_leaves_it_there() -> None:
    algorithm = streaming_algorithm("density_tree")
    noise = count_noise(1.0)
    random = np.random.default_rng(8)
    assert isinstance(algorithm, CountingAlgorithm)
    options = {"noise_variance": noise.variance, "window_readings": ROWS}
    server = algorithm.server(options, 2)
    counter = algorithm.counter(options, 2)
    names = [f"client-{number}" for number in range(9)]
    valid = np.ones(ROWS, dtype=np.bool_)
    for number, client in enumerate([*names * 10, *[*names, *["alone"] * 3] * 10]):
        counter.adopt(server.snapshot())
        counted = counter.count(honest_rows(random)[0], valid, client.encode(), number)
        private = counted.counts + noise.draw(random.bytes(8), len(counted.counts))
        if client == "alone":
            rows = CLUSTERS[0] + random.normal(0.0, SPREAD, (ROWS, 2))
            near = counter.count(rows, valid, client.encode(), number).counts
            private = least_of(
                algorithm, options, lambda counts, window=counted: window.update(counts), near > 0
            )
        server.absorb([Contribution(client, number + 1, counted.update(private))], b"")
    rows, labels = honest_rows(random, 3000)
    assert scores(labels, server.predict(rows))["ari"] > 0.99


def least_of(
    algorithm: CountingAlgorithm,
    options: dict[str, float],
    update: Callable[[Ints], Arrays],
    near: Bools,
) -> Ints:
    """The counts that take most readings away in the cells `near`, of those that the checks
    allow."""
    assert algorithm.check_claims is not None
    for second in range(120, 0, -1):
        counts = np.where(near, -second, 0)
        with suppress(InvalidData):
            algorithm.check_claims(
                options, update(counts), Claims(ROWS, Box(np.zeros(2), np.ones(2)))
            )
            return counts
    raise AssertionError("nothing can be taken away")
