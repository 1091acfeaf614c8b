"""Predictions: the clusters of readings posted to /v1/predict."""

from __future__ import annotations

import io
import json
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from pyarrow import ipc, parquet

from shoal.algorithms.registry import streaming_algorithm
from shoal.config.contract import parse_contract
from shoal.errors import InvalidState
from shoal.server_node.outputs.web import create_app, predict
from shoal.server_node.outputs.web.predictions import ROWS_BYTES_MAX, ROWS_MAX
from shoal.server_node.report.lineage.clusters import Lineage
from shoal.server_node.report.status import StatusBoard
from tests.examples import examples
from tests.server_node.web_client import PROBLEM, WebClient
from tests.server_node.web_statuses import a_contract, a_snapshot, a_status, some_nodes

CONTRACT = a_contract(2)
ARRAYS = some_nodes(2, 3, 30)
SNAPSHOT = a_snapshot(CONTRACT, ARRAYS, version=9)
LEARNT = WebClient(
    create_app(StatusBoard(a_status(CONTRACT, [SNAPSHOT])), CollectorRegistry(), predict)
)
SECRET = 31.41592

NO_TARGET = {"target": None, "unit": None, "predictions": None}
"""what an answer has of predictions of a model that makes none"""


def test_before_learning_every_reading_is_in_no_cluster() -> None:
    client = WebClient(create_app(StatusBoard(a_status(CONTRACT)), CollectorRegistry(), predict))
    assert client.post("/v1/predict", json=[[20.0, 50.0], [1.0, 2.0]]).json() == {
        "model": "fcac",
        "clusters": [-1, -1],
        "identities": [-1, -1],
        "version": 0,
        **NO_TARGET,
    }


def test_no_rows_have_no_clusters() -> None:
    none = {"model": "fcac", "clusters": [], "identities": [], "version": 9, **NO_TARGET}
    assert LEARNT.post("/v1/predict", json=[]).json() == none
    assert LEARNT.post("/v1/predict", json={"rows": []}).json() == none


def test_without_nodes_every_reading_is_in_no_cluster() -> None:
    empty = {name: array[:0] for name, array in ARRAYS.items()}
    status = a_status(CONTRACT, [a_snapshot(CONTRACT, empty)])
    client = WebClient(create_app(StatusBoard(status), CollectorRegistry(), predict))
    assert client.post("/v1/predict", json=[[20.0, 50.0]]).json() == {
        "model": "fcac",
        "clusters": [-1],
        "identities": [-1],
        "version": 1,
        **NO_TARGET,
    }


def test_a_node_is_in_its_own_cluster() -> None:
    nodes = LEARNT.get("/v1/snapshot").json()["nodes"]
    answer = LEARNT.post("/v1/predict", json={"rows": [node["position"] for node in nodes]})
    numbers = [node["cluster"] for node in nodes]
    assert answer.json() == {
        "model": "fcac",
        "clusters": numbers,
        "identities": numbers,
        "version": 9,
        **NO_TARGET,
    }


def test_a_prediction_has_the_identity_of_its_cluster_whatever_its_number() -> None:
    status = a_status(CONTRACT, [SNAPSHOT])
    renumbered = Lineage(9, of_number={0: 8, 1: 2, 2: 5})
    status = replace(status, models={"fcac": replace(status.models["fcac"], lineage=renumbered)})
    client = WebClient(create_app(StatusBoard(status), CollectorRegistry(), predict))
    body = client.get("/v1/snapshot").json()
    assert {cluster["cluster"]: cluster["identity"] for cluster in body["clusters"]} == {
        0: 8,
        1: 2,
        2: 5,
    }
    answer = client.post("/v1/predict", json=[node["position"] for node in body["nodes"]]).json()
    assert answer["identities"] == [renumbered.of_number[node["cluster"]] for node in body["nodes"]]


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.tuples(st.floats(-20, 60), st.floats(0, 100)), max_size=20))
def test_readings_in_units_are_predicted_as_the_algorithm_predicts_them_in_unit_coordinates(
    readings: list[tuple[float, float]],
) -> None:
    rows = (np.array(readings).reshape(-1, 2) - [-20, 0]) / [80, 100]
    expected = streaming_algorithm("fcac").predict(ARRAYS, rows).tolist()
    assert LEARNT.post("/v1/predict", json=readings).json()["clusters"] == expected


