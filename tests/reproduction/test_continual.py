"""Section 5.2 of the FCAC paper: what was learnt in an earlier round is not forgotten."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from reproduction.experiments.continual import SCHEDULE, SUBSETS, Round, run, subsets
from reproduction.reproduce_command import reproduce
from shoal.errors import SettingsError


def test_the_eight_subsets_hold_every_point_of_the_three_gaussians_once() -> None:
    parts = subsets(0)
    assert {name: len(rows) for name, rows in parts.items()} == {
        name: 15_000 // len(names) for names in SUBSETS.values() for name in names
    }
    points = np.concatenate(list(parts.values()))
    assert len(np.unique(points, axis=0)) == 45_000
    np.testing.assert_array_equal(points.min(axis=0), [0, 0])
    np.testing.assert_array_equal(points.max(axis=0), [1, 1])


def test_each_subset_is_learnt_once() -> None:
    names_learnt = [name for shares in SCHEDULE for names in shares for name in names]
    assert sorted(names_learnt) == sorted(subsets(0, 8))


@pytest.fixture(scope="module", params=range(4))
def rounds(request: pytest.FixtureRequest) -> list[Round]:
    return run(request.param, "changed")


def test_clients_forget_no_earlier_round(rounds: list[Round]) -> None:
    for after in rounds:
        assert min(after.kept.values()) > 0.99


def test_a_client_never_loses_a_node(rounds: list[Round]) -> None:
    for place in range(2):
        sizes = [len(after.clients[place]) for after in rounds]
        assert sizes == sorted(sizes)


def test_the_server_separates_the_gaussians_of_all_rounds_so_far(rounds: list[Round]) -> None:
    for after in rounds:
        assert min(after.found.values()) > 0.99


def test_the_server_covers_the_rows_of_earlier_rounds_as_well_as_before(
    rounds: list[Round],
) -> None:
    for before, after in itertools.pairwise(rounds):
        for name, share in before.covered.items():
            assert after.covered[name] > share - 0.05, name
    assert min(rounds[-1].covered.values()) > 0.85


def test_the_server_is_best_after_the_last_round(rounds: list[Round]) -> None:
    assert rounds[-1].ari > 0.95
    assert rounds[-1].ari > rounds[-2].ari


def test_updates_of_changed_nodes_are_smaller_than_updates_of_all_nodes() -> None:
    changed = run(0, "changed", 3000)
    everything = run(0, "all", 3000)
    assert changed[0].bytes_sent == everything[0].bytes_sent
    assert all(
        a.bytes_sent < b.bytes_sent for a, b in zip(changed[1:], everything[1:], strict=True)
    )
    for ours, theirs in zip(changed, everything, strict=True):
        np.testing.assert_array_equal(ours.clients[0], theirs.clients[0])


@pytest.mark.integration
def test_the_command_measures_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "continual.png"
    result = CliRunner().invoke(
        reproduce, ["continual", "--seeds", "1", "--json", "--out", str(picture)]
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [(row["contribute"], row["round"]) for row in rows] == [
        (mode, number) for mode in ("changed", "all") for number in (1, 2, 3)
    ]
    assert rows[2]["metrics"]["ari"]["mean"] == run(0, "changed")[2].ari
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_picture_into_a_missing_folder_is_refused_before_anything_runs(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        reproduce, ["continual", "--out", str(tmp_path / "nowhere" / "picture.png")]
    )
    assert isinstance(result.exception, SettingsError)
