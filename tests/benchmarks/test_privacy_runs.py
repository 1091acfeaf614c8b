"""The benchmark of private clustering runs in its quick form, and its measures are right. No test
asserts a time."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

if find_spec("sklearn") is None:
    reason = "sklearn: the peers come with the extra 'bench'"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)

from benchmarks.privacy import __main__ as privacy
from benchmarks.privacy import density_tree, masked, users
from benchmarks.privacy.counting import WINDOW, windows_of
from benchmarks.privacy.families import CLIENTS, SKEWED_CLUSTERS, families
from benchmarks.privacy.goals import GOALS, judged
from benchmarks.privacy.learners import (
    FCAC_ROWS,
    K_MEANS_ROWS,
    ON_A_GRID,
    OURS,
    Learner,
    noisy_rows,
    running,
)
from benchmarks.privacy.page import docs_table, streams_table
from shoal.kernels.arrays import Ints
from tests.benchmarks.test_benchmarks_run import HERE, is_spread, run


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run("privacy", tmp_path_factory.mktemp("privacy"))


@pytest.mark.integration
def test_every_learner_is_measured_on_every_stream_that_it_takes_with_and_without_noise(
    quick: dict[str, Any],
) -> None:
    found = {(cell["stream"], cell["learner"], cell["epsilon"]) for cell in quick["cells"]}
    assert found == {
        (stream, learner.name, epsilon)
        for stream in ("blobs d=2", "moons d=2")
        for learner in (OURS, ON_A_GRID, FCAC_ROWS, K_MEANS_ROWS)
        if learner.takes(families(2000, 2000)[stream](1))
        for epsilon in (4.0, None)
    }
    for cell in quick["cells"]:
        assert -1.0 <= cell["ari"]["low"] <= cell["ari"]["mean"] <= cell["ari"]["high"] <= 1.0
        assert len(cell["clusters"]) == cell["seeds"] == 1


@pytest.mark.integration
def test_private_counts_find_what_noise_on_each_reading_hides(quick: dict[str, Any]) -> None:
    at_4 = {
        cell["learner"]: cell["ari"]["mean"]
        for cell in quick["cells"]
        if cell["stream"] == "blobs d=2" and cell["epsilon"] == 4.0
    }
    assert at_4["density_tree"] > at_4["FCAC on noisy rows"] + 0.3
    assert at_4["density_tree"] > at_4["k-means on noisy rows, given K"] + 0.2


@pytest.mark.integration
def test_cost_is_measured_for_a_client(quick: dict[str, Any]) -> None:
    for cost in quick["cost"]:
        for name in ("window_ms", "compiled_window_ms", "grow_ms", "compiled_grow_ms"):
            assert is_spread(cost[name])
        assert cost["leaves"] >= 2
        assert 0 < cost["compressed_bytes_per_reading"] < cost["bytes_per_reading"]


def test_a_goal_is_reached_from_its_figure_on() -> None:
    goal = GOALS[0]
    cell = {
        "stream": f"{goal.family} d=2",
        "family": goal.family,
        "learner": goal.learner,
        "epsilon": goal.epsilon,
        "d": 2,
    }
    for ari, reached in ((goal.least, True), (goal.least - 0.001, False)):
        assert [goal["reached"] for goal in judged([{**cell, "ari": {"mean": ari}}])] == [reached]
    assert judged([{**cell, "ari": {"mean": 1.0}, "learner": "k-means"}]) == []


def test_the_page_for_operators_has_the_figures_of_the_result_file() -> None:
    result = json.loads(
        (HERE / "benchmarks" / "results" / "privacy.json").read_text(encoding="utf-8")
    )
    page = (HERE / "docs" / "explanation" / "privacy.md").read_text(encoding="utf-8")
    assert docs_table(result["cells"]) in page
    assert result["seeds"] == list(privacy.REPORTING)


def test_the_page_for_operators_shows_every_real_stream_of_the_result_file() -> None:
    result = json.loads(
        (HERE / "benchmarks" / "results" / "density_tree.json").read_text(encoding="utf-8")
    )
    page = (HERE / "docs" / "explanation" / "privacy.md").read_text(encoding="utf-8")
    assert streams_table(result["cells"]) in page
    assert result["seeds"] == list(density_tree.REPORTING)


def test_mixtures_and_coarse_values_are_measured_in_the_quick_form(tmp_path: Path) -> None:
    ran = CliRunner().invoke(
        density_tree.main, ["--quick", "--out", str(tmp_path)], env={"SHOAL_DATA": None}
    )
    assert ran.exit_code == 0, ran.output
    cells = json.loads((tmp_path / "density_tree.json").read_text(encoding="utf-8"))["cells"]
    assert [cell["part"] for cell in cells] == ["mixtures", "coarse", "coarse"]
    assert "## coarse" in (tmp_path / "density_tree.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("benchmark", [privacy, density_tree])
def test_seeds_of_published_figures_are_none_on_which_anything_was_chosen(benchmark: Any) -> None:
    assert not set(benchmark.CHOOSING) & set(benchmark.REPORTING)


@pytest.mark.parametrize("name", families(2000, 2000))
def test_streams_are_a_function_of_their_seed_and_lie_in_the_declared_range(name: str) -> None:
    make = families(2000, 2000)[name]
    first = make(1)
    again = make(1)
    other = make(2)
    np.testing.assert_array_equal(first.rows, again.rows)
    assert not np.array_equal(first.rows, other.rows)
    assert first.rows.min() >= 0.0
    assert first.rows.max() <= 1.0
    assert len(first.rows) == len(first.truth) == len(first.owner)
    if name.startswith("skewed"):
        assert all(
            len(np.unique(first.truth[first.owner == client])) <= SKEWED_CLUSTERS
            for client in range(CLIENTS)
        )


def test_windows_hold_the_readings_of_one_client_and_each_reading_once() -> None:
    stream = families(50_000, 2000)["blobs d=2"](1)
    seen: list[int] = []
    for client, _, rows in windows_of(stream):
        assert set(stream.owner[rows].tolist()) == {int(client.removeprefix("client-"))}
        assert len(rows) <= WINDOW
        seen += rows.tolist()
    assert sorted(seen) == list(range(50_000))


def test_noisy_rows_have_the_noise_of_their_epsilon() -> None:
    stream = families(2000, 2000)["blobs d=8"](1)
    for epsilon in (4.0, 8.0):
        off = np.abs(noisy_rows(stream, epsilon, 1) - stream.rows).mean()
        assert off == pytest.approx(8 / epsilon, rel=0.1)
    np.testing.assert_array_equal(noisy_rows(stream, None, 1), stream.rows)


def test_a_stream_without_classes_is_not_given_to_a_learner_that_is_told_their_number() -> None:
    stream = families(2000, 2000)["blobs d=2"](1)
    assert K_MEANS_ROWS.takes(stream)
    assert not K_MEANS_ROWS.takes(replace(stream, known=False))


def test_the_rows_that_are_not_judged_do_not_count() -> None:
    stream = replace(families(2000, 2000)["blobs d=2"](1), judged_from=1000)

    def half_right(given: Any, epsilon: float | None, seed: int) -> Ints:
        return np.where(np.arange(2000) < 1000, 0, given.truth)

    learner = Learner("half", half_right, "right from the middle on", 1)
    (cell,) = privacy.cells_of([stream], [1], [learner], [None])
    assert cell["ari"]["mean"] == 1.0


def test_central_k_means_runs_where_diffprivlib_is_installed() -> None:
    python = os.environ.get("SHOAL_DIFFPRIVLIB")
    if not python:
        pytest.skip("set SHOAL_DIFFPRIVLIB to a Python that has diffprivlib")
    stream = families(2000, 2000)["blobs d=2"](1)
    labels = running(Path(python)).label(stream, 4.0, 1)
    assert len(labels) == len(stream.rows)
    assert 2 <= len(np.unique(labels)) <= stream.k_told


@pytest.mark.integration
def test_masked_sums_and_their_cost_are_measured(tmp_path: Path) -> None:
    CliRunner().invoke(masked.main, ["--quick", "--out", str(tmp_path)], catch_exceptions=False)
    found = json.loads((tmp_path / "privacy_masked.json").read_text(encoding="utf-8"))
    assert {(cell["scheme"], cell["clients"], cell["d"]) for cell in found["cells"]} == {
        (scheme.name, 20, 2) for scheme in (masked.SUMS[1], *masked.OTHERS, masked.SUMS[-1])
    }
    message, client, *_ = found["cost"]
    assert 0 < message["figure"] <= message["goal"]
    assert client["figure"] > 0
    assert "| clients |" in (tmp_path / "privacy_masked.md").read_text(encoding="utf-8")


def test_a_goal_of_masked_sums_is_reached_from_its_figure_on() -> None:
    goal = masked.GOALS[0]
    cell = {
        "scheme": goal.scheme,
        "clients": goal.clients,
        "d": 8,
        "ari": {5: [0.0], goal.windows: [0.9, 1.0]},
    }
    (found,) = masked.judged([cell])
    assert (found["ari"], found["reached"]) == (0.95, True)
    assert not masked.judged([cell | {"ari": {goal.windows: [0.9, 0.99]}}])[0]["reached"]
    assert masked.judged([cell | {"d": 16}]) == masked.judged([cell | {"clients": 50}]) == []


def test_clients_of_a_stream_see_the_clusters_they_are_to_see_and_some_do_not_answer() -> None:
    lost, sees = (scheme._replace(clients=40, window=50) for scheme in masked.OTHERS)
    rows, owner = masked.Clusters(1, 8, 6, lost).round()
    assert rows.shape == (len(owner), 8)
    assert set(np.bincount(owner).tolist()) <= {0, 50}
    assert 25 <= len(np.unique(owner)) < 40
    stream = masked.Clusters(1, 8, 6, sees)
    rows, owner = stream.round()
    nearest = np.argmin(((rows[:, None] - stream._centres) ** 2).sum(axis=2), axis=1)
    assert {len(np.unique(nearest[owner == client])) for client in range(40)} == {2}


def test_counts_of_users_are_measured_with_clients_that_do_not_all_begin_at_once(
    tmp_path: Path,
) -> None:
    assert CliRunner().invoke(users.main, ["--quick", "--out", str(tmp_path)]).exit_code == 0
    (cell,) = json.loads((tmp_path / "privacy_users.json").read_text(encoding="utf-8"))["cells"]
    assert cell["clients"] * cell["users"] * cell["windows"] == cell["counted"]
    assert len(cell["ari"]) == 1
    assert "| counted readings |" in (tmp_path / "privacy_users.md").read_text(encoding="utf-8")
    windows = users.windows_of(users.Case(2, 3, 20, 2, 400))
    assert [window.closes for window in windows] == sorted(window.closes for window in windows)
    first = {window.client: window.closes for window in windows if window.number == 0}
    assert len(set(first.values())) > 1
    assert all(1 / 8 <= closes < 1 for closes in first.values())