def test_a_reading_outside_the_bounds_is_clipped_as_clients_do() -> None:
    beyond = [[1e308, -1e308], [-500, 50]]
    at_the_bound = [[60, 0], [-20, 50]]
    assert (
        LEARNT.post("/v1/predict", json=beyond).json()
        == LEARNT.post("/v1/predict", json=at_the_bound).json()
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "not JSON"),
        ("not json 31.41592", "not JSON"),
        ("[[31.41592, NaN]]", "row 0, value 1: not a finite number"),
        ("[[31.41592, -Infinity]]", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("31.41592", "no rows"),
        ('{"row": [[31.41592, 1]]}', "no rows"),
        ('{"rows": 31.41592}', "no rows"),
        ("[31.41592, 1]", "row 0 is not a list"),
        ('["31.41592"]', "row 0 is not a list"),
        ("[[1, 2], [31.41592]]", "row 1 has 1 values; this federation has 2 features"),
        ("[[31.41592, 1, 2]]", "row 0 has 3 values"),
        ('[[1, "31.41592"]]', "row 0, value 1: not a finite number"),
        ("[[1, null]]", "not a finite number"),
        ('[{"temperature": 31.41592}]', "row 0 has no 'humidity'; send temperature, humidity"),
        ('[{"temperature": 31.41592, "humidity": null}]', "row 0, value 1: not a finite number"),
        ("[[true, 31.41592]]", "row 0, value 0: not a finite number"),
        ("[[1e999, 31.41592]]", "row 0, value 0: not a finite number"),
        (f"[[1{'0' * 400}, 31.41592]]", "row 0, value 0: not a finite number"),
        ("[[[31.41592], 1]]", "row 0, value 0: not a finite number"),
        (f"[[{'9' * 5000}, 1]]", "not JSON"),
    ],
)
def test_what_cannot_be_a_reading_is_refused_without_quoting_it(body: str, message: str) -> None:
    answer = LEARNT.post("/v1/predict", content=body)
    assert answer.status_code == 422
    body: dict[str, Any] = json.loads(answer.text)
    assert set(body) == PROBLEM
    assert message in body["detail"]
    assert str(SECRET) not in answer.text
    assert "\n" not in answer.text


def test_too_many_rows_and_too_large_bodies_are_refused() -> None:
    many = LEARNT.post("/v1/predict", json=[[1.0, 1.0]] * (ROWS_MAX + 1))
    assert (many.status_code, str(ROWS_MAX) in many.json()["detail"]) == (422, True)
    large = LEARNT.post("/v1/predict", content=b" " * (ROWS_BYTES_MAX + 1))
    assert (large.status_code, "too large" in large.json()["detail"]) == (413, True)


def test_an_unknown_model_predicts_nothing() -> None:
    assert LEARNT.post("/v1/predict?model=other", json=[[1.0, 1.0]]).status_code == 404


def test_a_failing_prediction_reveals_nothing() -> None:
    def failing(*_: object) -> np.ndarray[Any, np.dtype[np.int64]]:
        raise InvalidState(f"a secret {SECRET}")

    client = WebClient(
        create_app(StatusBoard(a_status(CONTRACT, [SNAPSHOT])), CollectorRegistry(), failing)
    )
    answer = client.post("/v1/predict", json=[[1.0, 1.0]])
    assert (answer.status_code, answer.json()["detail"]) == (
        503,
        "the server cannot answer this now",
    )


PARQUET = "application/vnd.apache.parquet"
ARROW = "application/vnd.apache.arrow.stream"
TABLE = pa.table({"note": ["a", "b"], "humidity": [50, 20], "temperature": [20.0, -3.5]})


def stored(table: pa.Table, kind: str, compression: str | None = None) -> bytes:
    out = io.BytesIO()
    if kind == PARQUET:
        parquet.write_table(table, out, compression=compression or "snappy")
    else:
        with ipc.new_stream(
            out, table.schema, options=ipc.IpcWriteOptions(compression=compression)
        ) as stream:
            stream.write_table(table)
    return out.getvalue()


def test_readings_by_name_get_the_answer_of_readings_in_order() -> None:
    expected = LEARNT.post("/v1/predict", json=[[20.0, 50.0], [-3.5, 20.0]]).json()
    rows = [
        {"humidity": 50, "note": "a", "temperature": 20},
        {"humidity": 20.0, "temperature": -3.5},
    ]
    assert LEARNT.post("/v1/predict", json={"rows": rows}).json() == expected
    bodies = {
        "text/csv; charset=utf-8": b"humidity,note,temperature\r\n50,a,20\r\n\r\n20,b,-3.5\r\n",
        PARQUET: stored(TABLE, PARQUET),
        ARROW: stored(TABLE, ARROW),
    }
    for media_type, body in bodies.items():
        answer = LEARNT.post("/v1/predict", content=body, headers={"content-type": media_type})
        assert (answer.status_code, answer.json()) == (200, expected), media_type
    empty = {
        "text/csv": b"temperature,humidity\n",
        PARQUET: stored(TABLE[:0], PARQUET),
        ARROW: stored(TABLE[:0], ARROW),
    }
    for media_type, body in empty.items():
        assert (
            LEARNT.post("/v1/predict", content=body, headers={"content-type": media_type}).json()[
                "clusters"
            ]
            == []
        )


