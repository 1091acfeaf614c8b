"""The mode `masked`: its terms, what it says, what it refuses, and how the counts of a window are
cut off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.config.contract import parse_contract
from shoal.config.privacy_report import spent_in_a_day
from shoal.config.resolved import ResolvedContract, resolve
from shoal.errors import SettingsError
from shoal.privacy.gaussian import NANO, certified_rho, epsilon_of, nano_rho_of
from shoal.privacy.masked import Masked, readings_within

KEYS = ("ab" * 64, "cd" * 64)


def contract(
    models: tuple[str, ...] = ("density_tree",), helpers: int = 1, **privacy: Any
) -> ResolvedContract:
    """A contract of masked counts with these terms; None leaves one out."""
    terms = {"mode": "masked", "unit": "client", "epsilon": 1.0, **privacy}
    named = [{"name": f"helper-{i}", "key": KEYS[i]} for i in range(helpers)]
    return resolve(
        parse_contract(
            {
                "federation": {"name": "plant"},
                "features": [
                    {"name": "a", "low": 0, "high": 1},
                    {"name": "b", "low": 0, "high": 1},
                ],
                "privacy": {**{k: v for k, v in terms.items() if v is not None}, "helpers": named},
                "models": [{"name": f"m{i}", "algorithm": model} for i, model in enumerate(models)],
            }
        )
    )


def mode_of(found: ResolvedContract) -> Masked:
    assert isinstance(found.mode, Masked)
    return found.mode


def test_one_window_costs_the_declared_epsilon_and_the_noise_of_every_helper_is_whole() -> None:
    one = contract()
    two = contract(helpers=2)
    mode = mode_of(one)
    assert mode.clip_squared == 100 * 100, "400 / sqrt(8 x 2)"
    assert mode.squared_distance == 2 * 100 * 100, "two windows without a cell in common"
    assert 0.999 < mode.window_epsilon <= 1.0
    assert certified_rho(mode.noise(), mode.squared_distance) * NANO <= mode.window_nano
    options = one.models["m0"].options
    assert (options["axes_per_window"], options["noise_variance"]) == (2, mode.variance)
    assert two.models["m0"].options["noise_variance"] == 2 * mode.variance
    assert one.models["m0"].statement["helpers"] == ["helper-0"]
    assert one.digest != two.digest, "helpers are part of the contract"


def test_a_budget_is_divided_by_rho_and_models_add_up_by_rho() -> None:
    month = mode_of(contract(epsilon=4.0, budget_windows=120, budget_days=30))
    assert month.span_nano is not None
    assert month.span_nano // month.window_nano == 120
    assert epsilon_of(120 * month.window_nano / NANO, 1e-6) <= 4.0
    both = contract(("density_tree", "cluster_tree_from_counts"))
    total = both.total_epsilon
    assert total is not None
    assert 1.0 < total < 2.0
    assert len({model.counts.stream for model in both.counted if model.counts}) == 2


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        ({"unit": None}, 'write unit = "client"'),
        ({"epsilon": None}, "needs epsilon"),
        ({"counts_epsilon": 1.0}, "means nothing"),
        ({"budget_epsilon": 4.0}, "needs budget_days"),
        ({"budget_epsilon": 0.5, "budget_days": 30}, "less than one window costs"),
        ({"budget_windows": 1.5}, "whole number"),
        ({"hide_presence": True}, "hide_presence is not built"),
        ({"clip": 0.5}, "clip must be at least 1"),
        ({"epsilon": 1e-4, "window_readings": 100_000}, "noise"),
        (
            {"epsilon": 40.0, "window_readings": 10**6, "clip": 4e5, "batch_min": 6000},
            "do not fit into 32 bits",
        ),
        ({"helpers": 0}, "shoal keys helper"),
        (
            {"mode": "formal", "epsilon": None, "counts_epsilon": 1.0, "helpers": 0},
            'is for mode = "masked"',
        ),
        (
            {"mode": "formal", "unit": None, "epsilon": None, "counts_epsilon": 1.0},
            "helpers mean nothing",
        ),
        ({"models": ("fcac",)}, "only sums of counts leave a client"),
        ({"models": ("kmeans",)}, "only sums of counts leave a client"),
    ],
)
def test_terms_that_promise_nothing_are_refused_with_what_to_do(
    privacy: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        contract(**privacy)


def test_two_helpers_with_one_key_are_one_party() -> None:
    with pytest.raises(SettingsError, match="the same key"):
        parse_contract(
            {
                "federation": {"name": "plant"},
                "features": [{"name": "a", "low": 0, "high": 1}],
                "privacy": {
                    "mode": "masked",
                    "unit": "client",
                    "epsilon": 1.0,
                    "helpers": [{"name": "one", "key": KEYS[0]}, {"name": "two", "key": KEYS[0]}],
                },
                "models": [{"name": "m", "algorithm": "density_tree"}],
            }
        )


class Cells:
    """Counts of readings by their cell."""

    def __init__(self, cells: np.ndarray, kept: np.ndarray) -> None:
        self.counts = np.bincount(cells[kept], minlength=8)


@pytest.mark.parametrize("seed", range(5))
def test_a_window_is_cut_off_at_the_clip_and_keeps_as_many_readings_as_fit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cells = rng.choice(8, 60, p=rng.dirichlet(np.full(8, 0.5)))
    valid = rng.random(60) < 0.9
    order = rng.permutation(60)
    for clip_squared in (1, 50, 200, 10_000):
        counted, kept = readings_within(lambda only: Cells(cells, only), valid, order, clip_squared)
        assert counted.counts.sum() == kept
        assert (counted.counts**2).sum() <= clip_squared
        if kept < valid.sum():
            more = np.zeros(60, dtype=bool)
            more[order[valid[order]][: kept + 1]] = True
            assert (Cells(cells, more).counts ** 2).sum() > clip_squared


@pytest.mark.parametrize("readings", [1, 7, 8, 60])
def test_a_window_that_is_cut_off_takes_as_many_steps_over_as_many_readings_as_one_that_is_not(
    readings: int,
) -> None:
    """When a window is published must not tell whether it was cut off."""
    work: set[tuple[int, int]] = set()
    for spread in (1, 3, 8):
        for clip_squared in (1, 50, 10_000):
            counted: list[int] = []

            def counts_of(
                only: np.ndarray, spread: int = spread, counted: list[int] = counted
            ) -> Cells:
                counted.append(int(only.sum()))
                return Cells(np.arange(readings) % spread, only)

            valid = np.ones(readings, dtype=bool)
            _, kept = readings_within(
                counts_of, valid, np.random.default_rng(1).permutation(readings), clip_squared
            )
            work.add((len(counted), sum(counted) - kept))
    assert len(work) == 1


def test_the_description_names_helpers_budget_and_what_cannot_be_done() -> None:
    text = (
        mode_of(contract(helpers=2, epsilon=4.0, budget_windows=120, budget_days=30))
        .describe()
        .text()
    )
    for words in (
        "EXPERIMENTAL",
        "at least 100 clients",
        "helper-0, helper-1",
        "in any 30 days",
        "98 % sure afterwards",
        "tells more than that with a probability of at most 2e-05. It follows from delta, 1e-06",
        "as long as ONE of the helpers",
        "quarantine",
        "erased",
    ):
        assert words in text
    assert "hide_presence" not in text, "which this mode refuses"
    # Thirteen spans of 30 days cover a year.
    rho = 13 * nano_rho_of(4.0, 1e-6) / NANO
    assert f"in a year to epsilon {epsilon_of(rho, 1e-6):.3g} " in text
    year = mode_of(contract(epsilon=4.0, budget_windows=120, budget_days=365)).describe().text()
    assert "Spans add up" not in year
    assert spent_in_a_day(contract(), 1440) is None, "a reading has no epsilon of its own"
