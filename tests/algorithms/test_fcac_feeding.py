"""The order in which the server learns the nodes of several clients."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.algorithms.fcac import CAEFC
from shoal.algorithms.fcac.caefc import (
    feed_order,
    keyed_permutation,
    legacy_permutation,
    upper_quartile,
)
from shoal.algorithms.streaming import Contribution
from tests.small_plant import nodes_at


def as_they_are(_: str, n: int) -> NDArray[np.int64]:
    return np.arange(n)


def counts(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def test_without_nodes_the_order_is_empty() -> None:
    for silent in ([], [counts()], [counts(), counts()]):
        for permute in (as_they_are, keyed_permutation(b""), legacy_permutation()):
            assert [part.tolist() for part in feed_order(silent, permute)] == [[], []]


def test_a_node_is_high_when_its_count_reaches_the_percentile_of_its_own_client() -> None:
    # 75th percentiles by linear interpolation: 3.25, 1 and 75.25.
    clients = [counts(1, 2, 3, 4), counts(1, 1, 1), counts(), counts(100, 1, 67, 1)]
    high, low = feed_order(clients, as_they_are)
    assert high.tolist() == [3, 4, 5, 6, 7]
    assert low.tolist() == [0, 1, 2, 8, 9, 10]


@given(st.lists(st.integers(1, 2**50), min_size=1, max_size=30))
def test_the_quartile_is_numpys_to_the_last_bit(values: list[int]) -> None:
    assert upper_quartile(counts(*values)) == np.percentile(values, 75)


@given(st.lists(st.lists(st.integers(1, 50), max_size=12), max_size=6), st.binary(max_size=20))
def test_every_node_is_learnt_once_and_high_ones_first(
    clients: list[list[int]], key: bytes
) -> None:
    arrays = [counts(*client) for client in clients]
    high, low = feed_order(arrays, keyed_permutation(key))
    plain_high, plain_low = feed_order(arrays, as_they_are)
    assert sorted(high.tolist()) == plain_high.tolist()
    assert sorted(low.tolist()) == plain_low.tolist()
    assert sorted([*high.tolist(), *low.tolist()]) == list(range(sum(map(len, clients))))


def test_the_keyed_order_is_that_of_words_from_shake256() -> None:
    words = hashlib.shake_256(b"key" + b"high").digest(8 * 9)
    drawn = [int.from_bytes(words[i : i + 8], "little") for i in range(0, len(words), 8)]
    assert keyed_permutation(b"key")("high", 9).tolist() == sorted(range(9), key=drawn.__getitem__)
    # Fixed values: servers on another platform or of another release must use the same order.
    assert keyed_permutation(b"key")("high", 9).tolist() == [8, 2, 1, 5, 3, 7, 6, 4, 0]
    assert keyed_permutation(b"key")("low", 9).tolist() == [5, 6, 1, 7, 4, 0, 3, 8, 2]


def test_the_legacy_order_takes_both_groups_from_one_generator() -> None:
    generator = np.random.RandomState(0)
    expected = [generator.permutation(5).tolist(), generator.permutation(4).tolist()]
    permute = legacy_permutation(0)
    assert [permute("high", 5).tolist(), permute("low", 4).tolist()] == expected


def test_another_key_is_another_order_and_nothing_else() -> None:
    generator = np.random.default_rng(0)
    contributions = [
        Contribution(
            name,
            1,
            nodes_at(generator.random((40, 2)), generator.integers(1, 9, size=40)),
        )
        for name in ("a", "b")
    ]
    servers = []
    for key in (b"one", b"one", b"two"):
        server = CAEFC()
        server.absorb(contributions, key)
        servers.append(server)
    assert servers[0].weights.tolist() == servers[1].weights.tolist() != servers[2].weights.tolist()
    assert [server.n_learnt for server in servers] == [80, 80, 80]


def test_contributions_are_learnt_in_the_order_given() -> None:
    """Two absorptions are two passes: the low group of the first goes before the high group of the
    second."""
    generator = np.random.default_rng(1)
    contributions = [
        Contribution(
            name,
            1,
            nodes_at(generator.random((30, 2)), generator.integers(1, 9, size=30)),
        )
        for name in ("a", "b")
    ]
    server = CAEFC()
    by_hand = CAEFC()
    for contribution in contributions:
        server.absorb([contribution], b"key")
        order = np.concatenate(
            feed_order([contribution.arrays["count"]], keyed_permutation(b"key"))
        )
        by_hand.learn(contribution.arrays["weight"][order])
    assert server.weights.tolist() == by_hand.weights.tolist()
