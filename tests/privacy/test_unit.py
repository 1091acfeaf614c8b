"""The privacy unit of counts: what a contract must say of it, and how much noise it takes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from shoal.cli.check import check
from shoal.config.contract import Contract
from shoal.config.privacy_report import privacy_report
from shoal.config.resolved import resolve
from shoal.errors import SettingsError
from shoal.privacy.base import PrivacyUnit
from shoal.privacy.count_noise import certified_count_epsilon, count_noise
from shoal.server_node.report.privacy import privacy_text
from tests.counted_contract import COUNTED, ROWS, agreed
from tests.house.counting_federation import create


def of_users(readings: int = 5, **more: Any) -> Contract:
    terms = {"counts_epsilon": 2.0, "unit": "user", "readings_per_window_max": readings, **more}
    return agreed(COUNTED, **terms)


@pytest.mark.parametrize("readings", [1, 2, 7, 50])
@pytest.mark.parametrize("epsilon", [1.0, 4.0, 40.0])
def test_the_tables_of_a_user_cost_hardly_less_and_never_more_than_declared(
    epsilon: float, readings: int
) -> None:
    noise = count_noise(epsilon, readings)
    assert 0.999 * epsilon < certified_count_epsilon(noise, readings) <= epsilon
    assert certified_count_epsilon(noise) == pytest.approx(epsilon / readings, rel=1e-3), (
        "a single reading costs less"
    )


def test_the_scale_of_the_noise_grows_with_the_readings_of_a_user() -> None:
    one, five = (count_noise(2.0, readings).variance for readings in (1, 5))
    assert math.sqrt(five / one) == pytest.approx(5, rel=0.05)


@pytest.mark.parametrize("readings", [2, 5])
def test_no_window_of_a_user_is_more_likely_than_declared_with_other_readings(
    readings: int,
) -> None:
    """All readings of the user move from one cell to another: the worst ratio of probabilities,
    from the tables."""
    noise = count_noise(2.0, readings)
    weights = np.log(noise.weights.astype(np.float64))
    n = noise.reach
    inside = np.arange(-n + 1 + readings, n - readings)
    moved = np.abs(weights[inside + n] - weights[inside + readings + n]).max()
    assert 0.99 * 2.0 < 2 * moved <= 2.0


def test_the_noise_of_a_contract_and_its_certificate_are_those_of_its_unit() -> None:
    contract = resolve(of_users(5))
    (model,) = contract.counted
    assert model.counts is not None
    noise = model.counts.noise
    assert noise is not None
    assert noise.digest() == count_noise(2.0, 5).digest()
    assert model.options["noise_variance"] == noise.variance
    spent, declared = contract.epsilon_spent
    assert 0.999 * declared < spent <= declared == 2.0


def test_messages_state_the_unit() -> None:
    contract = resolve(of_users(5))
    plain = resolve(agreed(COUNTED, counts_epsilon=2.0))
    stated = contract.models["counted"].statement
    assert (stated["unit"], stated["readings_per_window_max"], stated["epsilon"]) == (
        "user",
        5,
        2.0,
    )
    assert contract.statement["unit"] == "user"
    assert plain.models["counted"].statement["unit"] == "reading"
    assert len({plain.digest, contract.digest, of_users(4).digest}) == 3


def test_the_guarantee_in_words_says_whom_it_protects_and_what_windows_cost() -> None:
    report = privacy_report(resolve(of_users(5)))
    words = " ".join(text for _, text in report["guarantee"])
    assert "at epsilon 2 in each model" in words
    assert "At most 5 of them" in words
    assert "20 in 10 windows in a row" in words
    assert (report["title"], report["unit"]) == ("Formal guarantee for every user", "user")
    assert any("several windows" in sentence for sentence in report["not_covered"])


def test_shoal_check_and_the_page_say_whom_the_epsilon_is_of(tmp_path: Path) -> None:
    file = create(
        tmp_path,
        0,
        privacy='counts_epsilon = 4\nunit = "user"\nreadings_per_window_max = 1',
        clients=(),
    )
    words = CliRunner().invoke(check, [str(file)], catch_exceptions=False).stdout
    assert "window, from private counts" in words
    assert "epsilon 4 per user and window" in words
    assert "40 in 10 windows in a row" in words
    panel = privacy_text(resolve(of_users(5)))
    assert (panel["epsilon"], panel["per"], panel["models"][0]["unit"]) == (
        2.0,
        "user and window",
        "user",
    )


@pytest.mark.parametrize(
    ("privacy", "why"),
    [
        ({"counts_epsilon": 2, "unit": "user"}, "needs readings_per_window_max"),
        ({"counts_epsilon": 2, "readings_per_window_max": 5}, 'is for unit = "user"'),
        (
            {"counts_epsilon": 2, "unit": "user", "readings_per_window_max": 0},
            "greater than or equal to 1",
        ),
        (
            {"counts_epsilon": 2, "unit": "user", "readings_per_window_max": 401},
            "at most window_readings, 400",
        ),
        (
            {"counts_epsilon": 2, "unit": "device", "readings_per_window_max": 5},
            "'reading', 'user' or 'client'",
        ),
        (
            {
                "counts_epsilon": 2,
                "unit": "user",
                "readings_per_window_max": 5,
                "epsilon_per_reading": 100,
            },
            "noisy rows, which protect readings one by one",
        ),
        (
            {"mode": "off", "unit": "user", "readings_per_window_max": 5},
            'means nothing in mode = "off"',
        ),
        (
            {
                "mode": "paper",
                "epsilon_per_feature": 15,
                "unit": "user",
                "readings_per_window_max": 5,
            },
            "means nothing",
        ),
    ],
)
def test_a_unit_that_cannot_be_promised_is_refused_with_what_to_do(
    privacy: dict[str, Any], why: str
) -> None:
    with pytest.raises(SettingsError, match=why):
        agreed(COUNTED, **privacy)


def test_too_many_readings_of_a_user_for_the_epsilon_are_refused() -> None:
    with pytest.raises(SettingsError, match="smaller readings_per_window_max"):
        resolve(of_users(400))


def test_models_of_noisy_rows_are_refused_beside_users() -> None:
    contract = agreed(COUNTED, ROWS, counts_epsilon=2, unit="user", readings_per_window_max=5)
    with pytest.raises(
        SettingsError, match=r"models\.rows: fcac learns from noisy rows.*density_tree"
    ):
        resolve(contract)


def test_a_unit_of_readings_has_one_of_them() -> None:
    with pytest.raises(SettingsError, match='unit = "user"'):
        PrivacyUnit("reading", 2)
