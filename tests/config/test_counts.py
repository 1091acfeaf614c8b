"""Models that learn from counts: what the contract must declare for them, and what a reading costs
in all."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shoal.config.resolved import resolve
from shoal.errors import SettingsError
from shoal.privacy.count_noise import count_noise
from tests.counted_contract import COUNTED, ROWS, agreed


def test_counts_need_their_own_epsilon_and_rows_theirs() -> None:
    resolve(agreed(COUNTED, counts_epsilon=4))
    resolve(agreed(COUNTED, ROWS, counts_epsilon=4, epsilon_per_reading=100))
    with pytest.raises(SettingsError, match=r"models\.rows: .* needs epsilon_per_reading"):
        resolve(agreed(COUNTED, ROWS, counts_epsilon=4))
    with pytest.raises(SettingsError, match=r"models\.counted: .* needs counts_epsilon"):
        resolve(agreed(COUNTED, ROWS, epsilon_per_reading=100))
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
def test_what_does_not_go_together_is_refused_with_the_reason(
    privacy: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        resolve(agreed(COUNTED, **privacy))


def test_a_model_of_rows_has_no_epsilon_of_its_own() -> None:
    with pytest.raises(SettingsError, match="learns from noisy rows, which all such models share"):
        resolve(agreed({**ROWS, "counts_epsilon": 2}, epsilon_per_reading=100))


@pytest.mark.parametrize("name", ["noise_variance", "window_readings"])
def test_options_that_follow_from_privacy_are_not_written(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} follows from"):
        resolve(agreed({**COUNTED, "options": {name: 5}}, counts_epsilon=4))


def test_each_stream_of_counts_costs_and_rows_cost_once() -> None:
    careful = {**COUNTED, "name": "careful", "counts_epsilon": 1}
    more = {**ROWS, "name": "more"}
    contract = resolve(
        agreed(COUNTED, careful, ROWS, more, counts_epsilon=4, epsilon_per_reading=100)
    )
    assert contract.total_epsilon == 105
    spent, limit = contract.epsilon_spent
    assert 104.9 < spent <= limit == 105
    assert [model.statement["epsilon"] for model in contract.models.values()] == [4, 1, 100, 100]


def test_without_a_guarantee_there_is_no_sum() -> None:
    contract = resolve(agreed(COUNTED, ROWS, mode="off"))
    assert contract.total_epsilon is None
    assert contract.epsilon_spent == (math.inf, math.inf)
    assert contract.models["counted"].statement["mechanism"] == "none"


def test_the_noise_of_a_model_reaches_its_algorithm() -> None:
    contract = resolve(agreed(COUNTED, counts_epsilon=2, window_readings=100))
    assert contract.models["counted"].options == {
        "noise_variance": count_noise(2.0).variance,
        "window_readings": 100,
    }


def test_the_settings_of_counts_are_agreed_on_where_they_are_written() -> None:
    plain = agreed(ROWS, epsilon_per_reading=100)
    assert (
        plain.digest
        == agreed(ROWS, epsilon_per_reading=100, window_readings=400, window_s=600).digest
    )
    counted = [
        agreed(COUNTED, counts_epsilon=4),
        agreed(COUNTED, counts_epsilon=2),
        agreed(COUNTED, counts_epsilon=4, window_readings=100),
        agreed(COUNTED, counts_epsilon=4, window_s=60),
        agreed({**COUNTED, "counts_epsilon": 3}, counts_epsilon=4),
    ]
    assert len({contract.digest for contract in [plain, *counted]}) == 6
