"""Algorithms that learn rows made from private counts on a grid: what is made into rows, and what
is not."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from benchmarks.from_counts import from_counts as learnt_from_counts
from benchmarks.from_counts import from_rows, moons
from reproduction.experiment import scores
from shoal.algorithms.claims import Box, Claims
from shoal.algorithms.cluster_tree import CLUSTER_TREE
from shoal.algorithms.from_counts.cells import Grid
from shoal.algorithms.from_counts.grid import (
    CLUSTER_TREE_FROM_COUNTS,
    GridCounter,
    GridServer,
    check_claims,
)
from shoal.algorithms.streaming import Contribution
from shoal.errors import InvalidData, SettingsError
from shoal.privacy.count_noise import count_noise
from shoal.protocol.codec import pack


def server_of(d: int, **options: Any) -> GridServer:
    return GridServer(CLUSTER_TREE, "point", d, options)


def window(counts: np.ndarray, readings: int, number: int = 1) -> Contribution:
    return Contribution(
        "client", number, {"places": np.array([readings]), "count": counts.astype(np.int32)}
    )


@pytest.mark.parametrize("d", [1, 2, 3])
def test_every_row_lies_in_the_cell_whose_count_it_is_made_from(d: int) -> None:
    grid = Grid(d)
    server = server_of(d)
    counts = np.random.default_rng(d).poisson(0.5, grid.cells)
    rows = server._rows(counts)
    np.testing.assert_array_equal(np.bincount(grid.numbers(rows), minlength=grid.cells), counts)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_rows_are_spread_over_their_cell_and_no_later_one_repeats_an_earlier_one(d: int) -> None:
    server = server_of(d)
    one = np.eye(1, Grid(d).cells, 5, dtype=np.int64)[0]
    first = server._rows(200 * one)
    server._learnt = 200 * one
    rows = np.concatenate([first, server._rows(200 * one)]) * Grid(d).along % 1.0
    assert len(np.unique(rows, axis=0)) == 400
    np.testing.assert_allclose(rows.mean(axis=0), 0.5, atol=0.02)
    np.testing.assert_allclose(rows.var(axis=0), 1 / 12, atol=0.01)


def test_the_neighbours_of_a_cell_are_those_that_touch_it() -> None:
    grid = Grid(2)
    generator = np.random.default_rng(0)
    values = generator.normal(size=grid.cells)
    table = np.pad(values.reshape(32, 32), 1)
    wanted = sum(
        table[1 + a : 33 + a, 1 + b : 33 + b] for a, b in itertools.product((-1, 0, 1), repeat=2)
    )
    np.testing.assert_allclose(grid.with_neighbours(values), np.ravel(wanted))


def test_without_noise_every_reading_becomes_a_row() -> None:
    server = server_of(2)
    rows = np.random.default_rng(1).uniform(size=(400, 2))
    counted = GridCounter(2).count(rows, np.ones(400, dtype=bool), b"", 0)
    server.absorb([Contribution("client", 1, counted.update(counted.counts))], b"")
    np.testing.assert_array_equal(server._learnt, counted.counts)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_noise_alone_becomes_hardly_any_row(epsilon: float) -> None:
    noise = count_noise(epsilon)
    server = server_of(2, noise_variance=noise.variance)
    for number in range(60):
        counts = noise.draw(b"noise alone %d" % number, 1024)
        server.absorb([window(counts, 400, number)], b"")
    assert server.rows_learnt <= 60 * 400 // 1000


def test_noisy_counts_are_worth_fewer_rows_than_readings_and_more_at_a_larger_epsilon() -> None:
    rows = np.random.default_rng(2).normal(0.5, 0.1, size=(8000, 2))
    counted = GridCounter(2).count(rows, np.ones(8000, dtype=bool), b"", 0)
    learnt = []
    for epsilon in (1.0, 4.0):
        noise = count_noise(epsilon)
        server = server_of(2, noise_variance=20 * noise.variance)
        private = counted.counts + sum(noise.draw(b"%d" % n, 1024) for n in range(20))
        server.absorb([window(private, 8000)], b"")
        learnt.append(server.rows_learnt)
    assert 400 < learnt[0] < learnt[1] < 8000


def test_counts_of_another_grid_are_refused_and_nothing_is_learnt() -> None:
    server = server_of(2)
    before = pack(server.state())
    with pytest.raises(InvalidData, match="not those of the grid"):
        server.absorb([window(np.full(1024, 9), 400), window(np.full(64, 9), 400)], b"")
    assert pack(server.state()) == before


def test_more_readings_than_a_window_has_are_refused() -> None:
    arrays = window(np.zeros(1024), 401).arrays
    options = {"noise_variance": 0.5, "window_readings": 400}
    claims = [Claims(readings, Box(np.zeros(2), np.ones(2))) for readings in (400, 401)]
    check_claims(options, {**arrays, "places": np.array([400])}, claims[0])
    with pytest.raises(InvalidData, match="more readings than a window"):
        check_claims(options, arrays, claims[1])


def test_options_of_the_half_that_does_not_run_are_refused() -> None:
    with pytest.raises(SettingsError, match="points_max means nothing to cluster_tree_from_counts"):
        CLUSTER_TREE_FROM_COUNTS.server({"points_max": 50}, 2)
    CLUSTER_TREE_FROM_COUNTS.server({"cells_max": 50}, 2)


def test_two_moons_are_found_at_an_epsilon_of_two_where_noisy_rows_show_nothing() -> None:
    rows, labels = moons(14_000, 2, np.random.default_rng(31))
    server = learnt_from_counts("cluster_tree_from_counts", rows[:12_000], 2.0, 31)
    assert scores(labels[12_000:], server.predict(rows[12_000:]))["ari"] > 0.95
    noisy = from_rows("cluster_tree", rows[:12_000], 2.0, 31)
    assert scores(labels[12_000:], noisy.predict(rows[12_000:]))["ari"] < 0.1


@pytest.mark.parametrize("seed", range(5))
def test_no_row_is_made_from_the_noise_of_windows_without_accepted_readings(seed: int) -> None:
    noise = count_noise(2.0)
    server = server_of(2, noise_variance=noise.variance)
    for number in range(300):
        drawn = noise.draw(bytes([seed]) + number.to_bytes(4, "little"), Grid(2).cells)
        server.absorb([window(drawn, 400, number)], b"")
    assert server.rows_learnt == 0
