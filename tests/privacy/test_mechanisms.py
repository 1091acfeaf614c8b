"""The three mechanisms behind one contract: the same laws for all, then what is particular to each."""

from __future__ import annotations

from itertools import pairwise

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import InvalidData, InvalidState, SettingsError
from shoal.privacy import Bounds, Mechanism, PrivacyTerms, expected_statement, mechanism_for, reach_for
from shoal.privacy.certificate import certified_epsilon
from shoal.privacy.mechanisms import formal_laws
from tests.privacy.noise_terms import KEY, SOURCE, build, formal_terms, paper_terms, places, readings_of, wide_bounds

EVERY = {
    "formal": formal_terms(3, 6.0),
    "formal, unequal shares": formal_terms(3, 6.0, (1.0, 5.0, 0.25)),
    "formal, one feature": formal_terms(1, 0.4),
    "formal, large": formal_terms(2, 200.0),
    "paper": paper_terms(3),
    "off": PrivacyTerms("off", wide_bounds(3)),
}
every = pytest.mark.parametrize("terms", EVERY.values(), ids=EVERY.keys())


@every
def test_no_readings_give_no_rows(terms: PrivacyTerms) -> None:
    released = build(terms).privatise(np.empty((0, terms.bounds.d)), [])
    assert released.rows.shape == (0, terms.bounds.d)
    assert released.kept.shape == (0,)
    assert released.clipped == 0


@every
@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 40), max_size=6))
def test_any_split_of_the_readings_gives_the_same_bytes(terms: PrivacyTerms, cuts: list[int]) -> None:
    readings = readings_of(terms, 40)
    at = places(40)
    whole = build(terms).privatise(readings, at)
    mechanism = build(terms)
    edges = [0, *sorted(cuts), 40]
    parts = [mechanism.privatise(readings[a:b], at[a:b]) for a, b in pairwise(edges)]
    assert np.vstack([p.rows for p in parts]).tobytes() == whole.rows.tobytes()
    assert np.concatenate([p.kept for p in parts]).tolist() == whole.kept.tolist()
    assert sum(p.clipped for p in parts) == whole.clipped


@every
def test_a_process_killed_anywhere_goes_on_as_if_it_had_not_been(terms: PrivacyTerms) -> None:
    readings, at = readings_of(terms, 60), places(60)
    whole = build(terms)
    expected = whole.privatise(readings, at)
    for cut in (0, 1, 2, 30, 60):
        first, second = build(terms), build(terms)
        before = first.privatise(readings[:cut], at[:cut])
        second.restore(first.state())
        after = second.privatise(readings[cut:], at[cut:])
        assert before.rows.tobytes() + after.rows.tobytes() == expected.rows.tobytes()
        assert second.state().keys() == whole.state().keys()


@every
def test_readings_given_are_left_as_they_were(terms: PrivacyTerms) -> None:
    readings = readings_of(terms, 20) * 3
    before = readings.copy()
    build(terms).privatise(readings, places(20))
    np.testing.assert_array_equal(readings, before)


@every
def test_readings_outside_their_bounds_are_counted_and_treated_as_at_the_bound(terms: PrivacyTerms) -> None:
    readings = readings_of(terms, 20)
    outside = readings.copy()
    outside[5] = terms.bounds.high + 1e9
    outside[7, 0] = terms.bounds.low[0] - 1
    at_bound = np.clip(outside, terms.bounds.low, terms.bounds.high)
    released = build(terms).privatise(outside, places(20))
    assert released.clipped == 2
    assert released.rows.tobytes() == build(terms).privatise(at_bound, places(20)).rows.tobytes()


@every
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_reading_that_is_no_number_is_refused_and_nothing_is_remembered_of_it(
    terms: PrivacyTerms, bad: float
) -> None:
    mechanism = build(terms)
    before = msgpack.packb(plain(mechanism))
    readings = readings_of(terms, 5)
    readings[3, 0] = bad
    with pytest.raises(InvalidData):
        mechanism.privatise(readings, places(5))
    assert msgpack.packb(plain(mechanism)) == before


def plain(mechanism: Mechanism) -> dict[str, object]:
    return {k: v.tobytes() if isinstance(v, np.ndarray) else v for k, v in mechanism.state().items()}


@every
def test_rows_lie_within_the_public_reach(terms: PrivacyTerms) -> None:
    mechanism = build(terms)
    rows = mechanism.privatise(readings_of(terms, 5000), places(5000)).rows
    assert mechanism.reach.low.shape == (terms.bounds.d,)
    assert (rows >= mechanism.reach.low).all()
    assert (rows <= mechanism.reach.high).all()
    np.testing.assert_array_equal(mechanism.reach.low, reach_for(terms).low)
    np.testing.assert_array_equal(mechanism.reach.high, reach_for(terms).high)
    assert (mechanism.reach.low <= 0).all()
    assert (mechanism.reach.high >= 1).all()


