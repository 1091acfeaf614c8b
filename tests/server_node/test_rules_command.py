"""`shoal rules` over a federation that predicts a feature, and what `shoal check` says of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from shoal.cli.check import check
from shoal.client_nodes.bootstrap import open_client
from shoal.config.resolved import resolve
from shoal.config.settings import load_config
from shoal.errors import SettingsError
from shoal.onebox.federation import OneBox
from shoal.runtime.service import resumed
from shoal.server_node.models.rounds import known_clusters
from shoal.server_node.outputs.rules_command import rules
from shoal.server_node.report.regression import prediction_error
from tests.house.rounds_federation import create_rounds_federation
from tests.house.small_federation import CLIENTS, clock

MODELS = """
[[models]]
name = "heaps"
algorithm = "kmeans"
options = { clusters = 3 }
[[models]]
name = "damp"
algorithm = "tsk"
options = { target = "damp", clusters = 3 }
[models.rounds]
quorum = 1
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = create_rounds_federation(tmp_path_factory.mktemp("federation"), MODELS)
    config = load_config(file)
    for client in CLIENTS:
        with resumed(open_client(config, client, clock=clock)) as node:
            while node.step():
                pass
    with OneBox(config, CLIENTS, clock) as box:
        box.run_until_idle()
        error = box.server.metrics.registry.get_sample_value(
            "shoal_prediction_error", {"model": "damp"}
        )
        assert error is not None
        assert 0 < error < 100
        assert (
            box.server.metrics.registry.get_sample_value(
                "shoal_prediction_error", {"model": "heaps"}
            )
            is None
        )
    return file


def run(*words: object) -> Result:
    return CliRunner().invoke(rules, [*map(str, words)])


def test_the_rules_are_printed_as_sentences_with_the_units_below(ended: Path) -> None:
    shown = run("--config", ended)
    assert shown.exit_code == 0, shown.output
    *sentences, units = shown.stdout.splitlines()
    assert len(sentences) == 3
    for sentence in sentences:
        assert sentence.startswith("if warm is ")
        assert " then damp = " in sentence
        assert sentence.endswith(" % of the rows)") or sentence.endswith("% of the rows)")
    assert units.startswith("warm in °C, damp in %; ")


def test_with_json_the_numbers_come_in_full(ended: Path) -> None:
    found = json.loads(run("--config", ended, "--model", "damp", "--json").stdout)
    assert found["target"] == {"name": "damp", "unit": "%"}
    assert found["conditions_found"]
    assert [list(rule) for rule in found["rules"]] == [
        ["cluster", "identity", "rows_share", "text", "conditions", "consequent"]
    ] * 3


def test_a_model_without_rules_and_one_without_a_snapshot_are_errors_with_advice(
    ended: Path, tmp_path: Path
) -> None:
    assert "predicts no feature; these do: damp" in str(
        run("--config", ended, "--model", "heaps").exception
    )
    fresh = create_rounds_federation(tmp_path, MODELS)
    early = run("--config", fresh)
    assert isinstance(early.exception, SettingsError)
    assert "run `shoal server` and clients first" in str(early.exception)
    text = fresh.read_text(encoding="utf-8")
    fresh.write_text(
        text.replace(
            'algorithm = "tsk"\noptions = { target = "damp", ', 'algorithm = "fcm"\noptions = { '
        )
    )
    assert 'add one with algorithm = "tsk"' in str(run("--config", fresh).exception)


def test_shoal_check_names_the_target_and_refuses_one_that_is_no_feature(
    ended: Path, tmp_path: Path
) -> None:
    shown = CliRunner().invoke(check, [str(ended)])
    assert "\npredicts    damp  " in shown.stdout
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(
        ended.read_text(encoding="utf-8").replace('target = "damp"', 'target = "light"'), "utf-8"
    )
    refused = CliRunner().invoke(check, [str(wrong)])
    assert "models.damp: target = 'light' is no feature" in str(refused.exception)
    assert str(refused.exception).endswith("warm, damp")


def test_one_feature_cannot_be_predicted_from_others(tmp_path: Path) -> None:
    file = tmp_path / "alone.toml"
    file.write_text(
        '[federation]\nname = "plant"\n[[features]]\nname = "t"\nlow = 0\nhigh = 1\n[privacy]\nmode'
        ' = "off"\n[[models]]\nname = "t"\nalgorithm = "tsk"\noptions = { clusters = 2 }\n'
    )
    assert "there is only one" in str(CliRunner().invoke(check, [str(file)]).exception)


def test_rules_can_start_from_the_clusters_of_another_model_and_stay_there(tmp_path: Path) -> None:
    models = """
[[models]]
name = "clusters"
algorithm = "fcac"
[[models]]
name = "damp"
algorithm = "tsk"
source = "clusters"
options = { target = "damp", condition_rounds = 0 }
[models.rounds]
quorum = 1
"""
    config = load_config(create_rounds_federation(tmp_path, models))
    for client in CLIENTS:
        with resumed(open_client(config, client, clock=clock)) as node:
            while node.step():
                pass
    with OneBox(config, CLIENTS, clock) as box:
        served = box.server.models()
        while (first := served["damp"].snapshot) is None:
            assert box.step()
        centres, _ = known_clusters(served["clusters"])
        np.testing.assert_array_equal(first.arrays["centre"], centres)
        box.run_until_idle()
        newest = served["damp"].snapshot
        assert newest is not None
        # warm, the input, stays where the clusters were; damp, the target, is the mean of its
        # values there.
        np.testing.assert_allclose(newest.arrays["centre"][:, 0], centres[:, 0], atol=1e-12)
        error = prediction_error(newest, resolve(config.contract))
        assert error is not None
        assert 0 < error < 30
