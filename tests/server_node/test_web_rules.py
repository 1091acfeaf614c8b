"""Models that predict a feature: rules and predictions over HTTP, and what the page gets."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from shoal.algorithms.rounds.base import InitHint
from shoal.algorithms.tsk import TSK
from shoal.config.contract import Contract, parse_contract
from shoal.config.resolved import resolve
from shoal.server_node.outputs.web import create_app, predict
from shoal.server_node.outputs.web.page_renderer import PageRenderer
from shoal.server_node.report.regression import prediction_error
from shoal.server_node.report.status import StatusBoard
from shoal.simulation.rounds import run_rounds
from tests.server_node.web_client import WebClient
from tests.server_node.web_statuses import FEATURES, a_snapshot, a_status, some_nodes

MODELS = (
    {"name": "clusters", "algorithm": "fcac"},
    {
        "name": "damp",
        "algorithm": "tsk",
        "options": {"target": "humidity", "clusters": 3, "ridge": 1e-6},
    },
)
SECRET = 31.41592


def a_contract() -> Contract:
    tables: dict[str, Any] = {
        "federation": {"name": "greenhouse"},
        "features": FEATURES[:3],
        "models": MODELS,
    }
    return parse_contract({**tables, "privacy": {"mode": "off"}})


CONTRACT = a_contract()


def readings() -> NDArray[np.float64]:
    """Humidity follows the temperature, and above 20 °C the light too."""
    generator = np.random.default_rng(4)
    warm = generator.uniform(0, 40, 400)
    light = generator.uniform(0, 1000, 400)
    return np.column_stack([warm, 30 + warm / 2 + np.where(warm > 20, light / 50, 0.0), light])


def unit(table: NDArray[np.float64]) -> NDArray[np.float64]:
    low, high = (
        np.array([feature[key] for feature in FEATURES[:3]], dtype=float) for key in ("low", "high")
    )
    return (table - low) / (high - low)


def learnt() -> dict[str, NDArray[Any]]:
    hint = InitHint(
        np.zeros(3), np.ones(3), 1, features=[str(feature["name"]) for feature in FEATURES[:3]]
    )
    start = TSK.start(MODELS[1]["options"], 3, hint)  # type: ignore[arg-type]  # a table of options
    return dict(run_rounds(TSK, start, [unit(readings())], tolerance=1e-9).params)


PARAMS = learnt()
SNAPSHOT = a_snapshot(CONTRACT, PARAMS, version=4, model="damp", algorithm="tsk")
CLUSTERS = a_snapshot(CONTRACT, some_nodes(3, 2, 20), model="clusters")
STATUS = a_status(CONTRACT, [CLUSTERS, SNAPSHOT])


def client_of(status: Any) -> WebClient:
    return WebClient(create_app(StatusBoard(status), CollectorRegistry(), predict))


LEARNT = client_of(STATUS)
EMPTY = client_of(a_status(CONTRACT))


def test_predictions_are_in_the_unit_of_the_target_and_need_the_inputs_only() -> None:
    table = readings()[:5]
    answer = LEARNT.post("/v1/predict?model=damp", json={"rows": table[:, [0, 2]].tolist()}).json()
    assert list(answer) == [
        "model",
        "version",
        "clusters",
        "identities",
        "target",
        "unit",
        "predictions",
    ]
    assert (answer["target"], answer["unit"], answer["version"]) == ("humidity", "%", 4)
    error = prediction_error(SNAPSHOT, resolve(CONTRACT))
    assert error is not None
    assert np.abs(np.array(answer["predictions"]) - table[:, 1]).max() < 6 * error
    assert all(0 <= cluster < 3 for cluster in answer["clusters"])


def test_the_value_of_the_target_is_ignored_whatever_it_is() -> None:
    without = LEARNT.post("/v1/predict?model=damp", json=[[10.0, 500.0]]).json()
    for value in (None, 0.0, 99.0):
        assert LEARNT.post("/v1/predict?model=damp", json=[[10.0, value, 500.0]]).json() == without


def test_models_without_a_target_answer_as_before() -> None:
    answer = LEARNT.post("/v1/predict?model=clusters", json=[[10.0, 50.0, 500.0]]).json()
    assert answer["target"] is answer["unit"] is answer["predictions"] is None
    refused = LEARNT.post("/v1/predict?model=clusters", json=[[10.0, 500.0]])
    assert refused.status_code == 422
    refused = LEARNT.post("/v1/predict?model=clusters", json=[[10.0, None, 500.0]])
    assert refused.status_code == 422


def test_before_the_first_snapshot_there_are_no_predictions() -> None:
    answer = EMPTY.post("/v1/predict?model=damp", json=[[10.0, 500.0]]).json()
    assert answer == {
        **{"model": "damp", "clusters": [-1], "identities": [-1], "version": 0},
        **{"target": "humidity", "unit": "%", "predictions": [None]},
    }
    assert LEARNT.post("/v1/predict?model=damp", json=[]).json()["predictions"] == []


@pytest.mark.parametrize(
    "rows",
    [
        [[SECRET]],
        [[SECRET, None]],
        [[1.0, 2.0, 3.0, SECRET]],
        [["a", SECRET]],
        [None],
        [{"temperature": SECRET}],
    ],
)
def test_rows_that_cannot_be_predicted_from_are_refused_without_being_quoted(rows: Any) -> None:
    answer = LEARNT.post("/v1/predict?model=damp", json=rows)
    assert answer.status_code == 422
    assert str(SECRET) not in answer.text


def test_rules_are_sentences_and_numbers_in_units() -> None:
    for path in ("/v1/rules?model=damp", "/v1/rules"):
        answer = LEARNT.get(path)
        assert answer.status_code == 200
        found = answer.json()
        assert (found["model"], found["version"], found["target"]) == (
            "damp",
            4,
            {"name": "humidity", "unit": "%"},
        )
        assert found["conditions_found"]
        assert found["error"] == prediction_error(SNAPSHOT, resolve(CONTRACT))
        assert sum(rule["rows_share"] for rule in found["rules"]) == pytest.approx(1.0)
    warm = 10.0
    light = 500.0
    strengths = []
    values = []
    for rule in found["rules"]:
        assert rule["text"].startswith("if temperature is ")
        assert " then humidity = " in rule["text"]
        inputs = {feature["feature"]: feature for feature in rule["conditions"]}
        assert [feature["unit"] for feature in rule["conditions"]] == ["°C", "lux"]
        gaps = [
            (x - inputs[name]["centre"]) / inputs[name]["width"]
            for name, x in (("temperature", warm), ("light", light))
        ]
        strengths.append(np.exp(-0.5 * np.square(gaps).sum()))
        slopes = rule["consequent"]["coefficients"]
        values.append(
            rule["consequent"]["constant"] + slopes["temperature"] * warm + slopes["light"] * light
        )
    predicted = LEARNT.post("/v1/predict?model=damp", json=[[warm, light]]).json()["predictions"][0]
    assert np.average(values, weights=strengths) == pytest.approx(predicted, abs=1e-9)


def test_there_are_no_rules_before_a_snapshot_nor_of_other_models() -> None:
    early = EMPTY.get("/v1/rules")
    assert early.status_code == 404
    assert (early.json()["detail"], early.json()["waiting_for"]) == (
        "no rules yet",
        "1 of 2 clients have sent updates.",
    )
    other = LEARNT.get("/v1/rules?model=clusters")
    assert other.status_code == 404
    assert other.json()["detail"].startswith("model clusters predicts no feature")
    assert LEARNT.get("/v1/rules?model=none").status_code == 404


def test_the_page_gets_the_rules_of_models_that_have_some() -> None:
    clusters, damp = json.loads(PageRenderer().render(STATUS).body)["models"]
    assert clusters["clustering"]["rules"] is None
    shown = damp["clustering"]["rules"]
    assert (shown["target"], shown["total"]) == ({"name": "humidity", "unit": "%"}, 3)
    assert [rule["text"] for rule in shown["rules"]] == [
        rule["text"] for rule in LEARNT.get("/v1/rules").json()["rules"]
    ]
    assert float(shown["error_text"]) == pytest.approx(
        LEARNT.get("/v1/rules").json()["error"], rel=0.01
    )
