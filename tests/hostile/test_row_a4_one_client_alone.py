"""Row A4: a client that sends alone after all others displaces their clusters of cluster_tree no more."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.shares import CLIENT_SHARE_MAX, ClientShares
from shoal.algorithms.streaming import Contribution, ServerHalf
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
def test_of_many_clients_that_send_alike_none_is_bound_whatever_the_size_of_their_updates(readings: float) -> None:
    shares = ClientShares()
    assert all(shares.admit(f"client-{number % 10}", readings) == 1.0 for number in range(60))
    lone = [shares.admit("client-1", readings) for _ in range(10 + int(4000 / readings))]
    assert max(lone[-5:]) < 0.5, "one that goes on alone is"


def test_of_up_to_three_clients_none_is_bound_and_the_share_of_one_of_many_is() -> None:
    shares = ClientShares()
    for others in ((), ("two",), ("two", "three")):
        assert all(shares.admit(name, 20.0) == 1.0 for name in others)
        assert [shares.admit("one", 500.0) for _ in range(20)] == [1.0] * 20
    assert shares.admit("four", 20.0) == 1.0
    assert shares.admit("one", 500.0) < 1.0, "one of four is bound"
    many = ClientShares()
    assert all(many.admit(f"client-{number % 9}", 400.0) == 1.0 for number in range(45))
    taken = sum(400.0 * many.admit("alone", 400.0) for _ in range(50))
    assert taken <= 4000.0 * CLIENT_SHARE_MAX / (1 - CLIENT_SHARE_MAX)
    assert many.admit("client-1", 400.0) == 1.0


def test_an_update_without_readings_counts_whole_and_changes_no_share() -> None:
    shares = ClientShares()
    shares.admit("one", 100.0)
    before = pack(shares.state())
    assert shares.admit("two", 0.0) == 1.0
    assert pack(shares.state()) == before
