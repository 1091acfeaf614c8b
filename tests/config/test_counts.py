"""Models that learn from counts: what the contract must declare for them, and what a reading costs in all."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shoal.config.models import check_models
from shoal.config.privacy import epsilon_spent, model_options, model_statement, total_epsilon
from shoal.errors import SettingsError
from shoal.privacy.count_noise import count_noise
from tests.counted_contract import COUNTED, ROWS, agreed


def test_counts_need_their_own_epsilon_and_rows_theirs() -> None:
    check_models(agreed(COUNTED, counts_epsilon=4))
    check_models(agreed(COUNTED, ROWS, counts_epsilon=4, epsilon_per_reading=100))
    with pytest.raises(SettingsError, match=r"models\.rows: .* needs epsilon_per_reading"):
        check_models(agreed(COUNTED, ROWS, counts_epsilon=4))
    with pytest.raises(SettingsError, match=r"models\.counted: .* needs counts_epsilon"):
        check_models(agreed(COUNTED, ROWS, epsilon_per_reading=100))
    with pytest.raises(SettingsError, match="needs epsilon_per_reading, or counts_epsilon"):
        agreed(COUNTED)


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({"mode": "paper", "epsilon_nominal_per_feature": 3}, "cannot make counts private"),
        ({"mode": "off", "counts_epsilon": 4}, "means nothing in mode"),
        ({"counts_epsilon": 0.001}, "counts_epsilon"),
        ({"counts_epsilon": 100}, "counts_epsilon"),
        ({"counts_epsilon": 4, "window_readings": 0}, "window_readings"),
        ({"counts_epsilon": 4, "window_readings": 200_000}, "readings_max must be at least"),
        ({"counts_epsilon": 4, "window_s": 0}, "window_s"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason(privacy: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check_models(agreed(COUNTED, **privacy))


def test_a_model_of_rows_has_no_epsilon_of_its_own() -> None:
    with pytest.raises(SettingsError, match="learns from noisy rows, which all such models share"):
        check_models(agreed({**ROWS, "counts_epsilon": 2}, epsilon_per_reading=100))


@pytest.mark.parametrize("name", ["noise_variance", "window_readings"])
def test_options_that_follow_from_privacy_are_not_written(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} follows from"):
        check_models(agreed({**COUNTED, "options": {name: 5}}, counts_epsilon=4))


def test_each_stream_of_counts_costs_and_rows_cost_once() -> None:
    contract = agreed(
        COUNTED, {**COUNTED, "name": "careful", "counts_epsilon": 1}, ROWS, {**ROWS, "name": "more"},
        counts_epsilon=4, epsilon_per_reading=100,
    )  # fmt: skip
    check_models(contract)
    assert total_epsilon(contract) == 105
    spent, limit = epsilon_spent(contract)
    assert 104.9 < spent <= limit == 105
    assert [model_statement(contract, model)["epsilon"] for model in contract.models] == [4, 1, 100, 100]


def test_without_a_guarantee_there_is_no_sum() -> None:
    contract = agreed(COUNTED, ROWS, mode="off")
    check_models(contract)
    assert total_epsilon(contract) is None
    assert epsilon_spent(contract) == (math.inf, math.inf)
    assert model_statement(contract, contract.models[0])["mechanism"] == "none"


def test_the_noise_of_a_model_reaches_its_algorithm() -> None:
    contract = agreed(COUNTED, counts_epsilon=2, window_readings=100)
    assert model_options(contract, contract.models[0]) == {
        "noise_variance": count_noise(2.0).variance,
        "window_readings": 100,
    }


def test_the_settings_of_counts_are_agreed_on_where_they_are_written() -> None:
    plain = agreed(ROWS, epsilon_per_reading=100)
    assert plain.digest == agreed(ROWS, epsilon_per_reading=100, window_readings=400, window_s=600).digest
    counted = [
        agreed(COUNTED, counts_epsilon=4),
        agreed(COUNTED, counts_epsilon=2),
        agreed(COUNTED, counts_epsilon=4, window_readings=100),
        agreed(COUNTED, counts_epsilon=4, window_s=60),
        agreed({**COUNTED, "counts_epsilon": 3}, counts_epsilon=4),
    ]
    assert len({contract.digest for contract in [plain, *counted]}) == 6
