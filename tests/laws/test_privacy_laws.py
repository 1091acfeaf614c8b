"""Laws that hold for every installed privacy mode that releases rows."""

from __future__ import annotations

from itertools import pairwise

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import InvalidData, InvalidState, SettingsError
from shoal.privacy import Bounds, Mechanism, PrivacyMode, load_mode, mode_names
from tests.examples import examples
from tests.privacy.modes import SOURCE, build, formal_mode, places, readings_of, wide_bounds

EXTRA = {
    "formal, unequal shares": formal_mode(3, 6.0, (1.0, 5.0, 0.25)),
    "formal, one feature": formal_mode(1, 0.4),
    "formal, large": formal_mode(2, 200.0),
}


def example(name: str) -> PrivacyMode:
    """The mode with every term in the middle of what is usual for an epsilon."""
    mode = load_mode(name)
    return mode(wide_bounds(3), dict.fromkeys(mode.terms, 6.0))


# A mode of masked counts releases no rows; tests/privacy/test_masked_mode.py has what holds for it.
ROW_MODES = [name for name in mode_names() if not load_mode(name).masked]
EVERY = {name: example(name) for name in ROW_MODES} | EXTRA
NOISY = {name: mode for name, mode in EVERY.items() if mode.adds_noise}
every = pytest.mark.parametrize("mode", EVERY.values(), ids=EVERY.keys())
every_noisy = pytest.mark.parametrize("mode", NOISY.values(), ids=NOISY.keys())


def test_the_laws_run_over_the_modes_of_this_package() -> None:
    assert {"formal", "paper", "off"} <= set(EVERY)
    assert {"formal", "paper"} <= set(NOISY)


@every
def test_no_readings_give_no_rows(mode: PrivacyMode) -> None:
    released = build(mode).privatise(np.empty((0, mode.bounds.d)), [])
    assert released.rows.shape == (0, mode.bounds.d)
    assert released.kept.shape == (0,)
    assert released.clipped == 0


@every
@settings(max_examples=examples(25), deadline=None)
@given(cuts=st.lists(st.integers(0, 40), max_size=6))
def test_any_split_of_the_readings_gives_the_same_bytes(mode: PrivacyMode, cuts: list[int]) -> None:
    readings = readings_of(mode, 40)
    at = places(40)
    whole = build(mode).privatise(readings, at)
    mechanism = build(mode)
    edges = [0, *sorted(cuts), 40]
    parts = [mechanism.privatise(readings[a:b], at[a:b]) for a, b in pairwise(edges)]
    assert np.vstack([p.rows for p in parts]).tobytes() == whole.rows.tobytes()
    assert np.concatenate([p.kept for p in parts]).tolist() == whole.kept.tolist()
    assert sum(p.clipped for p in parts) == whole.clipped


@every
def test_a_process_that_was_killed_continues_with_the_same_rows(mode: PrivacyMode) -> None:
    readings = readings_of(mode, 60)
    at = places(60)
    whole = build(mode)
    expected = whole.privatise(readings, at)
    for cut in (0, 1, 2, 30, 60):
        first = build(mode)
        second = build(mode)
        before = first.privatise(readings[:cut], at[:cut])
        second.restore(first.state())
        after = second.privatise(readings[cut:], at[cut:])
        assert before.rows.tobytes() + after.rows.tobytes() == expected.rows.tobytes()
        assert second.state().keys() == whole.state().keys()


@every
def test_the_given_readings_are_not_changed(mode: PrivacyMode) -> None:
    readings = readings_of(mode, 20) * 3
    before = readings.copy()
    build(mode).privatise(readings, places(20))
    np.testing.assert_array_equal(readings, before)


@every
def test_readings_outside_their_bounds_are_counted_and_treated_as_at_the_bound(
    mode: PrivacyMode,
) -> None:
    readings = readings_of(mode, 20)
    outside = readings.copy()
    outside[5] = mode.bounds.high + 1e9
    outside[7, 0] = mode.bounds.low[0] - 1
    at_bound = np.clip(outside, mode.bounds.low, mode.bounds.high)
    released = build(mode).privatise(outside, places(20))
    assert released.clipped == 2
    assert released.rows.tobytes() == build(mode).privatise(at_bound, places(20)).rows.tobytes()


