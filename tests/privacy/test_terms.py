"""Terms of the modes: the parts of the budget, shares, and what a mode needs."""

from __future__ import annotations

import math

import pytest

from shoal.errors import SettingsError
from shoal.privacy import load_mode, mode_names
from shoal.privacy.formal import Formal
from shoal.privacy.off import Off
from tests.privacy.modes import formal_mode, paper_mode, wide_bounds


def test_the_modes_of_this_package_are_installed() -> None:
    assert {"formal", "paper", "off"} <= set(mode_names()), "run pip install -e . again"
    assert load_mode("formal") is Formal


def test_an_unknown_mode_lists_the_known_ones() -> None:
    with pytest.raises(
        SettingsError, match="unknown privacy mode 'laplace'; there are: formal, masked, off, paper"
    ):
        load_mode("laplace")


def test_equal_parts_sum_to_the_budget_of_the_reading() -> None:
    assert formal_mode(4, 8.0).epsilon_per_feature() == (2.0, 2.0, 2.0, 2.0)


def test_parts_follow_the_shares() -> None:
    parts = formal_mode(3, 6.0, (1.0, 2.0, 3.0)).epsilon_per_feature()
    assert parts == pytest.approx((1.0, 2.0, 3.0))
    assert math.fsum(parts) == pytest.approx(6.0)


def test_the_paper_gives_every_feature_the_same_nominal_epsilon() -> None:
    assert paper_mode(3, 15.0).epsilon_per_feature() == (15.0, 15.0, 15.0)


def test_off_has_no_epsilon() -> None:
    assert Off(wide_bounds(3)).epsilon_per_feature() == ()


@pytest.mark.parametrize(
    "shares", [(1.0,), (1.0, 0.0), (1.0, -1.0), (1.0, math.nan), (1.0, math.inf)]
)
def test_invalid_shares_are_an_error(shares: tuple[float, ...]) -> None:
    with pytest.raises(SettingsError, match="shares must be 2 finite numbers above 0"):
        formal_mode(2, 1.0, shares)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_an_invalid_epsilon_is_an_error(epsilon: float) -> None:
    with pytest.raises(SettingsError, match="epsilon_per_reading must be above 0"):
        formal_mode(2, epsilon)
    with pytest.raises(SettingsError, match="epsilon_nominal_per_feature must be above 0"):
        paper_mode(2, epsilon)
