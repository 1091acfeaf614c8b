"""The bounded histograms of distances that a client keeps by lasting identity."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.client_nodes.labelling.spread import CLUSTERS_MAX, Spread
from shoal.errors import InvalidState
from shoal.protocol.codec import pack, unpack

ALL = np.ones(200, dtype=bool)


def ids(*identities: int) -> np.ndarray:
    return np.repeat(np.array(identities, dtype=np.int64), 200 // len(identities))


def test_no_readings_are_no_trouble() -> None:
    spread = Spread()
    assert spread.novelty(
        np.empty(0, dtype=np.int64), np.empty(0), np.empty(0, dtype=bool)
    ).shape == (0,)
    assert spread.state()["identities"] == []


def test_readings_without_a_reference_have_no_novelty() -> None:
    spread = Spread()
    assert np.isnan(spread.novelty(ids(-1), np.full(200, 0.1), ALL)).all()
    assert spread.state()["identities"] == []


def test_each_identity_has_a_spread_of_its_own() -> None:
    spread = Spread()
    for _ in range(3):
        spread.novelty(ids(3, 8), np.concatenate([np.full(100, 0.01), np.full(100, 0.2)]), ALL)
    asked = spread.novelty(np.array([3, 8]), np.array([0.1, 0.1]), np.array([False, False]))
    assert asked[0] > 0.99
    assert asked[1] == 0


def test_readings_that_do_not_count_change_nothing() -> None:
    spread = Spread()
    spread.novelty(ids(3), np.full(200, 0.01), ALL)
    before = pack(spread.state())
    assert spread.novelty(ids(3), np.full(200, 0.5), ~ALL)[0] > 0.99
    spread.novelty(ids(4), np.full(200, 0.5), ~ALL)
    assert pack(spread.state()) == before


def test_it_restores_as_it_was_saved() -> None:
    rng = np.random.default_rng(0)
    spread = Spread()
    restored = Spread()
    spread.novelty(ids(3, 8), rng.exponential(0.1, 200), ALL)
    state = unpack(pack(spread.state()))
    restored.restore(state)
    assert pack(restored.state()) == pack(spread.state())
    more = rng.exponential(0.1, 200)
    np.testing.assert_array_equal(
        restored.novelty(ids(8, 3), more, ALL), spread.novelty(ids(8, 3), more, ALL)
    )


def test_only_the_clusters_used_last_are_kept() -> None:
    spread = Spread()
    for identity in range(CLUSTERS_MAX + 10):
        spread.novelty(ids(identity), np.full(200, 0.1), ALL)
        spread.novelty(ids(0), np.full(200, 0.1), ALL)
    kept = spread.state()["identities"]
    assert len(kept) == CLUSTERS_MAX
    assert {0, CLUSTERS_MAX + 9} <= set(kept)
    assert 1 not in kept


@pytest.mark.parametrize(
    "changed",
    [
        {"identities": [1]},
        {"bin": None},
        {"count": np.array([-1], dtype=np.int32)},
        {"row": np.array([9], dtype=np.int32)},
    ],
    ids=str,
)
def test_a_damaged_state_is_reported(changed: dict[str, object]) -> None:
    spread = Spread()
    spread.novelty(ids(3, 8), np.full(200, 0.1), ALL)
    state = spread.state() | changed
    if "identities" in changed:
        state["row"] = state["row"] + 1
    with pytest.raises(InvalidState):
        Spread().restore(state)