@every
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_reading_that_is_not_a_number_is_an_error_and_changes_no_state(
    mode: PrivacyMode, bad: float
) -> None:
    mechanism = build(mode)
    before = msgpack.packb(plain(mechanism))
    readings = readings_of(mode, 5)
    readings[3, 0] = bad
    with pytest.raises(InvalidData):
        mechanism.privatise(readings, places(5))
    assert msgpack.packb(plain(mechanism)) == before


def plain(mechanism: Mechanism) -> dict[str, object]:
    return {
        k: v.tobytes() if isinstance(v, np.ndarray) else v for k, v in mechanism.state().items()
    }


@every
def test_rows_lie_within_the_public_range(mode: PrivacyMode) -> None:
    rows = build(mode).privatise(readings_of(mode, 5000), places(5000)).rows
    low, high = mode.row_range()
    assert low.shape == high.shape == (mode.bounds.d,)
    assert (rows >= low).all()
    assert (rows <= high).all()
    assert (low <= 0).all()
    assert (high >= 1).all()


@every
def test_the_statement_survives_a_message_and_is_that_of_an_equal_mode(mode: PrivacyMode) -> None:
    statement = mode.statement()
    assert statement == type(mode)(mode.bounds, mode.values, mode.shares).statement()
    assert msgpack.unpackb(msgpack.packb(statement)) == statement
    assert statement["formal"] == (statement["epsilon"] is not None)
    assert not (statement["formal"] and statement["nominal"])


@every
def test_the_parts_of_a_guaranteed_epsilon_sum_to_it_and_the_noise_costs_no_more(
    mode: PrivacyMode,
) -> None:
    spent, limit = mode.epsilon_spent()
    assert spent <= limit
    if mode.formal:
        assert sum(mode.epsilon_per_feature()) == pytest.approx(mode.epsilon_per_reading())
        assert limit == mode.epsilon_per_reading()
    else:
        assert (mode.epsilon_per_reading(), spent) == (None, np.inf)


@every
def test_the_description_is_in_whole_sentences(mode: PrivacyMode) -> None:
    description = mode.describe()
    assert description.tone in {"good", "warn", "bad"}
    assert description.sentences
    assert all(
        sentence.endswith(".") for sentence in (*description.sentences, *description.not_covered)
    )
    assert all(text.endswith(".") for _, text in description.rows())
    assert (description.guarantee is not None) == mode.formal
    assert description.title in description.text()


@every
def test_a_term_that_is_missing_unknown_or_out_of_range_is_an_error(mode: PrivacyMode) -> None:
    kind = type(mode)
    bounds = mode.bounds
    with pytest.raises(SettingsError, match=f'colour means nothing in mode = "{mode.name}"'):
        kind(bounds, mode.values | {"colour": 1.0})
    for name, term in kind.terms.items():
        with pytest.raises(SettingsError, match=f'mode = "{mode.name}" needs {name}'):
            kind(bounds, {other: value for other, value in mode.values.items() if other != name})
        for wrong in (term.above, term.at_most * 1.1, np.nan, np.inf, -np.inf):
            with pytest.raises(SettingsError, match=f"{name} must be above"):
                kind(bounds, mode.values | {name: wrong})


@every
def test_a_state_of_another_kind_is_an_error(mode: PrivacyMode) -> None:
    mechanism = build(mode)
    good = mechanism.state()
    for wrong in (
        {},
        good | {"version": 99},
        good | {"mode": "other"},
        good | {"fingerprint": "0" * 16},
    ):
        with pytest.raises(InvalidState):
            mechanism.restore(wrong)


@every_noisy
def test_a_state_made_with_another_key_client_log_or_terms_is_an_error(mode: PrivacyMode) -> None:
    """Going on with another key would publish the same readings under fresh noise."""
    state = build(mode).state()
    moved = type(mode)(Bounds(mode.bounds.low, mode.bounds.high + 1), mode.values, mode.shares)
    for other in (
        build(mode, key=bytes(32)),
        build(mode, client="cellar"),
        build(mode, source=bytes(16)),
        build(moved),
    ):
        with pytest.raises(InvalidState, match="another noise key"):
            other.restore(state)


@every_noisy
def test_noise_without_a_key_is_an_error(mode: PrivacyMode) -> None:
    with pytest.raises(SettingsError, match="needs the client's noise key"):
        mode.mechanism(None, "attic", SOURCE)


def test_the_mechanism_of_each_mode_is_its_own() -> None:
    kinds = [type(build(example(name))) for name in ROW_MODES]
    assert len(set(kinds)) == len(kinds)