MANY = pa.table({"temperature": np.zeros(ROWS_MAX + 1), "humidity": np.zeros(ROWS_MAX + 1)})
NULL = pa.table({"temperature": [SECRET, None], "humidity": [1.0, 2.0]})
TEXTS = pa.table({"temperature": [str(SECRET)], "humidity": [1.0]})


@pytest.mark.parametrize(
    ("media_type", "body", "message"),
    [
        ("text/csv", b"", "there is no column 'temperature'"),
        ("text/csv", b"temperature\n31.41592\n", "there is no column 'humidity'"),
        (
            "text/csv",
            b"temperature,humidity\n1,2\n31.41592,\n",
            "row 1, humidity: not a finite number",
        ),
        ("text/csv", b"temperature,humidity\n31.41592\n", "row 0 has 1 values"),
        ("text/csv", b"temperature,temperature,humidity\n", "several columns 'temperature'"),
        ("text/csv", b"temperature,humidity\n\xff,1\n", "not CSV"),
        ("text/csv", b"temperature,humidity\n" + b"1,1\n" * (ROWS_MAX + 1), "send at most"),
        *((kind, b"31.41592", "not a") for kind in (PARQUET, ARROW)),
        *((kind, stored(MANY, kind), "send at most") for kind in (PARQUET, ARROW)),
        *(
            (kind, stored(NULL, kind), "row 1, temperature: not a finite number")
            for kind in (PARQUET, ARROW)
        ),
        *((kind, stored(TEXTS, kind), "must have integers or floats") for kind in (PARQUET, ARROW)),
        *((kind, stored(TABLE, kind, "zstd"), "compressed") for kind in (PARQUET, ARROW)),
    ],
)
def test_a_table_that_has_no_readings_is_refused_without_quoting_it(
    media_type: str, body: bytes, message: str
) -> None:
    answer = LEARNT.post("/v1/predict", content=body, headers={"content-type": media_type})
    assert answer.status_code == 422
    assert message in answer.json()["detail"]
    assert str(SECRET) not in answer.text


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from((PARQUET, ARROW)), st.data())
def test_a_damaged_table_is_an_answer_and_no_failure(kind: str, data: st.DataObject) -> None:
    body = bytearray(stored(TABLE, kind))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    answer = LEARNT.post("/v1/predict", content=bytes(body), headers={"content-type": kind})
    assert answer.status_code in (200, 422), answer.text


def changed_footer(table: pa.Table, before: bytes, after: bytes) -> bytes:
    body = stored(table, PARQUET)
    footer = len(body) - 8 - int.from_bytes(body[-8:-4], "little")
    return body[:footer] + body[footer:].replace(before, after, 1)


def test_a_parquet_file_whose_types_contradict_its_statistics_ends_no_server() -> None:
    # Texts declared as booleans: pyarrow ends the process where it is asked for the codec of this
    # column.
    body = changed_footer(TABLE, b"\x15\x0c", b"\x15\x00")
    answer = LEARNT.post("/v1/predict", content=body, headers={"content-type": PARQUET})
    assert answer.status_code in (200, 422), answer.text


def test_rows_of_a_parquet_file_count_as_its_groups_have_them() -> None:
    body = changed_footer(MANY, b"\x16\xa2\x9c\x01", b"\x16\x82\x80\x01")
    assert parquet.ParquetFile(pa.BufferReader(body)).metadata.num_rows < ROWS_MAX
    answer = LEARNT.post("/v1/predict", content=body, headers={"content-type": PARQUET})
    assert (answer.status_code, "send at most" in answer.text) == (422, True), answer.text


MIXED = parse_contract(
    {
        "federation": {"name": "plant"},
        "features": [
            {"name": "temperature", "low": -20, "high": 60},
            {"name": "valve", "kind": "category", "values": ["closed", "open"]},
        ],
        "privacy": {"mode": "off", "missing": "learn"},
        "models": [{"name": "fcac", "algorithm": "fcac"}],
    }
)
FOUR = {
    "position": np.array([[0.2, 0.25], [0.2, 0.75], [0.8, 0.25], [0.7, 0.75]]),
    "cluster": np.array([0, 1, 2, 3]),
}


def mixed() -> WebClient:
    arrays = some_nodes(2, 4, 4)
    arrays |= {"weight": FOUR["position"], "cluster": FOUR["cluster"]}
    snapshot = a_snapshot(MIXED, arrays, version=9)
    return WebClient(
        create_app(StatusBoard(a_status(MIXED, [snapshot])), CollectorRegistry(), predict)
    )


