"""Saved states of CA+ and CAEFC that no rows can have made: refused, as kernels rely on what they
say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.algorithms.fcac import CAEFC, CAPlus
from shoal.algorithms.fcac.ca_plus import FcacAggregator
from shoal.errors import InvalidState
from shoal.protocol.codec import pack
from tests.saved_states import NODES, changed, entry
from tests.small_plant import nodes_at

pytestmark = pytest.mark.usefixtures("form")

HALVES = [CAPlus, CAEFC]
ROWS = np.random.default_rng(0).random((5, 3))[np.arange(400) % 5] + np.random.default_rng(
    1
).normal(0, 0.1, (400, 3))


def learnt(half: type[CAPlus] | type[CAEFC], n: int = 300) -> CAPlus | CAEFC:
    network = half(3)
    network.learn(ROWS[:n])
    return network


DAMAGED: dict[str, dict[str, Any]] = {
    "a bandwidth whose square is 0": {"nodes.sigma": 1e-200},
    "bandwidths beyond all rows": {"nodes.sigma": 1e308},
    "a last bandwidth whose square is 0": {"last_sigma": 1e-200},
    "weights beyond all rows": {"nodes.weight": 1e300},
    "more wins than inputs": {"nodes.count": 10**6},
    "active nodes of inputs not learnt": {"n_active": 10**6},
    "active nodes beyond 64 bits": {"n_active": 2**62, "counter": 2**62},
    "inputs beyond 64 bits": {"counter": 2**64},
    "a row in the buffer beyond all rows": {"buffer": 1e200},
}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", DAMAGED)
def test_a_network_that_no_rows_have_made_is_refused(
    name: str, half: type[CAPlus] | type[CAEFC]
) -> None:
    network = learnt(half)
    # Two rows are still in the buffer.
    state = half(3).state() if "buffer" in DAMAGED[name] else network.state()
    for way, value in DAMAGED[name].items():
        usual = entry(state, way)
        if way == "buffer":
            state = changed(state, {way: np.full((2, 3), value)})
        elif isinstance(usual, np.ndarray):
            state = changed(state, {way: np.full_like(usual, value)})
        else:
            state = changed(state, {way: value})
    before = pack(network.state())
    with pytest.raises(InvalidState):
        network.restore(state)
    assert pack(network.state()) == before


def test_ca_plus_with_fewer_nodes_than_active_ones_is_refused() -> None:
    network = learnt(CAPlus)
    state = network.state()
    few = {way: entry(state, way)[:3] for way in NODES}
    assert network.n_active is not None
    assert network.n_active > 3
    with pytest.raises(InvalidState, match="fewer nodes than n_active"):
        network.restore(changed(state, few))
    network.restore(changed(state, few | {"n_active": 3}))
    network.learn(ROWS[300:])
    assert network.n_learnt == 400


@pytest.mark.parametrize("half", HALVES)
def test_every_state_on_the_way_is_restored(half: type[CAPlus] | type[CAEFC]) -> None:
    for rows in (ROWS, ROWS * 1e-150, ROWS * 1e149, np.repeat(ROWS[:3], 50, axis=0)):
        network = half(3)
        restored = half(3)
        for row in rows:
            network.learn(row[None])
            restored.restore(network.state())
            assert pack(restored.state()) == pack(network.state())


def test_parts_whose_sum_is_beyond_64_bits_are_refused() -> None:
    aggregator = FcacAggregator({"nodes_max": None}, 3)
    aggregator.add(nodes_at(ROWS[:5]), 5)
    state = aggregator.state()
    with pytest.raises(InvalidState):
        aggregator.restore({**state, "part": np.array([2**62, 2**62, 2**62, 2**62, 5])})
