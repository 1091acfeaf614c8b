"""A bound on one client's share of FCAC's nodes: what it changes, and that without it nothing
does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.robustness.bridge import run
from shoal.algorithms.fcac.caefc import CAEFC
from shoal.algorithms.fcac.edges import CLIENTS_COUNTED_MAX, Origins, OriginsState
from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.streaming import Contribution
from shoal.errors import InvalidState, SettingsError
from shoal.estimators.fcac import FCAC
from shoal.protocol.codec import pack, unpack
from tests.saved_states import changed
from tests.small_plant import nodes_at


def origins_of(*clients: str) -> Origins:
    """A node for each text, with an input from each client that a letter of it names."""
    origins = Origins()
    for position, letters in enumerate(clients):
        for letter in letters:
            origins.expect([letter])
            origins.count(position)
    return origins


def groups(origins: Origins, *edges: tuple[int, int], share_max: float = 0.8) -> list[int]:
    return origins.groups(np.array(edges, dtype=np.int64).reshape(-1, 2), share_max).tolist()


def test_nodes_of_one_client_do_not_join_two_groups() -> None:
    origins = origins_of("abd", "ab", "cc", "cc", "ab", "ab")
    chain = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert groups(origins, *chain) == [0, 0, 0, 0, 1, 1]
    assert groups(origins, *chain, share_max=1.0) == [0] * 6, "without a bound they do"
    assert groups(origins_of("ab", "ab", "cc", "cc", "ab", "ab"), *chain) == [0] * 6, (
        "three clients are not bounded"
    )


def test_a_federation_has_a_bound_and_the_library_none() -> None:
    served: Any = streaming_algorithm("fcac").server({}, 2)
    assert served.options.client_share_max == 0.95
    assert CAEFC(2).options.client_share_max == 1.0
    estimator = FCAC().fit(np.random.default_rng(0).uniform(0, 1, (50, 2)))
    assert estimator._federation.server.state()["origins"] is None


def test_nodes_that_several_clients_share_join_groups() -> None:
    assert groups(origins_of("ab", "ab", "cd", "ab"), (0, 1), (1, 2), (2, 3)) == [0, 0, 0, 0]


def test_a_group_of_one_client_alone_stays_a_group() -> None:
    assert groups(origins_of("aa", "aa", "bb", "bb"), (0, 1), (2, 3)) == [0, 0, 1, 1]
    assert groups(origins_of("aa", "aa")) == [0, 1]
    assert groups(Origins()) == []


def test_nodes_of_one_client_belong_to_the_group_that_they_have_most_edges_with() -> None:
    origins = origins_of("abd", "cc", "ab", "ab")
    assert groups(origins, (0, 1), (1, 2), (1, 3), (2, 3)) == [0, 1, 1, 1]


def test_a_client_with_just_the_bound_does_not_exceed_it() -> None:
    assert groups(origins_of("aaaab", "aaaab"), (0, 1)) == [0, 0]
    assert groups(origins_of("aaaaab", "cd", "de"), (0, 1), (0, 2)) == [0, 0, 1]


def test_a_node_of_many_clients_counts_those_with_most_inputs_and_finds_a_dominant_one() -> None:
    rng = np.random.default_rng(5)
    names = [f"client-{number}" for number in range(5 * CLIENTS_COUNTED_MAX)]
    # Two nodes are shared; of the one between them a client has 96 of 100 inputs, among those of
    # all others.
    inputs = [(node, name) for node in range(3) for name in names] + [(1, "loud")] * (
        24 * len(names)
    )
    origins = Origins()
    again = Origins()
    for number, place in enumerate(
        [*range(0, 3 * len(names), len(names)), *rng.permutation(len(inputs)).tolist()]
    ):
        position, client = inputs[place]
        for kept in (origins, again):
            kept.expect([client])
            kept.count(position)
        if number % 97 == 0 and number > 2:
            again = Origins.restored(OriginsState.read(again.state().saved()), 3)
    rows = origins.state().rows
    assert len(rows) == 3 * CLIENTS_COUNTED_MAX
    counts = [rows[rows[:, 0] == node, 2] for node in range(3)]
    assert [count.sum() for count in counts] == [
        len(names) + 1,
        25 * len(names) + 1,
        len(names) + 1,
    ]
    assert 24 * len(names) <= counts[1].max() < 24.1 * len(names)
    assert pack(again.state().saved()) == pack(origins.state().saved()), (
        "a restart at any time changes nothing"
    )
    assert groups(origins, (0, 1), (1, 2), share_max=0.95) == [0, 0, 1]
    assert groups(origins, (0, 1), (1, 2), share_max=0.97) == [0, 0, 0]


def contributions(number: int) -> list[Contribution]:
    rng = np.random.default_rng(number)
    return [
        Contribution(
            client,
            number,
            nodes_at(rng.uniform(0, 1, (30, 2)), rng.integers(1, 9, 30)),
        )
        for client in ("attic", "cellar")
    ]


def learnt(server: Any, updates: int, first: int = 0) -> Any:
    for number in range(first, updates):
        server.absorb(contributions(number), str(number).encode())
    return server


def test_the_network_is_the_same_to_the_bit_whatever_the_bound() -> None:
    free = learnt(CAEFC(2), 20)
    bounded = learnt(CAEFC(2, client_share_max=0.6), 20)
    left = free.snapshot()
    right = bounded.snapshot()
    for name in set(left) - {"cluster", "centre", "centre_weight"}:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def test_without_a_bound_the_state_has_no_origins() -> None:
    assert learnt(CAEFC(2), 3).state()["origins"] is None


@pytest.mark.parametrize("updates", [0, 1, 7])
def test_a_saved_network_goes_on_to_the_bit(updates: int) -> None:
    whole = learnt(CAEFC(2, client_share_max=0.6), 12)
    saved = unpack(pack(learnt(CAEFC(2, client_share_max=0.6), updates).state()), 10**7)
    restored = CAEFC(2, client_share_max=0.6)
    restored.restore(saved)
    assert pack(learnt(restored, 12, first=updates).state()) == pack(whole.state())


def test_rows_in_the_buffer_keep_their_clients() -> None:
    few = nodes_at(np.random.default_rng(1).uniform(0, 1, (4, 2)))
    server = CAEFC(2, client_share_max=0.5)
    for client in ("attic", "cellar", "garden"):
        server.absorb([Contribution(client, 1, few)], b"")
        again = CAEFC(2, client_share_max=0.5)
        again.restore(unpack(pack(server.state()), 10**6))
        server = again
    origins = server.state()["origins"]
    assert origins["clients"] == ["attic", "cellar", "garden"]
    assert origins["rows"][:, 2].sum() == 12
    assert origins["queue"] == []


def test_rows_learnt_without_a_client_are_of_one_without_a_name() -> None:
    server = CAEFC(2, client_share_max=0.9)
    server.learn(np.random.default_rng(0).uniform(0, 1, (50, 2)))
    assert len(server.clusters()) == server.size
    assert server.state()["origins"]["clients"] == [""]


@pytest.mark.parametrize(
    "change",
    [
        {"origins": None},
        {"origins.clients": [1]},
        {"origins.rows": np.array([[999, 0, 1]])},
        {"origins.rows": np.array([[0, 999, 1]])},
        {"origins.queue": 3},
    ],
)
def test_a_damaged_state_is_not_restored(change: dict[str, Any]) -> None:
    state = learnt(CAEFC(2, client_share_max=0.9), 3).state()
    with pytest.raises(InvalidState):
        CAEFC(2, client_share_max=0.9).restore(changed(state, change))


@pytest.mark.parametrize("share", [0, 1.1, "half", True])
def test_a_bound_that_cannot_be_is_refused(share: Any) -> None:
    with pytest.raises(SettingsError, match="client_share_max"):
        streaming_algorithm("fcac").server({"client_share_max": share}, 2)


def test_a_client_that_sends_nodes_between_clusters_joins_none_of_them() -> None:
    free, _ = run(1.0, seed=0, updates=8, attacked=True)
    bounded, clusters = run(0.8, seed=0, updates=8, attacked=True)
    clean, _ = run(1.0, seed=0, updates=8, attacked=False)
    assert free < 0.9, "the attack works"
    assert bounded > clean - 0.05
    assert clusters >= 6