CLOSED_OPEN = [
    ("application/json", b'[[-4, "closed"], [-4, "open"], {"valve": "closed", "temperature": 44}]'),
    ("application/json", b"[[-4, 0], [-4, 1.1], [44, -0.2]]"),
    ("text/csv", b"valve,temperature\nclosed,-4\n open ,-4\nclosed,44\n"),
    *(
        (kind, stored(pa.table({"temperature": [-4, -4, 44], "valve": column}), kind))
        for kind in (PARQUET, ARROW)
        for column in (
            ["closed", "open", "closed"],
            pa.array(["closed", "open", "closed"]).dictionary_encode(),
        )
    ),
]


@pytest.mark.parametrize(("media_type", "body"), CLOSED_OPEN)
def test_a_category_is_posted_as_its_value_or_its_place(media_type: str, body: bytes) -> None:
    answer = mixed().post("/v1/predict", content=body, headers={"content-type": media_type})
    assert answer.json()["clusters"] == [0, 1, 2], answer.text


@pytest.mark.parametrize(
    ("media_type", "body"),
    [
        ("application/json", b'[[44, null], [null, "open"], {"temperature": -4}]'),
        ("text/csv", b"temperature,valve\n44,\n,open\n-4,\n"),
        *(
            (
                kind,
                stored(
                    pa.table({"temperature": [44, None, -4], "valve": [None, "open", None]}), kind
                ),
            )
            for kind in (PARQUET, ARROW)
        ),
    ],
)
def test_a_reading_that_lacks_values_falls_to_the_nearest_over_what_it_has(
    media_type: str, body: bytes
) -> None:
    answer = mixed().post("/v1/predict", content=body, headers={"content-type": media_type})
    assert answer.json()["clusters"] == [2, 1, 0], answer.text


@pytest.mark.parametrize(
    ("media_type", "body", "message"),
    [
        (
            "application/json",
            b'[[31.41592, "31.41592"]]',
            "row 0, value 1: not one of closed, open",
        ),
        ("application/json", b"[[31.41592, 5]]", "row 0, value 1: not one of closed, open"),
        ("application/json", b"[[31.41592, [1]]]", "row 0, value 1: not one of closed, open"),
        ("application/json", b'[["open", "open"]]', "row 0, value 0: not a finite number"),
        ("application/json", b"[[null, null]]", "row 0 has no value"),
        ("application/json", b"[{}]", "row 0 has no value"),
        (
            "text/csv",
            b"temperature,valve\n1,ajar31.41592\n",
            "row 0, valve: not one of closed, open",
        ),
        ("text/csv", b"temperature,valve\nhot,open\n", "row 0, temperature: not a finite number"),
        ("text/csv", b"humidity\n1\n", "there is no column 'temperature'"),
        (
            PARQUET,
            stored(pa.table({"valve": [[1]], "temperature": [1.0]}), PARQUET),
            "must have integers or floats",
        ),
        (
            ARROW,
            stored(
                pa.table({"valve": pa.array(["open"], pa.string_view()), "temperature": [1.0]}),
                ARROW,
            ),
            "must have",
        ),
    ],
)
def test_what_is_no_value_of_a_category_is_refused_without_quoting_it(
    media_type: str, body: bytes, message: str
) -> None:
    answer = mixed().post("/v1/predict", content=body, headers={"content-type": media_type})
    assert (answer.status_code, message in answer.json()["detail"]) == (422, True), answer.text
    assert str(SECRET) not in answer.text


@pytest.mark.parametrize("kind", [PARQUET, ARROW])
def test_a_long_text_in_every_row_of_a_category_takes_its_memory_once(kind: str) -> None:
    texts = pa.DictionaryArray.from_arrays(np.zeros(ROWS_MAX, np.int32), ["x" * 100_000])
    body = stored(pa.table({"valve": texts, "temperature": np.zeros(ROWS_MAX)}), kind)
    client = mixed()
    tracemalloc.start()
    try:
        answer = client.post("/v1/predict", content=body, headers={"content-type": kind})
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (answer.status_code, "not one of closed, open" in answer.text) == (422, True)
    assert taken < 50 * 2**20, "a text for each row would take a gigabyte"


def test_snapshots_and_clusters_have_the_values_of_a_category() -> None:
    for path in ("/v1/snapshot", "/v1/clusters"):
        assert mixed().get(path).json()["features"][1] == {
            "name": "valve",
            "unit": "",
            "digits": 3,
            "values": ["closed", "open"],
            "period": None,
        }


def test_readings_of_another_media_type_are_refused() -> None:
    answer = LEARNT.post("/v1/predict", content=b"[]", headers={"content-type": "application/xml"})
    assert (answer.status_code, "text/csv" in answer.json()["detail"]) == (415, True)