@every
def test_the_statement_is_the_expected_one_and_survives_a_message(terms: PrivacyTerms) -> None:
    statement = build(terms).statement
    assert statement == expected_statement(terms)
    assert msgpack.unpackb(msgpack.packb(statement)) == statement


@every
def test_another_state_is_refused(terms: PrivacyTerms) -> None:
    mechanism = build(terms)
    good = mechanism.state()
    for wrong in ({}, good | {"version": 99}, good | {"mode": "other"}, good | {"fingerprint": "0" * 16}):
        with pytest.raises(InvalidState):
            mechanism.restore(wrong)


@pytest.mark.parametrize("terms", [EVERY["formal"], EVERY["paper"]], ids=["formal", "paper"])
def test_a_state_made_with_another_key_client_log_or_terms_is_refused(terms: PrivacyTerms) -> None:
    """Going on with another key would publish the same readings under fresh noise."""
    state = build(terms).state()
    moved = PrivacyTerms(
        terms.mode,
        Bounds(terms.bounds.low, terms.bounds.high + 1),
        terms.epsilon_per_reading,
        terms.epsilon_nominal_per_feature,
    )
    for other in (
        build(terms, key=bytes(32)),
        build(terms, client="cellar"),
        build(terms, source=bytes(16)),
        build(moved),
    ):
        with pytest.raises(InvalidState, match="another noise key"):
            other.restore(state)


@pytest.mark.parametrize("mode", ["formal", "paper"])
def test_noise_without_a_key_is_refused(mode: str) -> None:
    with pytest.raises(SettingsError, match="key"):
        mechanism_for(EVERY[mode], None, "attic", SOURCE)


def test_off_needs_no_key_and_adds_nothing() -> None:
    terms = EVERY["off"]
    readings = readings_of(terms, 30)
    rows = mechanism_for(terms, None, "attic", SOURCE).privatise(readings, places(30)).rows
    np.testing.assert_array_equal(rows, terms.bounds.to_unit(readings))


@pytest.mark.parametrize("epsilon", [0.2, 3.0, 30.0, 141.0])
def test_formal_rows_lie_on_the_public_half_grid(epsilon: float) -> None:
    """A double of full precision would tell which readings it cannot have come from."""
    terms = formal_terms(3, epsilon, (1.0, 2.0, 4.0))
    rows = build(terms).privatise(readings_of(terms, 2000), places(2000)).rows
    half_steps = rows * 2 * np.array([law.steps for law in formal_laws(terms)])
    np.testing.assert_allclose(half_steps, np.rint(half_steps), rtol=0, atol=1e-6)
    assert (np.rint(half_steps) % 2 == 1).all()


def test_formal_noise_does_not_depend_on_the_reading() -> None:
    """The distribution of row minus reading is the same at both ends of the range."""
    terms = formal_terms(1, 2.0)
    for at in (0.0, 1.0):
        readings = terms.bounds.from_unit(np.full((20_000, 1), at))
        scales = (build(terms).privatise(readings, places(20_000)).rows - at) * 2.0
        assert abs(scales.mean()) < 4 * np.sqrt(2 / 20_000)
        assert np.abs(scales).mean() == pytest.approx(1.0, abs=4 / np.sqrt(20_000))


@pytest.mark.parametrize("shares", [None, (1.0, 3.0, 0.5)])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 7.7, 240.0])
def test_the_certified_epsilons_of_a_reading_sum_to_no_more_than_declared(
    epsilon: float, shares: tuple[float, ...] | None
) -> None:
    laws = formal_laws(formal_terms(3, epsilon, shares))
    total = sum(certified_epsilon(law) for law in laws)
    assert epsilon * 0.999 < total <= epsilon


def test_a_feature_with_a_larger_share_gets_less_noise() -> None:
    terms = formal_terms(2, 6.0, (1.0, 5.0))
    readings = readings_of(terms, 10_000)
    noise = build(terms).privatise(readings, places(10_000)).rows - terms.bounds.to_unit(readings)
    np.testing.assert_allclose(np.abs(noise).mean(axis=0), [1.0, 0.2], rtol=0.05)


def test_an_epsilon_too_small_for_so_many_features_says_what_to_change() -> None:
    with pytest.raises(SettingsError, match="number of features"):
        build(formal_terms(200, 0.01))


def test_the_mechanism_of_each_mode_is_a_mechanism() -> None:
    kinds = {type(mechanism_for(terms, KEY, "attic", SOURCE)) for terms in EVERY.values()}
    assert len(kinds) == 3
