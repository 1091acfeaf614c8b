"""`shoal reproduce tsk`, and how F2LS finds its rules."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from reproduction.datasets import find
from reproduction.experiment import Figure, Setting
from reproduction.experiments import tsk
from reproduction.experiments.tsk import Rules, fuzzy_centres, local_rules, merged_rules, widths
from reproduction.reproduce_command import reproduce
from shoal.errors import InvalidData, SettingsError

MEASURES = ["mse_lm", "mse_fm", "gain", "mae_lm", "mae_fm", "rules"]


def shoal(*words: object) -> Result:
    return CliRunner().invoke(reproduce, ["tsk", *map(str, words)], env={"SHOAL_DATA": ""})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rows in the form of the auto-mpg file, one of them with a missing cell."""
    generator = np.random.default_rng(0)
    inputs = generator.uniform(size=(60, 2))
    lines = ["mpg,weight,power,car_name"]
    for weight, power in inputs:
        lines.append(
            f"{40 - 20 * weight + 5 * power * (weight > 0.5):.3f},{weight:.4f},{power:.4f},a car"
        )
    lines.append("12.0,0.5,?,another")
    (tmp_path / "auto_mpg.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def setting(path: Path, name: str, rules: str, consequents: str, scenario: str = "S1") -> Setting:
    keys = (("scenario", scenario), ("rules", rules), ("consequents", consequents))
    return Setting("tsk", name, "iid", 3, keys, path)


# Rules.


def test_a_client_finds_as_many_rules_as_it_has_groups_of_rows() -> None:
    generator = np.random.default_rng(0)
    groups = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0], [8.0, 8.0]])
    rows = np.repeat(groups, 40, axis=0) + generator.normal(0, 0.3, (160, 2))
    rules = local_rules(rows, generator)
    assert len(rules.centres) == 4
    assert np.abs(rules.centres[:, None] - groups).sum(axis=2).min(axis=0).max() < 0.3
    assert (rules.widths >= 0.1).all()


def test_the_width_is_that_of_the_gaussian_with_the_memberships_as_values() -> None:
    rows = np.array([[1.0], [2.0], [9.0], [10.0]])
    centres = fuzzy_centres(rows, np.array([[0.0], [11.0]]))
    assert centres[:, 0] == pytest.approx([1.5, 9.5], abs=0.05)
    first = 1 / (1 + ((1 - 0.0) / (1 - 11.0)) ** 2)
    expected = [
        1.0 / np.sqrt(-2 * np.log(first)),
        2.0 / np.sqrt(-2 * np.log(1 / (1 + (2 / 9) ** 2))),
    ]
    found = widths(rows, np.array([[0.0], [11.0]]))
    assert found[0, 0] == pytest.approx(np.mean(expected))


def test_near_rules_of_different_clients_are_merged_and_those_of_one_client_are_not() -> None:
    one = Rules(np.array([[0.0], [1.0]]), np.array([[1.0], [1.0]]))
    other = Rules(np.array([[0.2], [7.0]]), np.array([[3.0], [1.0]]))
    merged = merged_rules([one, other], 1.5)
    assert sorted(merged.centres[:, 0].tolist()) == [0.1, 1.0, 7.0]
    assert merged.widths[merged.centres[:, 0] == 0.1].tolist() == [[2.0]]
    assert len(merged_rules([one, one, one], 100.0).centres) == 2
    # Complete linkage: a chain of near rules is not one rule if its ends are far apart.
    chain = [Rules(np.array([[place]]), np.ones((1, 1))) for place in (0.0, 1.0, 2.0)]
    assert len(merged_rules(chain, 1.5).centres) == 2


# The protocol.


@pytest.mark.needs("data")
def test_the_data_have_the_papers_rows(data_folder: Path) -> None:
    assert tsk.read(find(data_folder, "auto_mpg"), "auto_mpg").shape == (392, 8)
    wine = tsk.read(find(data_folder, "wine_quality_red"), "wine_quality_red")
    assert wine.shape == (1537, 12)
    np.testing.assert_allclose(wine.std(axis=0), 1.0)


def test_clients_hold_their_shares_and_four_fifths_are_for_training() -> None:
    rows = np.arange(200.0).reshape(100, 2)
    parts = tsk.dealt(rows, tsk.SHARES["S3"], np.random.default_rng(0))
    assert [len(part.training) for part in parts] == [16, 32, 32]
    assert [len(part.test) for part in parts] == [4, 8, 8]
    dealt = np.concatenate([np.concatenate(part) for part in parts])
    assert sorted(dealt[:, 0]) == rows[:, 0].tolist()


