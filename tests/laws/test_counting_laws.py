"""Laws that hold for every installed algorithm that learns from counts; the last test checks that
all of them ran."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.algorithms.claims import Box, Claims
from shoal.algorithms.counting import Counter, CountingAlgorithm
from shoal.algorithms.registry import counting_names, load_algorithm
from shoal.algorithms.streaming import Contribution, ServerHalf
from shoal.errors import InvalidData, InvalidState, SettingsError
from shoal.kernels import forms
from shoal.kernels.forms import COMPILED, NUMPY
from shoal.onebox.audit.plans import (
    CHANGED_MAX,
    hurt,
    most_changed,
    plan_on_shares,
    window_on_boundaries,
)
from shoal.privacy.count_noise import count_noise
from shoal.protocol.codec import pack, unpack
from tests.conftest import without
from tests.examples import examples
from tests.kernels.both_forms import FORMS
from tests.laws.test_streaming_laws import assert_fits
from tests.laws.views import assert_view_is_sound

RAN: set[tuple[str, str]] = set()
WINDOW = 200
OWN_OPTIONS = {"density_tree": {"oblique_axes", "decay"}}
"""options that the laws set and only some algorithms have"""
READINGS_OF_A_COUNT = {"states_from_counts": 32}
"""readings that one count is of, where it is not of one: two blocks of 16"""
laws = settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(params=counting_names())
def algorithm(request: pytest.FixtureRequest) -> Iterator[CountingAlgorithm]:
    found = load_algorithm(request.param)
    assert isinstance(found, CountingAlgorithm)
    yield found
    RAN.add((request.function.__name__, request.param))


def width_for(algorithm: CountingAlgorithm, d: int) -> int:
    """As many features, or as many as the algorithm takes."""
    return d if algorithm.features_max is None else min(d, algorithm.features_max)


def clustered(n: int, d: int, seed: int = 0) -> NDArray[np.float64]:
    """(n, d) rows in unit coordinates, in four clusters."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(9).uniform(0.15, 0.85, size=(4, d))
    return np.clip(
        centres[generator.integers(4, size=n)] + generator.normal(0, 0.03, size=(n, d)), 0, 1
    )


class Federation:
    """One client that counts windows, and the server, with or without noise."""

    def __init__(
        self, algorithm: CountingAlgorithm, d: int, epsilon: float | None = 2.0, **options: Any
    ) -> None:
        self.noise = None if epsilon is None else count_noise(epsilon)
        variance = 0.0 if self.noise is None else self.noise.variance
        own = {
            name: value
            for name, value in options.items()
            if name in OWN_OPTIONS.get(algorithm.name, ())
        }
        self.options = {"noise_variance": variance, "window_readings": WINDOW, **own}
        self.algorithm = algorithm
        self.d = d
        self.windows = 0
        self.counter: Counter = algorithm.counter(self.options, d)
        self.server: ServerHalf = algorithm.server(self.options, d)

    def learn(self, rows: NDArray[np.float64], delay: int = 0) -> Federation:
        """The rows window by window; the client sees each snapshot `delay` windows late."""
        late = [self.server.snapshot()]
        for first in range(0, len(rows), WINDOW):
            self.server.absorb([self.contribution(rows[first : first + WINDOW])], b"")
            late.append(self.server.snapshot())
            if len(late) > delay:
                self.counter.adopt(late.pop(0) if delay else late[-1])
        return self

    def contribution(self, rows: NDArray[np.float64]) -> Contribution:
        counted = self.counter.count(rows, np.ones(len(rows), dtype=bool), b"client", self.windows)
        private = counted.counts
        if self.noise is not None:
            private = private + self.noise.draw(self.windows.to_bytes(4, "little"), len(private))
        self.windows += 1
        return Contribution("client", self.windows, counted.update(private))


@cache
def grown_counter(name: str, d: int, oblique: int = 0) -> Counter:
    """A counter under the plan of a federation that has learnt 4000 rows; it has no state but that
    plan."""
    algorithm = load_algorithm(name)
    assert isinstance(algorithm, CountingAlgorithm)
    return Federation(algorithm, d, oblique_axes=oblique).learn(clustered(4000, d)).counter


@laws
@given(st.integers(1, 5), st.integers(0, 199), st.integers(0, 10**6), st.integers(0, 3))
def test_replacing_one_reading_moves_two_counts_by_one_at_most(
    algorithm: CountingAlgorithm, d: int, place: int, seed: int, oblique: int
) -> None:
    d = width_for(algorithm, d)
    grown = grown_counter(algorithm.name, d, oblique)
    rows = clustered(WINDOW, d, seed)
    valid = np.ones(WINDOW, dtype=bool)
    here = grown.count(rows, valid, b"client", 7)
    generator = np.random.default_rng(seed)
    rows[place] = generator.uniform(size=d)
    valid[place] = bool(generator.integers(2))
    there = grown.count(rows, valid, b"client", 7)
    assert len(here.counts) == len(there.counts)
    assert np.abs(here.counts - there.counts).sum() <= 2
    same = there.update(here.counts)
    assert pack(dict(same)) == pack(dict(here.update(here.counts))), (
        "only counts depend on readings"
    )


