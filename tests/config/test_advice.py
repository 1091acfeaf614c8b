"""Advice on a contract: poor choices are named with what to take instead, and good ones are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shoal.cli.check import check
from shoal.config.contract import Contract, parse_contract
from shoal.config.privacy_report import advice_on
from shoal.config.resolved import ResolvedContract, resolve
from shoal.privacy.formal import protection

FILE = """
[federation]
name = "plant"
[[features]]
name = "warm"
low = 0
high = 1
[privacy]
mode = "formal"
epsilon_per_reading = 4
[[models]]
name = "clusters"
algorithm = "fcac"
"""


def agreed(algorithm: str, d: int = 2, others: tuple[str, ...] = (), **privacy: Any) -> ResolvedContract:
    names = ("first", *(f"other{number}" for number in range(len(others))))
    options = {"kmeans": {"clusters": 3}}
    models = [
        {"name": name, "algorithm": each, "options": options.get(each, {})}
        for name, each in zip(names, (algorithm, *others), strict=True)
    ]
    contract = parse_contract({
        "federation": {"name": "plant"},
        "features": [{"name": f"f{n}", "low": 0, "high": 1} for n in range(d)],
        "privacy": {"mode": "formal", **privacy},
        "models": models,
    })  # fmt: skip
    return resolve(contract)


@pytest.mark.parametrize("algorithm", ["fcac", "cluster_tree", "kmeans"])
def test_noisy_rows_at_a_small_epsilon_are_poor_and_counts_are_named_instead(algorithm: str) -> None:
    for d, named in ((2, "density_tree, or cluster_tree_from_counts"), (4, "density_tree, which")):
        (found,) = advice_on(agreed(algorithm, d, epsilon_per_reading=32))
        assert found.model == "first"
        assert named in found.text
        assert "epsilon 32" in found.text
    assert advice_on(agreed(algorithm, epsilon_per_reading=100)) == []


@pytest.mark.parametrize("algorithm", ["density_tree", "cluster_tree_from_counts", "fcac_from_counts"])
def test_counts_at_an_epsilon_of_four_in_windows_of_400_are_a_good_choice(algorithm: str) -> None:
    for d in (1, 2, 3):
        assert advice_on(agreed(algorithm, d, counts_epsilon=4)) == []


def test_windows_that_are_small_for_the_readings_of_a_user_are_poor() -> None:
    def users(readings: int, algorithm: str = "density_tree", **more: Any) -> Contract:
        return agreed(algorithm, counts_epsilon=4, unit="user", readings_per_window_max=readings, **more)

    assert advice_on(users(4)) == []
    assert advice_on(users(5, window_readings=500)) == []
    (found,) = advice_on(users(5))
    assert "window_readings of 500 and more" in found.text
    assert advice_on(users(4, "cluster_tree_from_counts")) == []
    (found,) = advice_on(users(5, "cluster_tree_from_counts", window_readings=500))
    assert "take density_tree, or an epsilon of 5 and more" in found.text


def test_a_grid_at_a_small_epsilon_is_poor() -> None:
    (found,) = advice_on(agreed("fcac_from_counts", counts_epsilon=0.5))
    assert "take density_tree, or an epsilon of 1 and more" in found.text
    assert advice_on(agreed("fcac_from_counts", counts_epsilon=1)) == []
    (found,) = advice_on(agreed("kmeans_from_counts", d=8, counts_epsilon=1))
    assert "take density_tree, or an epsilon of 2 and more" in found.text
    assert advice_on(agreed("kmeans_from_counts", d=8, counts_epsilon=2)) == []
    assert advice_on(agreed("density_tree", counts_epsilon=0.5)) == []


def test_small_windows_are_poor() -> None:
    (found,) = advice_on(agreed("density_tree", counts_epsilon=4, window_readings=50))
    assert "windows of 50 readings" in found.text


def test_rows_that_give_away_what_counts_protect_are_named() -> None:
    contract = agreed("fcac", others=("density_tree",), epsilon_per_reading=200, counts_epsilon=4)
    (found,) = advice_on(contract)
    assert found.model == "first"
    assert "give away what the counts of other0 protect" in found.text


def test_without_a_guarantee_there_is_no_advice() -> None:
    contract = parse_contract({
        "federation": {"name": "plant"},
        "features": [{"name": "warm", "low": 0, "high": 1}],
        "privacy": {"mode": "paper", "epsilon_nominal_per_feature": 3},
        "models": [{"name": "first", "algorithm": "fcac"}],
    })  # fmt: skip
    assert advice_on(resolve(contract)) == []


def test_shoal_check_prints_the_advice(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(FILE, encoding="utf-8")
    plain = CliRunner().invoke(check, [str(file)])
    assert plain.exit_code == 0
    assert "advice      clusters  noisy rows at epsilon 4 per reading show hardly any clusters" in plain.stdout
    found = json.loads(CliRunner().invoke(check, [str(file), "--json"]).stdout)["advice"]
    assert [one["model"] for one in found] == ["clusters"]


@pytest.mark.parametrize(
    ("given", "words"), [("", "1,440 readings a day spends epsilon 5,760"), ("1", "1 reading a day")]
)
def test_shoal_check_says_what_a_device_spends_in_a_day(tmp_path: Path, given: str, words: str) -> None:
    file = tmp_path / "plant.toml"
    file.write_text(FILE + (f"[client]\nreadings_per_day = {given}\n" if given else ""), encoding="utf-8")
    day = json.loads(CliRunner().invoke(check, [str(file), "--json"], catch_exceptions=False).stdout)["day"]
    assert day["epsilon"] == 4 * int(given or 1440)
    assert words in day["text"]
    assert day["text"].endswith(protection(day["epsilon"]))
    assert day["text"] in CliRunner().invoke(check, [str(file)], catch_exceptions=False).stdout
