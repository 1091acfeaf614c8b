"""`shoal privacy report`: what a federation guarantees and what its clients have spent, as an
operator reads it."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal.cli.privacy import report
from shoal.config.settings import load_config
from shoal.errors import InvalidState
from shoal.privacy.ledger import LEDGER, Ledger, LedgersFile, Release, account
from shoal.runtime.client_folders import partition_folder
from tests.house.counting_federation import create, run
from tests.house.small_federation import updates_by_client


def run_report(file: Path, *options: str) -> Result:
    return CliRunner().invoke(report, ["--config", str(file), *options], catch_exceptions=False)


def test_the_report_holds_each_models_guarantee_the_sum_and_what_every_ledger_holds(
    tmp_path: Path,
) -> None:
    models = '[[models]]\nname = "careful"\nalgorithm = "density_tree"\ncounts_epsilon = 1'
    file = create(tmp_path, 400, models=models)
    run(file)
    found = json.loads(run_report(file, "--json").stdout)
    assert (found["mode"], found["formal"], found["epsilon"]) == ("formal", True, 5)
    assert 4.99 < found["epsilon_spent"] <= 5
    assert [
        (model["name"], model["unit"], model["mechanism"], model["epsilon"])
        for model in found["models"]
    ] == [
        ("clusters", "reading", "geometric-counts", 4),
        ("careful", "reading", "geometric-counts", 1),
    ]
    assert [(model["window_readings"], model["window_s"]) for model in found["models"]] == [
        (50, 600),
        (50, 600),
    ]
    assert found["bounds"][0] == {"name": "warm", "low": -10, "high": 50, "unit": ""}
    assert any("epsilons add up" in sentence for sentence in found["not_covered"])
    published = updates_by_client(load_config(file))
    for client in ("attic", "cellar"):
        spent = found["clients"][client]
        readings = sum(again[0].readings for again in published[client].values())
        assert [(model["model"], model["epsilon"]) for model in spent["models"]] == [
            ("careful", 1),
            ("clusters", 4),
        ]
        assert {model["places"] for model in spent["models"]} == {readings}
        assert spent["person_epsilon"] == 5 * readings


def test_the_report_in_words_says_what_a_person_with_some_readings_has_spent(
    tmp_path: Path,
) -> None:
    file = create(tmp_path, 400)
    assert "no ledger here" in run_report(file).stdout
    run(file)
    words = run_report(file, "--name", "attic", "--readings", "7").stdout
    assert "person      attic  with 7 readings: epsilon 28 at most" in words
    assert "epsilon 4 per reading" in words
    assert "cellar" not in words
    assert words.count("not covered") >= 2


def test_the_report_of_users_says_what_windows_in_a_row_cost(tmp_path: Path) -> None:
    terms = 'counts_epsilon = 4\nunit = "user"\nreadings_per_window_max = 3'
    file = create(tmp_path, 400, privacy=terms)
    run(file)
    words = run_report(file, "--name", "attic", "--windows", "2").stdout
    assert "person      attic  with" in words
    assert "2 windows in a row: epsilon 8" in words
    assert "epsilon 4 per user and window" in words
    assert "user: at most 3 readings" in words
    found = json.loads(run_report(file, "--json").stdout)
    assert (found["unit"], found["readings_per_window_max"]) == ("user", 3)
    (model,) = found["clients"]["attic"]["models"]
    assert found["clients"]["attic"]["person_epsilon"] == 4 * model["windows"] < 4 * model["places"]


def test_windows_of_readings_cost_all_readings_in_them(tmp_path: Path) -> None:
    file = create(tmp_path, 400)
    run(file)
    words = run_report(file, "--name", "attic", "--windows", "2").stdout
    assert "2 windows in a row: epsilon 400" in words
    both = CliRunner().invoke(report, ["--config", str(file), "--windows", "2", "--readings", "7"])
    assert both.exit_code == 2
    assert "give one" in both.output


def test_without_a_guarantee_the_report_has_no_epsilon(tmp_path: Path) -> None:
    file = create(tmp_path, 100, mode="off", privacy="")
    found = json.loads(run_report(file, "--json").stdout)
    assert (found["epsilon"], found["epsilon_spent"], found["clients"]) == (None, None, {})
    assert found["models"][0]["epsilon_spent"] is None


def test_the_ledgers_of_the_partitions_of_a_host_are_in_the_report(tmp_path: Path) -> None:
    file = create(tmp_path, 400)
    config = load_config(file)
    partition = partition_folder(config.client.folder, 3)
    partition.mkdir(parents=True)
    with closing(LedgersFile(partition / LEDGER, is_copy=True)) as ledgers:
        for client in ("pump", "fan"):
            owner = account(client, config.contract.federation)
            ledger = Ledger(ledgers.path, owner, "0123", shared=ledgers)
            ledger.charge([Release("clusters", 0, b"p" * 32, client.encode(), 10, 4.0)], 1.0)
        found = json.loads(run_report(file, "--json").stdout)
        assert list(found["clients"]) == ["fan", "pump"]
        assert found["clients"]["pump"]["person_epsilon"] == 40
        assert "fan" not in run_report(file, "--name", "pump").stdout
    with pytest.raises(InvalidState, match="there is no"):
        run_report(file, "--name", "valve")


def test_a_client_without_a_ledger_is_an_error_that_says_where_to_look(tmp_path: Path) -> None:
    file = create(tmp_path, 100)
    with pytest.raises(InvalidState, match="on the machine of the client"):
        run_report(file, "--name", "attic")


def test_a_damaged_ledger_is_an_error_that_says_what_to_restore(tmp_path: Path) -> None:
    file = create(tmp_path, 100)
    (tmp_path / "clients" / "attic" / "ledger.db").write_bytes(b"no database" * 1000)
    with pytest.raises(InvalidState, match="restore it from a backup"):
        run_report(file)