@pytest.fixture(params=[NUMPY, COMPILED])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The form of the kernels that counts."""
    if request.param == COMPILED and importlib.util.find_spec("numba") is None:
        without("numba", "it is not installed")
    monkeypatch.setattr(forms, "PROCESS", FORMS[request.param])
    return str(request.param)


def test_no_plan_lets_one_reading_move_another(algorithm: CountingAlgorithm, form: str) -> None:
    federation = Federation(algorithm, 3, epsilon=None, oblique_axes=4).learn(clustered(4000, 3))
    counter = federation.counter
    generator = np.random.default_rng(0)
    adopted = 0
    for number, plan in enumerate(hurt(federation.server.snapshot())):
        try:
            counter.adopt(plan)
        except InvalidData:
            continue
        adopted += 1
        named = b"client", number
        window, valid = window_on_boundaries(WINDOW, 3, bool(number % 3), generator)
        places = generator.integers(WINDOW, size=3).tolist()
        assert most_changed(counter, window, valid, named, places, generator) <= CHANGED_MAX
        # A pair of blocks is of several readings.
        if READINGS_OF_A_COUNT.get(algorithm.name, 1) == 1:
            first = generator.random(WINDOW) < 0.5
            parts = [counter.count(window, valid & part, *named).counts for part in (first, ~first)]
            whole = counter.count(window, valid, *named).counts
            assert (sum(parts) == whole).all(), "a reading falls where it does without the others"
    assert adopted > 0


@pytest.mark.parametrize("number", range(3))
def test_masses_on_the_shares_of_readings_move_no_reading_but_the_one_that_differs(
    form: str, number: int
) -> None:
    tree = load_algorithm("density_tree")
    assert isinstance(tree, CountingAlgorithm)
    counter = tree.counter({"noise_variance": 0.0, "window_readings": WINDOW}, 2)
    client = str(number).encode()
    counter.adopt(plan_on_shares(2, client, 0, WINDOW))
    rows = np.full((WINDOW, 2), 0.3)
    rows[:, 0] = np.nan
    valid = np.ones(WINDOW, dtype=bool)
    before = counter.count(rows, valid, client, 0).counts
    assert np.count_nonzero(before) > 32
    for place in range(0, WINDOW, 5):
        for value in (0.01, 0.99):
            changed = rows.copy()
            changed[place, 0] = value
            after = counter.count(changed, valid, client, 0).counts
            assert np.abs(after - before).sum() <= CHANGED_MAX


@laws
@given(st.integers(1, 5), st.integers(1, WINDOW), st.integers(0, 10**6))
def test_every_valid_reading_is_counted_once_and_none_in_two_counts(
    algorithm: CountingAlgorithm, d: int, n: int, seed: int
) -> None:
    d = width_for(algorithm, d)
    grown = grown_counter(algorithm.name, d)
    rows = np.random.default_rng(seed).uniform(-0.2, 1.2, size=(n, d))
    valid = np.random.default_rng(seed).integers(0, 2, size=n).astype(bool)
    counted = grown.count(rows, valid, b"client", seed)
    assert counted.counts.min(initial=0) >= 0
    readings = READINGS_OF_A_COUNT.get(algorithm.name, 1)
    assert (
        counted.counts.sum() == valid.sum()
        if readings == 1
        else counted.counts.sum() <= n // readings
    )


def test_rows_and_their_order_of_magnitude_do_not_leave_the_counter(
    algorithm: CountingAlgorithm,
) -> None:
    rows = np.full((WINDOW, 3), np.nan)
    counted = grown_counter(algorithm.name, 3).count(
        rows, np.zeros(WINDOW, dtype=bool), b"client", 0
    )
    assert counted.counts.sum() == 0


def test_updates_and_snapshots_have_the_declared_arrays(algorithm: CountingAlgorithm) -> None:
    for oblique in (0, 4):
        federation = Federation(algorithm, 3, oblique_axes=oblique)
        for rows in (np.empty((0, 3)), clustered(8000, 3)):
            federation.learn(rows)
            assert_fits(federation.contribution(clustered(WINDOW, 3)).arrays, algorithm.update, 3)
            assert_fits(federation.server.snapshot(), algorithm.snapshot, 3)
            assert_view_is_sound(algorithm.view(federation.server.snapshot()), 3)


@pytest.mark.parametrize("decay", [1.0, 0.99])
def test_a_restored_server_continues_bit_for_bit(
    algorithm: CountingAlgorithm, decay: float
) -> None:
    rows = clustered(9000, 3)
    through = Federation(algorithm, 3, oblique_axes=2, decay=decay).learn(rows[:5000])
    restored = Federation(algorithm, 3, oblique_axes=2, decay=decay)
    restored.server.restore(unpack(pack(through.server.state())))
    restored.counter.adopt(restored.server.snapshot())
    restored.windows = through.windows
    for federation in (through, restored):
        federation.learn(rows[5000:])
    assert pack(restored.server.state()) == pack(through.server.state())


def test_a_damaged_state_is_refused_and_changes_nothing(algorithm: CountingAlgorithm) -> None:
    federation = Federation(algorithm, 2).learn(clustered(4000, 2))
    before = pack(federation.server.state())
    for entry in federation.server.state():
        damaged = federation.server.state()
        del damaged[entry]
        with pytest.raises(InvalidState):
            federation.server.restore(damaged)
    with pytest.raises(InvalidState):
        federation.server.restore(Federation(algorithm, 3).server.state())
    assert pack(federation.server.state()) == before


def test_a_snapshot_predicts_what_the_server_does(algorithm: CountingAlgorithm) -> None:
    federation = Federation(algorithm, 3).learn(clustered(8000, 3))
    rows = np.random.default_rng(1).uniform(size=(500, 3))
    np.testing.assert_array_equal(
        algorithm.predict(federation.server.snapshot(), rows), federation.server.predict(rows)
    )


def test_the_grouping_of_contributions_into_calls_makes_no_difference(
    algorithm: CountingAlgorithm,
) -> None:
    rows = clustered(3000, 2)
    one, other = (Federation(algorithm, 2) for _ in range(2))
    contributions = [
        one.contribution(rows[first : first + WINDOW]) for first in range(0, 3000, WINDOW)
    ]
    one.server.absorb(contributions, b"")
    for contribution in contributions:
        other.server.absorb([contribution], b"")
    assert pack(one.server.state()) == pack(other.server.state())


@laws
@given(
    st.integers(1, 4),
    st.integers(1, WINDOW),
    st.integers(0, 10**6),
    st.sampled_from([None, 0.1, 1.0, 20.0]),
)
def test_every_honest_window_is_accepted(
    algorithm: CountingAlgorithm, d: int, n: int, seed: int, epsilon: float | None
) -> None:
    d = width_for(algorithm, d)
    federation = Federation(algorithm, d, epsilon)
    federation.counter = grown_counter(algorithm.name, d)
    contribution = federation.contribution(np.random.default_rng(seed).uniform(size=(n, d)))
    assert algorithm.check_claims is not None
    algorithm.check_claims(
        federation.options, contribution.arrays, Claims(n, Box(np.zeros(d), np.ones(d)))
    )


@pytest.mark.parametrize(
    "forge",
    [
        lambda arrays: {"count": arrays["count"] + 1000},
        lambda arrays: {"count": arrays["count"] - 2**30},
        lambda arrays: {
            "count": np.where(np.arange(len(arrays["count"])) == 3, 10**9, arrays["count"])
        },
        lambda arrays: {"count": arrays["count"][:-1]},
        lambda arrays: (
            {"leaf": arrays["leaf"] - 10} if "leaf" in arrays else {"count": arrays["count"][:0]}
        ),
        lambda arrays: (
            {"epoch": arrays["epoch"] - 10} if "epoch" in arrays else {"count": arrays["count"][1:]}
        ),
        lambda arrays: (
            {"cells": np.append(arrays["cells"][:-1], 99)}
            if "cells" in arrays
            else {"count": np.tile(arrays["count"], 2)}
        ),
        lambda arrays: {"places": arrays["places"] + 1},
    ],
)
def test_counts_that_no_window_has_are_rejected(algorithm: CountingAlgorithm, forge: Any) -> None:
    federation = Federation(algorithm, 2).learn(clustered(3000, 2))
    honest = dict(federation.contribution(clustered(WINDOW, 2)).arrays)
    assert algorithm.check_claims is not None
    with pytest.raises(InvalidData, match="do not agree"):
        algorithm.check_claims(
            federation.options, honest | forge(honest), Claims(WINDOW, Box(np.zeros(2), np.ones(2)))
        )


def test_an_algorithm_of_counts_has_no_half_that_learns_rows(algorithm: CountingAlgorithm) -> None:
    with pytest.raises(SettingsError, match="counts"):
        algorithm.client({}, 2)


def test_more_features_than_an_algorithm_takes_are_refused_with_advice(
    algorithm: CountingAlgorithm,
) -> None:
    if algorithm.features_max is None:
        algorithm.counter({}, 100)
        return
    for half in (algorithm.counter, algorithm.server):
        with pytest.raises(
            SettingsError, match=f"at most {algorithm.features_max} features.*take density_tree"
        ):
            half({}, algorithm.features_max + 1)


def test_every_law_ran_for_every_counting_algorithm(request: pytest.FixtureRequest) -> None:
    module = sys.modules[__name__]
    written = {
        name
        for name, law in inspect.getmembers(module, inspect.isfunction)
        if name.startswith("test_") and "algorithm" in inspect.signature(law).parameters
    }
    collected = {
        item.originalname
        for item in request.session.items
        if getattr(item, "module", None) is module
    }  # type: ignore[attr-defined]  # of functions
    assert {(law, name) for law in written & collected for name in counting_names()} <= RAN
