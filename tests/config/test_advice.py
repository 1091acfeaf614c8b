"""Advice on a contract: poor choices are named with what to take instead, and good ones are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shoal.cli.check import check
from shoal.cli.privacy import privacy as privacy_command
from shoal.config.contract import Contract, parse_contract
from shoal.config.privacy_report import advice_on
from shoal.config.resolved import ResolvedContract, resolve
from shoal.privacy.formal import beliefs
from tests.federation_text import federation_text

FILE = federation_text(
    features=[{"name": "warm", "low": 0, "high": 1}],
    privacy={"mode": "formal", "epsilon_per_reading": 4},
)


def agreed(
    algorithm: str, d: int = 2, others: tuple[str, ...] = (), **privacy: Any
) -> ResolvedContract:
    names = ("first", *(f"other{number}" for number in range(len(others))))
    options = {"kmeans": {"clusters": 3}}
    models = [
        {"name": name, "algorithm": choice, "options": options.get(choice, {})}
        for name, choice in zip(names, (algorithm, *others), strict=True)
    ]
    contract = parse_contract(
        {
            "federation": {"name": "plant"},
            "features": [{"name": f"f{n}", "low": 0, "high": 1} for n in range(d)],
            "privacy": {"mode": "formal", **privacy},
            "models": models,
        }
    )
    return resolve(contract)


@pytest.mark.parametrize("algorithm", ["fcac", "cluster_tree", "kmeans"])
def test_noisy_rows_at_a_small_epsilon_are_poor_and_counts_are_named_instead(
    algorithm: str,
) -> None:
    for d, named in ((2, "density_tree, or cluster_tree_from_counts"), (4, "density_tree, which")):
        (found,) = advice_on(agreed(algorithm, d, epsilon_per_reading=32))
        assert found.model == "first"
        assert named in found.text
        assert "epsilon 32" in found.text
    assert advice_on(agreed(algorithm, epsilon_per_reading=100)) == []


def test_states_are_advised_against_where_noise_hides_them_in_modes_without_a_guarantee_too() -> (
    None
):
    (formal,) = advice_on(agreed("states", 3, epsilon_per_reading=12))
    (paper,) = advice_on(agreed("states", 3, mode="paper", epsilon_nominal_per_feature=4))
    assert "epsilon 4 for each feature" in formal.text == paper.text
    assert advice_on(agreed("states", 3, epsilon_per_reading=39)) == []
    assert advice_on(agreed("states", 3, mode="off")) == []
    assert advice_on(agreed("fcac", 3, mode="paper", epsilon_nominal_per_feature=4)) == []


@pytest.mark.parametrize("algorithm", ["density_tree", "cluster_tree_from_counts"])
def test_counts_at_an_epsilon_of_four_in_windows_of_400_are_a_good_choice(algorithm: str) -> None:
    for d in (1, 2, 3):
        assert advice_on(agreed(algorithm, d, counts_epsilon=4)) == []


def test_windows_that_are_small_for_the_readings_of_a_user_are_poor() -> None:
    def users(readings: int, algorithm: str = "density_tree", **more: Any) -> Contract:
        return agreed(
            algorithm, counts_epsilon=4, unit="user", readings_per_window_max=readings, **more
        )

    assert advice_on(users(4)) == []
    assert advice_on(users(5, window_readings=500)) == []
    (found,) = advice_on(users(5))
    assert "window_readings of 500 and more" in found.text
    assert advice_on(users(4, "cluster_tree_from_counts")) == []
    (found,) = advice_on(users(5, "cluster_tree_from_counts", window_readings=500))
    assert "an epsilon of 5 and more" in found.text


def test_a_grid_at_a_small_epsilon_is_poor() -> None:
    (found,) = advice_on(agreed("cluster_tree_from_counts", counts_epsilon=0.5))
    assert "an epsilon of 1 and more" in found.text
    assert advice_on(agreed("cluster_tree_from_counts", counts_epsilon=1)) == []
    (found,) = advice_on(agreed("kmeans_from_counts", d=8, counts_epsilon=1))
    assert "an epsilon of 2 and more" in found.text
    assert advice_on(agreed("kmeans_from_counts", d=8, counts_epsilon=2)) == []
    assert advice_on(agreed("density_tree", counts_epsilon=0.5)) == []


def test_states_that_would_take_very_many_readings_are_told_how_many() -> None:
    assert advice_on(agreed("states_from_counts", d=2, counts_epsilon=4)) == []
    (found,) = advice_on(agreed("states_from_counts", d=2, counts_epsilon=0.5))
    assert "about 13,100,000 readings" in found.text
    assert "fewer features" in found.text
    assert (
        advice_on(agreed("states_from_counts", d=2, counts_epsilon=1, window_readings=10_000)) == []
    )


def test_small_windows_are_poor() -> None:
    (found,) = advice_on(agreed("density_tree", counts_epsilon=4, window_readings=50))
    assert "windows of 50 readings" in found.text


def test_rows_that_give_away_what_counts_protect_are_named() -> None:
    contract = agreed("fcac", others=("density_tree",), epsilon_per_reading=200, counts_epsilon=4)
    (found,) = advice_on(contract)
    assert found.model == "first"
    assert "the counts of other0" in found.text


def test_without_a_guarantee_there_is_no_advice() -> None:
    contract = parse_contract(
        {
            "federation": {"name": "plant"},
            "features": [{"name": "warm", "low": 0, "high": 1}],
            "privacy": {"mode": "paper", "epsilon_nominal_per_feature": 3},
            "models": [{"name": "first", "algorithm": "fcac"}],
        }
    )
    assert advice_on(resolve(contract)) == []


def test_shoal_check_prints_the_advice(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(FILE, encoding="utf-8")
    plain = CliRunner().invoke(check, [str(file)])
    assert plain.exit_code == 0
    assert "advice      clusters  noisy rows at epsilon 4" in plain.stdout
    found = json.loads(CliRunner().invoke(check, [str(file), "--json"]).stdout)["advice"]
    assert [advice["model"] for advice in found] == ["clusters"]


@pytest.mark.parametrize(
    ("given", "words"),
    [("", "1,440 readings a day spends epsilon 5,760"), ("1", "1 reading a day")],
)
def test_shoal_check_says_what_a_device_spends_in_a_day(
    tmp_path: Path, given: str, words: str
) -> None:
    file = tmp_path / "plant.toml"
    file.write_text(
        FILE + (f"[client]\nreadings_per_day = {given}\n" if given else ""), encoding="utf-8"
    )
    day = json.loads(
        CliRunner().invoke(check, [str(file), "--json"], catch_exceptions=False).stdout
    )["day"]
    assert day["epsilon"] == 4 * int(given or 1440)
    assert words in day["text"]
    assert day["text"].endswith(beliefs(day["epsilon"]))
    assert day["text"] in CliRunner().invoke(check, [str(file)], catch_exceptions=False).stdout


COUNTED = {
    "density_tree": "by leaf of the tree of cuts",
    "cluster_tree_from_counts": "by cell of a grid",
    "states_from_counts": "pairs of blocks of block_readings successive readings",
    "kmeans_from_counts": "by leaf of the tree of cuts",
}


def test_check_and_report_say_what_each_model_counts(tmp_path: Path) -> None:
    file = tmp_path / "plant.toml"
    text = FILE.replace("epsilon_per_reading = 4", "counts_epsilon = 4")
    head, _, _ = text.partition("[[models]]")
    models = [f'[[models]]\nname = "{name}"\nalgorithm = "{name}"\n' for name in COUNTED]
    text = head + "".join(models)
    text += "[models.options]\nclusters = 3\n"
    file.write_text(text, encoding="utf-8")
    checked = CliRunner().invoke(check, [str(file)], catch_exceptions=False).stdout
    report = ["report", "--config", str(file)]
    reported = CliRunner().invoke(privacy_command, report, catch_exceptions=False).stdout
    for name, words in COUNTED.items():
        for output in (checked, reported):
            (line,) = (
                line for line in output.splitlines() if line.startswith(f"counts      {name} ")
            )
            assert words in line


USERS = FILE.replace(
    "epsilon_per_reading = 4", 'counts_epsilon = 4\nunit = "user"\nreadings_per_window_max = 1'
).replace('"fcac"', '"density_tree"')


@pytest.mark.parametrize(
    ("more", "epsilon", "windows", "advised", "words"),
    [
        ("", None, None, False, "has no limit: epsilon 4 in each window, 210,000 in a year"),
        (
            "epsilon_max = 8",
            8.0,
            2,
            True,
            "A user of one client spends epsilon 8 at most, in 2 windows",
        ),
        ("epsilon_max = 11", 8.0, 2, True, "in 2 windows: then its client counts nothing more"),
        ("epsilon_max = 12", 12.0, 3, False, "Advised against: where users are people take"),
        (
            "epsilon_max = 4\nperson_readings = 9",
            4.0,
            1,
            True,
            "A user of one client with 9 readings at most",
        ),
    ],
)
def test_shoal_check_says_what_a_user_spends_in_all_and_advises_against_too_much(
    tmp_path: Path, more: str, epsilon: float | None, windows: int | None, advised: bool, words: str
) -> None:
    file = tmp_path / "plant.toml"
    file.write_text(f"{USERS}[client]\n{more}\n", encoding="utf-8")
    user = json.loads(
        CliRunner().invoke(check, [str(file), "--json"], catch_exceptions=False).stdout
    )["user"]
    assert [user[name] for name in ("epsilon", "windows", "advised")] == [epsilon, windows, advised]
    assert words in user["text"]
    assert ("Advised against" in user["text"]) != advised
    assert ("epsilon_max = 8, which is for 2" in user["text"]) != advised
    assert epsilon is None or beliefs(epsilon) in user["text"]
    assert user["text"] in CliRunner().invoke(check, [str(file)], catch_exceptions=False).stdout


def test_of_readings_there_is_nothing_to_say_of_users(tmp_path: Path) -> None:
    file = tmp_path / "plant.toml"
    file.write_text(FILE, encoding="utf-8")
    found = CliRunner().invoke(check, [str(file), "--json"], catch_exceptions=False)
    assert json.loads(found.stdout)["user"] is None


HIDDEN = FILE.replace(
    "epsilon_per_reading = 4", "counts_epsilon = 4\nhide_presence = true\nwindow_s = 3600\n{}"
).replace('"fcac"', '"density_tree"')


@pytest.mark.parametrize(
    ("more", "charged"), [("", "38,400"), ('unit = "user"\nreadings_per_window_max = 2', "96")]
)
def test_shoal_check_says_what_hidden_presence_costs(
    tmp_path: Path, more: str, charged: str
) -> None:
    file = tmp_path / "plant.toml"
    file.write_text(HIDDEN.format(more) + "[client]\nreadings_per_day = 4800\n", encoding="utf-8")
    text = CliRunner().invoke(check, [str(file)], catch_exceptions=False).stdout
    assert "24 a day" in text
    assert f"charges each as full: epsilon {charged}" in text
    # 200 readings of an hour at random in 400 places: 400 (1 - (399 / 400)^200) = 157.5 are
    # counted.
    assert "4,800 readings a day" in text
    assert "21.2 % share a place" in text
    day = json.loads(
        CliRunner().invoke(check, [str(file), "--json"], catch_exceptions=False).stdout
    )["day"]
    assert ("in 24 windows" in day["text"]) == bool(more), "windows do not close with readings"


MASKED = """
[federation]
name = "plant"
{features}
[privacy]
mode = "masked"
unit = "client"
epsilon = 1
window_s = {window_s}
{terms}
[[privacy.helpers]]
name = "h1"
key = "{key}"
[[models]]
name = "clusters"
algorithm = "{algorithm}"
"""


def needs(
    tmp_path: Path,
    d: int,
    *options: str,
    terms: str = "",
    algorithm: str = "density_tree",
    window_s: int = 86_400,
) -> tuple[str, Any]:
    file = tmp_path / "masked.toml"
    features = "\n".join(f'[[features]]\nname = "f{n}"\nlow = 0\nhigh = 1' for n in range(d))
    named = {
        "features": features,
        "terms": terms,
        "key": "ab" * 64,
        "algorithm": algorithm,
        "window_s": window_s,
    }
    file.write_text(MASKED.format(**named), encoding="utf-8")
    text, found = (
        CliRunner().invoke(check, [str(file), *options, *as_json], catch_exceptions=False).stdout
        for as_json in ([], ["--json"])
    )
    return text, json.loads(found)["needs"]


def test_shoal_check_says_what_masked_counts_take_and_advises_against_few_clients(
    tmp_path: Path,
) -> None:
    text, found = needs(tmp_path, 8)
    assert [(advice["clients"], advice["advised"]) for advice in found] == [
        (50, False),
        (100, False),
        (200, True),
        (500, True),
        (1000, True),
    ]
    windows = [advice["windows"] for advice in found]
    # The noise counts as the root of the windows, and clients count whole: half of them need four
    # times the windows.
    assert windows[1] == pytest.approx(4 * windows[2], abs=4)
    assert 5 < windows[2] < 20, (
        "the table of the benchmark has .80 after 5 windows and .99 after 20"
    )
    assert "50 clients" in text
    assert "take 200 clients or more" in text
    _, two = needs(tmp_path, 2)
    assert [advice["advised"] for advice in two] == [False, True, True, True, True]
    assert all(few["windows"] <= many["windows"] for few, many in zip(two, found, strict=True))
    _, (own,) = needs(tmp_path, 2, "--clients", "60")
    assert (own["clients"], own["advised"]) == (60, False)
    assert own["days"] == pytest.approx(own["windows"] * 400 / 1440)


def test_the_promise_for_the_whole_span_of_masked_counts_stands_before_the_cost_of_a_window(
    tmp_path: Path,
) -> None:
    terms = "budget_days = 30\nbudget_epsilon = 4"
    text, _ = needs(tmp_path, 2, terms=terms)
    lines = text.splitlines()
    (promise,) = (line for line in lines if line.startswith("promise"))
    (model,) = (line for line in lines if line.startswith("model "))
    assert lines.index(promise) < lines.index(model)
    assert "any 30 days" in promise
    assert "at most epsilon 4 in all" in promise
    assert "noisy rows" not in text, "there are none"
    assert "not the number of clients" in text
    report = ["report", "--config", str(tmp_path / "masked.toml")]
    told = CliRunner().invoke(privacy_command, report, catch_exceptions=False).stdout
    assert "noisy rows" not in told


def test_short_windows_take_more_of_them_and_a_budget_may_not_allow_them(tmp_path: Path) -> None:
    _, full = needs(tmp_path, 4, "--clients", "150")
    text, short = needs(tmp_path, 4, "--clients", "150", window_s=12_000)
    assert short[0]["windows"] == pytest.approx(4 * full[0]["windows"], abs=4)
    assert "with about 200 readings" in text
    text, _ = needs(tmp_path, 4, "--clients", "150", terms="budget_days = 30")
    assert "more than its budget allows" in text
    assert needs(tmp_path, 4, algorithm="gmm_from_counts")[1] == [], (
        "measured with density_tree alone"
    )
