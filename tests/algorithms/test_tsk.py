"""Takagi-Sugeno rules: federated is pooled, the stages, streams, targets, and what the rules
say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.algorithms.regression import Regression, RuleBase, rules_of, written
from shoal.algorithms.rounds.arrays import float_array
from shoal.algorithms.rounds.base import InitHint, Params
from shoal.algorithms.rounds.policies import Policy
from shoal.algorithms.tsk import TSK
from shoal.algorithms.tsk.client import epoch, has_conditions, standardised, weighting
from shoal.errors import InvalidData, SettingsError
from shoal.kernels.arrays import Floats
from shoal.kernels.fuzzy import expand_gram, firing_strengths, solve_ridge
from shoal.simulation.rounds import bounding_box, run_rounds

assert TSK.regression is not None
PREDICTION: Regression = TSK.regression


def drawn(seed: int, n: int = 300, d: int = 3) -> Floats:
    """Inputs in 0..1 and a target that follows another line on each side of .5 in the first
    input."""
    generator = np.random.default_rng(seed)
    inputs = generator.uniform(size=(n, d - 1))
    slopes = np.where(inputs[:, :1] > 0.5, 3.0, -1.0)
    return np.column_stack(
        [inputs, (slopes * (inputs - 0.5)).sum(axis=1) + generator.normal(0, 0.01, n)]
    )


def clients_of(rows: Floats) -> list[Floats]:
    """Very unequal clients, sorted by the first input: one without rows, one with a single row."""
    ordered = rows[np.argsort(rows[:, 0])]
    return np.split(ordered, [0, 1, 20, 200])


def started(clients: Sequence[Floats], clusters: int = 4, seed: int = 0, **options: Any) -> Params:
    box = bounding_box(clients, seed)
    return TSK.start({"clusters": clusters, **options}, len(box.low), box)


def with_conditions(clients: Sequence[Floats], **options: Any) -> Params:
    """Parameters whose conditions are found and whose consequents have not been fitted yet."""
    params = started(clients, **options)
    while not has_conditions(params):
        params = TSK.combine(params, [TSK.answer(params, rows) for rows in clients])
    return params


def regressors(params: Params, rows: Floats) -> tuple[Floats, Floats]:
    """The design matrix (n, k d) and the standardised target, written out."""
    z = standardised(params, rows)
    strengths = weighting(params)(z)
    x = np.vstack([z[:-1], np.ones(len(rows))])
    return np.concatenate([strength[:, None] * x.T for strength in strengths], axis=1), z[-1]


# Federated is pooled.


def test_least_squares_is_the_pooled_solution_of_numpy() -> None:
    clients = clients_of(drawn(0))
    for ridge in (1.0, 0.01):
        params = with_conditions(clients, ridge=ridge)
        after = TSK.combine(params, [TSK.answer(params, rows) for rows in clients])
        design, target = regressors(params, np.concatenate(clients))
        p = design.shape[1]
        # The ridge is so many more rows whose target is 0.
        wanted = np.linalg.lstsq(
            np.concatenate([design, np.sqrt(ridge) * np.eye(p)]),
            np.concatenate([target, np.zeros(p)]),
            rcond=None,
        )[0]
        assert np.abs(after["consequent"].ravel() - wanted).max() < 1e-9
        mean_square = float(np.square(design @ wanted - target).mean())
        assert after["error"][0] == pytest.approx(mean_square, rel=1e-9)


def test_without_a_ridge_that_counts_it_is_plain_least_squares() -> None:
    clients = clients_of(drawn(1, 2000))
    params = with_conditions(clients, clusters=2, ridge=1e-12)
    after = TSK.combine(params, [TSK.answer(params, rows) for rows in clients])
    design, target = regressors(params, np.concatenate(clients))
    wanted = np.linalg.lstsq(design, target, rcond=None)[0]
    assert np.abs(after["consequent"].ravel() - wanted).max() < 1e-9


def test_a_gradient_step_is_the_pooled_step_and_the_mean_of_the_clients_steps() -> None:
    clients = clients_of(drawn(2))
    params = with_conditions(clients, consequents="gradient", step=0.05)
    params = {
        **params,
        "consequent": np.random.default_rng(0).normal(size=params["consequent"].shape),
    }
    found = TSK.combine(params, [TSK.answer(params, rows) for rows in clients])["consequent"]
    pooled = TSK.combine(params, [TSK.answer(params, np.concatenate(clients))])["consequent"]
    assert np.abs(found - pooled).max() < 1e-12
    steps = []
    rows_each = []
    for rows in filter(len, clients):
        design, target = regressors(params, rows)
        before = params["consequent"].ravel()
        steps.append(before - 0.05 * design.T @ (design @ before - target) / len(rows))
        rows_each.append(len(rows))
    averaged = np.average(steps, axis=0, weights=rows_each)
    assert np.abs(found.ravel() - averaged).max() < 1e-12
    assert np.abs(found - params["consequent"]).max() > 1e-3


def test_many_gradient_steps_come_near_the_least_squares() -> None:
    clients = clients_of(drawn(3))
    exact = run_rounds(TSK, started(clients, ridge=1e-6), clients, tolerance=1e-9).params
    descended = run_rounds(
        TSK,
        started(clients, consequents="gradient", step=1.0),
        clients,
        rounds_max=3000,
        tolerance=1e-7,
    ).params
    assert descended["error"][0] < 1.05 * exact["error"][0]


def test_all_rounds_of_any_split_are_those_of_all_rows_in_one_place() -> None:
    rows = drawn(4)
    start = started([rows])
    apart, pooled = (
        run_rounds(TSK, start, split, tolerance=1e-9).params for split in (clients_of(rows), [rows])
    )
    assert has_conditions(apart)
    for name in ("centre", "width", "consequent", "origin", "scale"):
        np.testing.assert_allclose(apart[name], pooled[name], rtol=0, atol=1e-8, err_msg=name)


# The stages.


def test_the_first_round_standardises_by_all_rows_and_predicts_by_linear_regression() -> None:
    clients = clients_of(drawn(5))
    rows = np.concatenate(clients)
    params = started(clients, ridge=1e-9)
    first = TSK.combine(params, [TSK.answer(params, part) for part in clients])
    np.testing.assert_allclose(first["origin"], rows.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(first["scale"], rows.std(axis=0), atol=1e-12)
    design = np.column_stack([rows[:, :-1], np.ones(len(rows))])
    line = np.linalg.lstsq(design, rows[:, -1], rcond=None)[0]
    np.testing.assert_allclose(PREDICTION.predict(first, rows), design @ line, atol=1e-9)
    assert not PREDICTION.rules(first).settled


def test_predictions_go_on_as_a_line_while_conditions_are_sought() -> None:
    clients = clients_of(drawn(6))
    params = started(clients)
    line: Floats | None = None
    while not has_conditions(params):
        params = TSK.combine(params, [TSK.answer(params, rows) for rows in clients])
        predicted = PREDICTION.predict(params, clients[-1])
        if line is not None:
            np.testing.assert_allclose(predicted, line, atol=1e-2)
        line = predicted
    fitted = TSK.combine(params, [TSK.answer(params, rows) for rows in clients])
    assert fitted["error"][0] < 0.5 * params["error"][0]


def test_conditions_can_stay_where_another_model_has_found_clusters() -> None:
    rows = drawn(7)
    points = np.array([[0.2, 0.2, 0.0], [0.8, 0.8, 0.0], [0.2, 0.8, 0.0]])
    hint = replace(bounding_box([rows]), points=points)
    params = TSK.start({"clusters": "auto", "condition_rounds": 0}, 3, hint)
    params = run_rounds(TSK, params, [rows], tolerance=1e-9).params
    assert has_conditions(params)
    np.testing.assert_allclose(params["centre"][:, :-1], points[:, :-1], atol=1e-12)
    assert np.abs(params["centre"][:, -1]).max() > 0.1, (
        "in the column of the target is the mean of its values"
    )


def test_each_stage_is_a_new_epoch_and_earlier_answers_do_not_count_in_it() -> None:
    clients = clients_of(drawn(8))
    params = started(clients, ridge=0.01)
    epochs = [epoch(params)]
    while not has_conditions(params):
        params = TSK.combine(params, [TSK.answer(params, rows) for rows in clients])
        epochs.append(epoch(params))
    assert epochs[:3] == [0, 1, 1]
    assert epochs[-1] == 2
    conditions = len(epochs) - 1
    for kind in ("decay", "cache"):
        first = run_rounds(
            TSK,
            started(clients, ridge=0.01),
            clients,
            policy=Policy(kind),
            rounds_max=conditions + 9,
        )
        n_counted = 300 * sum(
            0.5**age for age in range(len(first.shifts) - np.isinf(first.shifts).sum())
        )
        assert first.params["weight"].sum() == pytest.approx(
            n_counted if kind == "decay" else 300
        ), kind
        kept = run_rounds(
            TSK, started(clients, ridge=0.01), clients, policy=Policy(kind), tolerance=1e-12
        ).params
        design, target = regressors(kept, np.concatenate(clients))
        best = np.linalg.lstsq(design, target, rcond=None)[0]
        assert kept["error"][0] == pytest.approx(
            float(np.square(design @ best - target).mean()), rel=0.02
        ), kind


# Streams.


def test_decay_forgets_as_weighted_least_squares_does() -> None:
    first = drawn(9)
    params = with_conditions([first], ridge=1e-6)
    windows = [first, drawn(10), drawn(11)]
    windows[2][:, -1] += 0.2
    state = None
    decay = 0.5
    for rows in windows:
        answer = TSK.answer(params, rows)
        state = (
            answer
            if state is None
            else {name: decay * state[name] + answer[name] for name in answer}
        )
    assert state is not None
    found = TSK.combine(params, [state])["consequent"].ravel()
    weights = np.sqrt(np.repeat([decay**2, decay, 1.0], 300))
    design, target = regressors(params, np.concatenate(windows))
    wanted = np.linalg.lstsq(
        np.concatenate([design * weights[:, None], 1e-3 * np.eye(design.shape[1])]),
        np.concatenate([target * weights, np.zeros(design.shape[1])]),
        rcond=None,
    )[0]
    np.testing.assert_allclose(found, wanted, atol=1e-8)


def test_consequents_follow_a_target_that_drifts() -> None:
    rows = drawn(12)
    settled = run_rounds(
        TSK, started([rows]), [rows], policy=Policy("decay"), tolerance=1e-6
    ).params
    moved = rows + np.array([0.0, 0.0, 0.3])
    followed = run_rounds(TSK, settled, [moved], policy=Policy("decay"), tolerance=1e-6).params
    stale, fresh = (
        float((PREDICTION.predict(answer, moved) - moved[:, -1]).mean())
        for answer in (settled, followed)
    )
    assert stale == pytest.approx(-0.3, abs=0.01)
    assert abs(fresh) < 0.01
    np.testing.assert_array_equal(settled["centre"][:, :-1], followed["centre"][:, :-1])


def test_conditions_are_found_again_when_the_rows_of_a_rule_have_moved_far() -> None:
    rows = drawn(13)
    settled = run_rounds(TSK, started([rows], ridge=1e-6), [rows], tolerance=1e-6).params
    away = rows + np.array([2.0, 0.0, 0.0])
    again = TSK.combine(settled, [TSK.answer(settled, away)])
    assert not has_conditions(again)
    assert epoch(again) == epoch(settled) + 1
    assert TSK.shift(settled, again) == np.inf
    # Meanwhile predictions are those of a line through the rows as they are now.
    design = np.column_stack([away[:, :-1], np.ones(len(away))])
    line = design @ np.linalg.lstsq(design, away[:, -1], rcond=None)[0]
    np.testing.assert_allclose(PREDICTION.predict(again, away), line, atol=1e-6)
    found = run_rounds(TSK, again, [away], tolerance=1e-6).params
    assert has_conditions(found)
    assert found["centre"][:, 0].min() > 2.0
    assert found["error"][0] < 1.5 * settled["error"][0]


def test_rows_without_drift_do_not_start_again() -> None:
    rows = drawn(14)
    settled = run_rounds(TSK, started([rows]), [rows], tolerance=1e-6).params
    after = run_rounds(TSK, settled, [drawn(15)], tolerance=1e-6).params
    assert epoch(after) == epoch(settled)


# The target.


def test_the_target_is_named_given_by_position_or_the_last_feature() -> None:
    names = ["warm", "damp", "power"]
    for options, position in (
        ({}, 2),
        ({"target": "damp"}, 1),
        ({"target": 0}, 0),
        ({"target": "power"}, 2),
    ):
        assert PREDICTION.target(options, 3, names) == position
        hint = InitHint(np.zeros(3), np.ones(3), features=names)
        assert TSK.start({"clusters": 2, **options}, 3, hint)["target"].tolist() == [position]
    with pytest.raises(
        SettingsError, match="target = 'light' is no feature; there are: warm, damp, power"
    ):
        PREDICTION.target({"target": "light"}, 3, names)
    with pytest.raises(SettingsError, match="from 0 to 2"):
        PREDICTION.target({"target": 3}, 3, names)
    with pytest.raises(SettingsError, match="give a position"):
        PREDICTION.target({"target": "power"}, 3, ())
    for wrong in (-1, 1.5, True):
        with pytest.raises(SettingsError, match="target"):
            TSK.check({"target": wrong})


@pytest.mark.parametrize("target", [0, 1, 2])
def test_the_position_of_the_target_does_not_change_the_model(target: int) -> None:
    rows = drawn(16)
    moved = np.insert(rows[:, :2], target, rows[:, 2], axis=1)
    points = rows[:4]
    found = []
    for table, at, position in ((rows, points, 2), (moved, moved[:4], target)):
        hint = replace(bounding_box([table]), points=at)
        params = TSK.start({"clusters": "auto", "target": position}, 3, hint)
        found.append(
            PREDICTION.predict(run_rounds(TSK, params, [table], tolerance=1e-9).params, table)
        )
    np.testing.assert_allclose(found[0], found[1], atol=1e-7)


def test_predictions_and_rules_of_rows_do_not_use_the_target() -> None:
    rows = drawn(17)
    params = run_rounds(TSK, started([rows]), [rows], tolerance=1e-6).params
    hidden = rows.copy()
    hidden[:, -1] = 77.0
    for stage in (params, started([rows])):
        np.testing.assert_array_equal(
            PREDICTION.predict(stage, rows), PREDICTION.predict(stage, hidden)
        )
        np.testing.assert_array_equal(TSK.predict(stage, rows), TSK.predict(stage, hidden))
    assert PREDICTION.predict(params, rows[:0]).shape == (0,)
    with pytest.raises(InvalidData):
        PREDICTION.predict(params, rows * np.nan)


def test_more_coefficients_than_the_equations_may_have_are_refused() -> None:
    hint = InitHint(np.zeros(50), np.ones(50))
    with pytest.raises(SettingsError, match="at most 40 for 50 features"):
        TSK.start({"clusters": 41}, 50, hint)
    many = replace(hint, points=np.random.default_rng(0).uniform(size=(60, 50)))
    assert len(TSK.start({"clusters": "auto"}, 50, many)["centre"]) == 40


@pytest.mark.parametrize("name", ["target", "stage", "fuzzifier", "width", "scale"])
def test_clients_refuse_impossible_parameters(name: str) -> None:
    rows = drawn(18)
    params = started([rows])
    with pytest.raises(InvalidData, match="damaged"):
        TSK.answer({**params, name: np.full_like(params[name], -1)}, rows)


def test_answers_to_the_other_stage_are_refused() -> None:
    rows = drawn(19)
    before = started([rows])
    after = with_conditions([rows])
    for params, other in ((before, after), (after, before)):
        with pytest.raises(InvalidData, match="than the round request has"):
            TSK.combine(params, [TSK.answer(other, rows)])
    answer = TSK.answer(after, rows)
    for lie in (
        {"energy": -answer["energy"]},
        {"square": -answer["square"]},
        {"mass": -answer["mass"]},
    ):
        with pytest.raises(InvalidData, match="impossible"):
            TSK.combine(after, [{**answer, **lie}])


# Kernels.


def test_strengths_add_up_to_one_far_from_every_rule_and_with_many_inputs() -> None:
    generator = np.random.default_rng(0)
    columns = generator.normal(size=(40, 50)) * 30
    strengths = firing_strengths(columns, generator.normal(size=(3, 40)), np.full((3, 40), 100.0))
    assert np.isfinite(strengths).all()
    np.testing.assert_allclose(strengths.sum(axis=0), 1.0)


def test_equations_without_a_unique_solution_are_solved_too() -> None:
    gram = np.zeros((1, 3))
    assert np.isfinite(solve_ridge(expand_gram(gram, 1, 2), np.ones(2), 1e-300)).all()


# Rules to read.


def base_in_units() -> tuple[Params, RuleBase, Floats, Floats]:
    low = np.array([10.0, 0.0, -5.0])
    high = np.array([30.0, 100.0, 5.0])
    rows = drawn(20)
    rows[:, -1] = rows[:, -1] / 5 + 0.5
    params = run_rounds(TSK, started([rows], ridge=0.01), [rows], tolerance=1e-9).params
    return params, PREDICTION.rules(params).in_units(low, high), low, high


def test_the_rules_in_units_give_the_predictions() -> None:
    params, base, low, high = base_in_units()
    rows = np.random.default_rng(1).uniform(size=(50, 3))
    readings = low + rows * (high - low)
    gaps = np.square((readings[:, None, :2] - base.centre[:, :2]) / base.width[:, :2]).sum(axis=2)
    strengths = np.exp(-0.5 * gaps)
    strengths /= strengths.sum(axis=1, keepdims=True)
    values = base.constant + readings @ base.coefficient.T
    predicted = low[2] + PREDICTION.predict(params, rows) * (high[2] - low[2])
    np.testing.assert_allclose((strengths * values).sum(axis=1), predicted, atol=1e-9)
    assert base.error is not None
    assert 0 < base.error < 0.5


def test_rules_are_sentences_with_the_heaviest_first() -> None:
    _, base, _, _ = base_in_units()
    rules = rules_of(base, ["warm", "damp", "power"])
    assert len(rules) == 4
    assert sum(rule.share for rule in rules) == pytest.approx(1.0)
    assert [rule.share for rule in rules] == sorted((rule.share for rule in rules), reverse=True)
    for rule in rules:
        assert rule.text.startswith("if warm is ")
        assert " and damp is " in rule.text
        assert " then power = " in rule.text
        assert " × warm " in rule.text
    words = {(rule.conditions[0].word, rule.conditions[1].word) for rule in rules}
    assert len(words) == 4
    empty = replace(base, mass=np.array([0.0, 1.0, 0.0, 1.0]))
    assert {rule.number for rule in rules_of(empty, ["warm", "damp", "power"])} == {1, 3}


def test_numbers_in_rules_have_three_digits_that_count() -> None:
    texts = {
        0.0: "0",
        1234.4: "1234",
        12.345: "12.3",
        -0.012345: "-0.0123",
        1e-9: "1e-09",
        3e12: "3e+12",
        1e7: "10000000",
    }
    assert {number: written(number) for number in texts} == texts


def test_one_feature_alone_is_predicted_by_its_mean() -> None:
    rows = np.random.default_rng(2).uniform(size=(40, 1))
    params = run_rounds(TSK, started([rows], clusters=1, ridge=1e-9), [rows], tolerance=1e-9).params
    np.testing.assert_allclose(PREDICTION.predict(params, rows), rows.mean(), atol=1e-8)
    assert rules_of(PREDICTION.rules(params), ["power"])[0].text.startswith("power = ")
    assert params["error"] == pytest.approx(float_array(1.0))
