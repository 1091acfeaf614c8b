"""The number of clusters is steady, identities last, and what changes is seen: the goals that are
cheap to hold."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from shoal.estimators.cluster_tree import ClusterTree

if find_spec("sklearn") is None:
    pytest.skip("scores need scikit-learn, of the extra 'evaluate'", allow_module_level=True)

from benchmarks.steadiness.field_streams import field
from benchmarks.steadiness.judge import Verdict, judge
from benchmarks.steadiness.streams import changing, stationary


class Watched:
    """A `ClusterTree` with five clients, as the judge wants it."""

    def __init__(self) -> None:
        self.model = ClusterTree(clients=5)

    def learn(self, rows: np.ndarray) -> None:
        self.model.partial_fit(rows, clients=np.arange(len(rows)) % 5)

    def predict(self, rows: np.ndarray) -> np.ndarray:
        return self.model.predict(rows)

    def count(self) -> int:
        return self.model.n_clusters_


def judged(name: str, seed: int) -> Verdict:
    return judge(Watched(), {**stationary(6000), **changing(8000)}[name](seed))


@pytest.mark.parametrize("seed", [501, 502])
@pytest.mark.parametrize(
    "name",
    [
        "blobs K=5 d=2",
        "blobs K=10 d=8",
        "moons",
        "scales x12",
        "background 10 %",
        "steps of 0.1",
        "one blob",
    ],
)
def test_a_stationary_stream_keeps_its_number_and_its_identities(name: str, seed: int) -> None:
    verdict = judged(name, seed)
    assert verdict.still == 1.0
    assert verdict.switches == 0
    assert verdict.count_error == 0.0
    assert verdict.ari >= 0.98


@pytest.mark.parametrize("seed", [501, 502])
def test_a_sensor_that_stays_in_each_state_for_a_while_shows_its_states(seed: int) -> None:
    verdict = judged("sojourns", seed)
    assert set(verdict.counts[6:]) == {4}
    assert verdict.ari >= 0.98


@pytest.mark.parametrize("name", ["births", "class by class d=2"])
def test_a_birth_is_seen_within_500_readings_of_the_new_cluster(name: str) -> None:
    verdict = judged(name, 503)
    assert all(delay is not None and delay <= 500 for delay in verdict.delays_own)
    assert verdict.count_error < 0.1
    assert verdict.ari >= 0.98


def test_a_cluster_that_falls_silent_stays_and_is_quiet() -> None:
    stream = changing()["deaths"](504)
    model = ClusterTree(clients=5).partial_fit(stream.rows)
    assert model.n_clusters_ == 5
    assert len(model.active_) == 3
    assert set(model.active_) == set(model.predict(stream.rows[-1000:]))


def test_light_clusters_that_fall_silent_stay_when_the_neighbourhoods_of_others_grow() -> None:
    """Three clusters of 120 readings, then a slow sensor: 25 of its readings count as one, and
    memory grows with it."""
    generator = np.random.default_rng(508)
    early = np.repeat(
        [[0.1, 0.1], [0.1, 0.3], [0.3, 0.1]], 120, axis=0
    ) + 0.01 * generator.standard_normal((360, 2))
    late = np.repeat(generator.normal([0.8, 0.8], 0.05, size=(480, 2)), 25, axis=0)
    late += 0.001 * generator.standard_normal(late.shape)
    model = Watched()
    model.learn(early[generator.permutation(360)])
    at_first = model.predict(early)
    assert len(np.unique(at_first)) == 3
    for begin in range(0, len(late), 500):
        model.learn(late[begin : begin + 500])
    np.testing.assert_array_equal(model.predict(early), at_first)


def test_a_birth_beside_a_cluster_that_has_long_been_quiet_is_a_birth() -> None:
    verdict = judge(Watched(), changing()["class by class d=2"](9001))
    assert verdict.counts[-1] == 5
    assert verdict.switches == 0
    assert verdict.ari_end >= 0.98


def test_clusters_that_move_keep_their_identities() -> None:
    verdict = judged("drift", 505)
    assert verdict.switches == 0
    assert verdict.count_error == 0.0
    assert verdict.ari >= 0.98


@pytest.mark.parametrize("seed", [506, 507])
@pytest.mark.parametrize(
    ("name", "size", "rows"),
    [("split", 10_000, 1000), ("split", 8000, 1500), ("merge", 8000, 2000)],
)
def test_clusters_that_part_or_meet_by_movement_are_seen(
    name: str, size: int, rows: int, seed: int
) -> None:
    """The fewer rows there are, the faster the same movement is."""
    verdict = judge(Watched(), changing(size)[name](seed))
    assert all(delay is not None and delay <= rows for delay in verdict.delays)
    assert verdict.ari_end >= 0.98


@pytest.mark.parametrize("seed", [508, 509, 510])
def test_a_cluster_of_one_percent_is_shown_within_3000_readings(seed: int) -> None:
    verdict = judged("small 1 %", seed)
    assert all(delay is not None and delay <= 3000 for delay in verdict.delays)
    assert verdict.count_end == 5
    assert verdict.switches == 0


@pytest.mark.parametrize(("name", "seed"), [("bursts of 100", 101), ("bursts of 300", 101)])
def test_bursts_of_equal_readings_are_no_clusters(name: str, seed: int) -> None:
    stream = field()[name](seed)
    model = Watched()
    for begin in range(0, len(stream.rows), 100):
        model.learn(stream.rows[begin : begin + 100])
    assert model.count() == 5
    assert model.model.identities_.tolist() == [0, 1, 2, 3, 4]
