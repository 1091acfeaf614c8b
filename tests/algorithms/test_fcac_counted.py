"""The readings that fcac counts to its clusters are those that clients have learnt there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from shoal.algorithms.claims import Box, Claims
from shoal.algorithms.fcac import CAEFC, check_claims
from shoal.algorithms.fcac.caefc import view
from shoal.algorithms.fcac.counted_places import CountedPlaces
from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.streaming import Contribution
from shoal.errors import InvalidData
from shoal.kernels.arrays import AnyArray, Ints
from shoal.protocol.codec import pack, unpack

CENTRES = np.array([[0.15, 0.2], [0.7, 0.65], [0.3, 0.85], [0.85, 0.1]])
SPREAD = 0.03
ROWS = 6_000
STEP = 100
WITHIN = 0.01
SEED = 7
"""of streams of which CAEFC puts no two states into one cluster, as it does of others"""


def of_two(generator: np.random.Generator) -> tuple[Ints, Ints]:
    return generator.choice(2, ROWS, p=[0.95, 0.05]), np.zeros(ROWS, dtype=np.int64)


def with_a_small_one(generator: np.random.Generator) -> tuple[Ints, Ints]:
    return generator.choice(3, ROWS, p=[0.7, 0.285, 0.015]), np.zeros(ROWS, dtype=np.int64)


def of_rooms(generator: np.random.Generator) -> tuple[Ints, Ints]:
    """Rooms of which one has most of the readings."""
    room = generator.choice(3, ROWS, p=[0.85, 0.1, 0.05])
    first = generator.choice(2, ROWS, p=[0.95, 0.05])
    return np.where(room == 0, first, room + 1), room


@pytest.mark.parametrize("kind", [of_two, with_a_small_one, of_rooms])
def test_clusters_have_their_share_of_the_readings(
    kind: Callable[[np.random.Generator], tuple[Ints, Ints]],
) -> None:
    generator = np.random.default_rng(SEED)
    state, room = kind(generator)
    rows = CENTRES[state] + generator.normal(0.0, SPREAD, (ROWS, 2))
    fcac = streaming_algorithm("fcac")
    server = fcac.server({}, 2)
    clients = [fcac.client({}, 2) for _ in range(3)]
    for first in range(0, ROWS, STEP):
        for number, client in enumerate(clients):
            own = np.flatnonzero(room[first : first + STEP] == number) + first
            client.learn(rows[own])
            contribution = Contribution(f"room-{number}", first + 1, client.contribute())
            server.absorb([contribution], first.to_bytes(4, "big"))
    snapshot = server.snapshot()
    assert snapshot["counted"].sum() == ROWS
    counted = view(snapshot).counted
    assert counted is not None
    # CAEFC makes several clusters of a state while its nodes are not all connected.
    cluster = fcac.predict(snapshot, rows)
    table = np.zeros((len(counted), len(CENTRES)))
    np.add.at(table, (cluster, state), 1)
    shares = np.zeros(len(CENTRES))
    np.add.at(shares, table.argmax(axis=1), counted / ROWS)
    truth = np.bincount(state, minlength=len(CENTRES)) / ROWS
    assert shares == pytest.approx(truth, abs=WITHIN)
    again = fcac.server({}, 2)
    again.restore(unpack(pack(server.state()), 10**7))
    assert pack(dict(again.snapshot())) == pack(dict(snapshot))


def readings_by_place(counted: CountedPlaces) -> list[tuple[float, int]]:
    """In one feature, by its value."""
    saved = counted.state()
    return sorted(zip(saved.place[:, 0].tolist(), saved.readings.tolist(), strict=True))


def test_of_too_many_places_each_is_added_to_the_nearest_that_is_kept() -> None:
    places = CountedPlaces(1, 4)
    places.add([(np.array([[0.0], [0.1], [0.9], [1.0], [0.05]]), np.array([50, 20, 5, 1, 3]))])
    assert sorted(
        zip(places.state().place[:, 0].tolist(), places.state().readings.tolist(), strict=True)
    ) == [
        (0.0, 73),
        (1.0, 6),
    ]
    # Places that are one.
    same = np.full((3, 1), 1.0)
    places.add([(same, np.array([0, 1, 2])), (same, np.array([1, 1, 1]))])
    assert sorted(
        zip(places.state().place[:, 0].tolist(), places.state().readings.tolist(), strict=True)
    ) == [
        (0.0, 73),
        (1.0, 12),
    ]


def test_the_places_that_are_kept_are_the_farthest_by_euclidean_distance() -> None:
    counted = CountedPlaces(2, 4)
    # The differences of the last one add up to less than those of the one before.
    place = np.array([[0.0, 0.0], [0.1, 0.0], [0.0, 0.1], [0.3, 0.3], [0.5, 0.0]])
    counted.add([(place, np.array([9, 1, 2, 3, 4]))])
    assert counted.state().place.tolist() == [[0.0, 0.0], [0.5, 0.0]]
    assert counted.state().readings.tolist() == [12, 7]


@pytest.mark.parametrize("nodes_max", [3, 40, None])
@pytest.mark.parametrize("decimals", [1, 9])
@pytest.mark.parametrize("d", [1, 2, 8])
def test_places_are_the_same_bits_whenever_they_are_asked_for(
    d: int, decimals: int, nodes_max: int | None
) -> None:
    generator = np.random.default_rng([SEED, d])
    centres = generator.uniform(size=(9, d))
    at_each_step = CountedPlaces(d, nodes_max)
    sometimes = CountedPlaces(d, nodes_max)
    seldom = CountedPlaces(d, nodes_max)
    for step in range(90):
        nodes = []
        # Pools of several clients between steps of one, clients without nodes and without readings.
        for _ in range(1 + 2 * (step % 7 == 0)):
            n = int(generator.integers(0, 40))
            rows = centres[generator.integers(len(centres), size=n)]
            rows = rows + generator.normal(0.0, 0.1, (n, d))
            # With one decimal many nodes are equal, or as near to one place as to another.
            nodes.append((rows.round(decimals), generator.integers(0, 4, size=n)))
        for places in (at_each_step, sometimes, seldom):
            places.add(nodes)
        at_each_step.settle()
        if step % 5 == 4:
            assert pack(sometimes.state().saved()) == pack(at_each_step.state().saved())
    assert pack(seldom.state().saved()) == pack(at_each_step.state().saved())


def test_nodes_that_wait_are_in_what_is_saved_and_not_in_what_is_restored_over_them() -> None:
    near = np.array([[0.2, 0.2], [0.8, 0.8]])
    waiting = CountedPlaces(2, None)
    waiting.add([(near, np.array([3, 4]))])
    saved = waiting.state()
    assert saved.readings.tolist() == [3, 4]
    waiting.add([(near, np.array([1, 1]))])
    assert saved.readings.tolist() == [3, 4]
    waiting.restore(saved)
    assert waiting.state().readings.tolist() == [3, 4]


@pytest.mark.parametrize(
    "won",
    [
        np.array([2, -1], dtype=np.int32),
        np.array([0, 2], dtype=np.int32),
        np.array([1.0, 0.0]),
        np.array([[1], [0]], dtype=np.int32),
        np.array([1], dtype=np.int32),
    ],
    ids=["below 0", "more than ever", "no whole numbers", "of another form", "of fewer nodes"],
)
@pytest.mark.parametrize("region", [False, True])
def test_a_contribution_that_cannot_have_won_its_readings_changes_nothing(
    won: AnyArray, region: bool
) -> None:
    server = CAEFC(1)
    arrays = {"weight": np.array([[0.2], [0.4]]), "count": np.array([3, 1]), "won": won}
    if region:
        arrays["part"] = np.array([1, 1])
    before = pack(server.state())
    with pytest.raises(InvalidData, match="contribution of attic: won must be one whole number"):
        server.absorb([Contribution("attic", 1, arrays)], b"key")
    assert pack(server.state()) == before


def test_an_update_has_won_no_more_readings_than_it_is_from() -> None:
    box = Box(np.zeros(1), np.ones(1))
    arrays = {"weight": np.array([[0.2], [0.4]]), "count": np.array([9, 4], dtype=np.int32)}
    won = np.array([5, 2], dtype=np.int32)
    check_claims({}, {**arrays, "won": won}, Claims(7, box))
    for forged, readings in ((won, 6), (won * 2, 14), (-won, 7)):
        with pytest.raises(InvalidData, match="its claims do not agree"):
            check_claims({}, {**arrays, "won": forged}, Claims(readings, box))


def test_a_server_that_has_learnt_rows_itself_counts_no_readings() -> None:
    server = CAEFC(2)
    server.learn(np.random.default_rng(1).uniform(0, 1, (300, 2)))
    assert view(server.snapshot()).counted is None
    assert view(CAEFC(2).snapshot()).counted is None