@pytest.mark.needs("data")
@pytest.mark.parametrize(
    ("name", "band"),
    [
        # A fault in rules or consequents shows in the errors of either data set.
        pytest.param("auto_mpg", 0.06, marks=pytest.mark.integration),
        ("wine_quality_red", 0.08),
    ],
)
def test_few_trials_come_near_the_papers_error(data_folder: Path, name: str, band: float) -> None:
    """Three trials of twenty, whose means vary by .04; `shoal reproduce tsk --check` runs all."""
    path = find(data_folder, name)
    paper = [tsk.run(setting(path, name, "merged", "gradient"), trial) for trial in range(3)]
    sums = [tsk.run(setting(path, name, "sums", "least_squares"), trial) for trial in range(3)]
    printed = tsk.published(setting(path, name, "merged", "gradient"))["mse_fm"].mean
    assert np.mean([row["mse_fm"] for row in paper]) == pytest.approx(printed, abs=band)
    assert np.mean([row["mse_fm"] for row in sums]) < printed + band
    for found in (paper, sums):
        assert np.mean([row["gain"] for row in found]) > 0
    assert all(3 <= row["rules"] <= 20 for row in paper)


def test_the_printed_means_are_those_of_three_clients() -> None:
    printed = tsk.published(Setting("tsk", "auto_mpg", "iid", 3, (("scenario", "S1"),)))
    assert printed["mse_fm"].mean == pytest.approx((0.168 + 0.158 + 0.138) / 3)
    assert printed["gain"].mean == pytest.approx(0.026 / 3)


def test_what_is_claimed_is_the_band_the_bound_and_a_gain() -> None:
    def verdict(
        name: str, rules: str, consequents: str, measure: str, mean: float, scenario: str = "S1"
    ) -> bool | None:
        case = setting(Path("x"), name, rules, consequents, scenario)
        return tsk.agrees(case, measure, Figure(mean), tsk.published(case)[measure])

    assert verdict("auto_mpg", "merged", "gradient", "mse_fm", 0.17) is True
    assert verdict("auto_mpg", "merged", "gradient", "mse_fm", 0.18) is False
    assert verdict("auto_mpg", "merged", "gradient", "mse_fm", 0.18, "S2") is None
    assert verdict("auto_mpg", "sums", "least_squares", "mse_fm", 0.135) is True
    assert verdict("auto_mpg", "sums", "least_squares", "mse_fm", 0.136) is False
    assert verdict("wine_quality_red", "merged", "gradient", "mse_fm", 0.66) is True
    assert verdict("wine_quality_red", "merged", "gradient", "mse_fm", 0.67) is False
    assert verdict("auto_mpg", "merged", "gradient", "gain", 0.001) is True
    assert verdict("auto_mpg", "merged", "gradient", "gain", -0.001, "S3") is False
    assert verdict("auto_mpg", "merged", "gradient", "mae_fm", 9.0) is None


# The command.


@pytest.mark.integration
def test_the_json_has_the_form_that_programs_rely_on(folder: Path) -> None:
    result = shoal("--data", folder, "--trials", 1, "--jobs", 1, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert len(rows) == len(tsk.VARIANTS)
    for row in rows:
        assert list(row) == [
            "dataset",
            "split",
            "scenario",
            "rules",
            "consequents",
            "trials",
            "metrics",
        ]
        assert list(row["metrics"]) == MEASURES
        assert row["metrics"]["mse_fm"]["published"] is not None


def test_check_ends_with_1_when_a_figure_is_outside_of_its_band(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = shoal("--data", folder, "--check", "--trials", 1)
    assert isinstance(few.exception, SettingsError)
    monkeypatch.setattr(tsk, "TRIALS", 1)
    monkeypatch.setattr(tsk, "VARIANTS", tsk.VARIANTS[:1])
    monkeypatch.setitem(vars(tsk.EXPERIMENT), "trials", 1)
    options = ("--data", folder, "--check", "--jobs", 1)
    assert shoal(*options).exit_code == 1, "these are not the paper's data"
    monkeypatch.setitem(vars(tsk.EXPERIMENT), "agrees", lambda *case: True)
    assert shoal(*options).exit_code == 0


def test_without_data_the_error_says_what_to_give(tmp_path: Path, folder: Path) -> None:
    assert "SHOAL_DATA" in str(shoal().exception)
    assert "not a data set of the paper" in str(
        shoal("--data", folder, "--dataset", "iris").exception
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    assert isinstance(shoal("--data", empty).exception, SettingsError)
    (empty / "auto_mpg.csv").write_text("mpg,weight\n1,2\nx,3\n", encoding="utf-8")
    broken = shoal("--data", empty, "--trials", 1, "--jobs", 1)
    assert isinstance(broken.exception, InvalidData)
