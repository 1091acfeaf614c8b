"""The server's responses over HTTP, before and after the first snapshot."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from shoal.config.privacy_report import privacy_report
from shoal.config.resolved import ResolvedContract
from shoal.protocol.messages import Snapshot
from shoal.server_node.outputs import web
from shoal.server_node.outputs.web import create_app, predict
from shoal.server_node.outputs.web.page import FILES
from shoal.server_node.outputs.web.responses import HEADERS
from shoal.server_node.report.status import ServerStatus, StatusBoard
from tests.server_node.rounds_harness import contract_with
from tests.server_node.web_client import PROBLEM, WebClient
from tests.server_node.web_statuses import a_contract, a_snapshot, a_status, some_nodes


def client_of(status: ServerStatus, registry: CollectorRegistry | None = None) -> WebClient:
    return WebClient(create_app(StatusBoard(status), registry or CollectorRegistry(), predict))


def test_before_the_first_snapshot_every_path_responds_with_what_is_missing() -> None:
    contract = a_contract()
    client = client_of(a_status(contract))
    assert client.get("/livez").status_code == 200
    missing = client.get("/v1/snapshot")
    assert missing.status_code == 404
    assert missing.headers["content-type"] == "application/problem+json"
    assert missing.json() == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "no clustering yet",
        "waiting_for": "1 of 2 clients have sent updates.",
    }
    status = client.get("/v1/status").json()
    assert status["models"][0]["clustering"] is None
    assert status["models"][0]["waiting_for"] == "1 of 2 clients have sent updates."
    assert client.get("/metrics").text == ""


def test_not_ready_while_the_log_or_the_disk_fails_and_no_path_is_shown() -> None:
    failing = client_of(a_status(a_contract(), ready=False, unavailable=True)).get("/readyz")
    assert failing.status_code == 503
    assert "cannot be read or written" in failing.text
    assert "/" not in failing.text


def test_ready_only_after_the_log_has_been_read() -> None:
    contract = a_contract()
    late = client_of(a_status(contract, ready=False, lag_records=7)).get("/readyz")
    assert late.status_code == 503
    assert late.text.count("\n") == 1
    by_log = client_of(a_status(contract, ready=False, lag_records=None)).get("/readyz")
    assert by_log.status_code == 503
    assert late.text == by_log.text.replace("\n", ", 7 updates are left\n")
    ready = client_of(a_status(contract)).get("/readyz")
    assert (ready.status_code, ready.text) == (200, "ready\n")


def test_not_ready_while_a_step_hangs_as_it_does_on_a_disk_that_does_not_answer() -> None:
    now = [0.0]
    board = StatusBoard(a_status(a_contract()), stale_s=120.0, clock=lambda: now[0])
    client = WebClient(create_app(board, CollectorRegistry(), predict))
    now[0] = 119.0
    assert client.get("/readyz").status_code == 200
    now[0] = 121.0
    late = client.get("/readyz")
    assert (late.status_code, "for 120 s" in late.text) == (503, True)
    board.post(board.status)
    assert client.get("/readyz").status_code == 200


def test_a_server_that_is_not_ready_is_alive() -> None:
    assert client_of(a_status(a_contract(), ready=False)).get("/livez").status_code == 200


@pytest.mark.parametrize("accept", ["", "text/plain", "application/openmetrics-text;version=1.0.0"])
def test_metrics_are_those_of_the_registry_in_the_requested_format(accept: str) -> None:
    registry = CollectorRegistry()
    Counter("shoal_updates", "Updates", ["result"], registry=registry).labels("absorbed").inc(5)
    answer = client_of(a_status(a_contract()), registry).get("/metrics", headers={"accept": accept})
    assert 'shoal_updates_total{result="absorbed"} 5.0' in answer.text
    assert answer.headers["content-type"].startswith(
        "application/openmetrics" if "open" in accept else "text/plain"
    )
    if "open" not in accept:
        assert list(text_string_to_metric_families(answer.text))


def test_a_snapshot_is_in_the_units_of_the_contract() -> None:
    contract = a_contract(2)
    arrays = some_nodes(2, 3, 12)
    arrays["weight"][0] = [0.5, 1.0]
    arrays["sigma"][1] = math.inf
    body = (
        client_of(a_status(contract, [a_snapshot(contract, arrays, version=4)]))
        .get("/v1/snapshot")
        .json()
    )
    assert (body["model"], body["algorithm"], body["version"]) == ("fcac", "fcac", 4)
    assert body["contract"] == contract.digest
    assert body["positions"] == [[0, 480]]
    assert body["features"] == [
        {"name": "temperature", "unit": "°C", "digits": 2, "values": None, "period": None},
        {"name": "humidity", "unit": "%", "digits": 1, "values": None, "period": None},
    ]
    assert body["nodes"][0]["position"] == [20.0, 100.0]
    assert body["nodes"][0]["mass"] == arrays["count"][0]
    assert body["nodes"][1]["bandwidth"] is None
    assert [node["cluster"] for node in body["nodes"]] == arrays["cluster"].tolist()
    assert body["edges"] == arrays["edge"].tolist()
    assert [cluster["mass"] for cluster in body["clusters"]] == arrays["centre_weight"].tolist()
    temperature = [cluster["centre"][0] for cluster in body["clusters"]]
    assert np.allclose(temperature, -20 + 80 * arrays["centre"][:, 0])
    assert body["privacy"]["formal"] is True


def test_a_snapshot_the_client_has_is_not_sent_again() -> None:
    contract = a_contract(2)
    first = a_status(contract, [a_snapshot(contract, some_nodes(2, 3, 12), version=1)])
    board = StatusBoard(first)
    client = WebClient(create_app(board, CollectorRegistry(), predict))
    etag = client.get("/v1/snapshot").headers["etag"]
    again = client.get("/v1/snapshot", headers={"if-none-match": f'"other", W/{etag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    board.post(a_status(contract, [a_snapshot(contract, some_nodes(2, 3, 12), version=2)]))
    newer = client.get("/v1/snapshot", headers={"if-none-match": etag})
    assert (newer.status_code, newer.json()["version"]) == (200, 2)


def test_a_restarted_federation_has_another_etag_at_the_same_version() -> None:
    contract = a_contract(2)
    snapshot = a_snapshot(contract, some_nodes(2, 3, 12))
    restarted = replace(snapshot, made_at=snapshot.made_at + 3600)
    etags = {
        client_of(a_status(contract, [published])).get("/v1/snapshot").headers["etag"]
        for published in (snapshot, restarted)
    }
    assert len(etags) == 2


def test_each_model_has_its_own_snapshot() -> None:
    contract = a_contract(2, models=("fast", "slow"))
    snapshot = a_snapshot(contract, some_nodes(2, 3, 12), model="slow")
    client = client_of(a_status(contract, [snapshot]))
    assert client.get("/v1/snapshot").status_code == 404  # the first model of the contract has none
    assert client.get("/v1/snapshot?model=slow").json()["model"] == "slow"
    unknown = client.get("/v1/snapshot?model=<b>x</b>")
    assert unknown.status_code == 404
    assert unknown.json()["detail"].endswith(" fast, slow")


def test_a_snapshot_of_centres_only_has_one_node_per_centre() -> None:
    contract = contract_with("kmeans")
    centres = {"centre": some_nodes(2, 3, 12)["centre"], "weight": np.array([5.0, 2.0, 9.0])}
    snapshot = a_snapshot(contract, centres, model="heaps", algorithm="kmeans")
    body = client_of(a_status(contract, [snapshot])).get("/v1/snapshot").json()
    assert [node["cluster"] for node in body["nodes"]] == [0, 1, 2]
    assert body["edges"] == []


def test_privacy_is_what_the_contract_guarantees_for_each_model_and_in_all() -> None:
    status = a_status(a_contract(2))
    body = client_of(status).get("/v1/privacy").json()
    assert body == privacy_report(status.contract)
    assert body["epsilon"] == 4.0
    assert 3.99 < body["epsilon_spent"] <= 4.0
    assert {model["mechanism"] for model in body["models"]} == {"discrete-laplace"}
    assert body["not_covered"]


def test_a_status_the_client_has_is_not_sent_again() -> None:
    contract = a_contract(2)
    status = a_status(contract, [a_snapshot(contract, some_nodes(2, 3, 12))])
    board = StatusBoard(status)
    client = WebClient(create_app(board, CollectorRegistry(), predict))
    etag = client.get("/v1/status").headers["etag"]
    board.post(replace(status, now=status.now + 60))
    assert client.get("/v1/status", headers={"if-none-match": etag}).status_code == 304
    board.post(replace(status, lag_records=1))
    assert client.get("/v1/status", headers={"if-none-match": etag}).status_code == 200


@pytest.mark.parametrize("path", FILES)
def test_every_file_of_the_page_is_served_with_headers_that_forbid_foreign_scripts(
    path: str,
) -> None:
    answer = client_of(a_status(a_contract())).get(path)
    assert answer.status_code == 200
    for name, content in HEADERS.items():
        assert answer.headers[name] == content
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_every_static_file_is_served_and_loads_nothing_from_elsewhere() -> None:
    folder = Path(web.__file__).parent / "static"
    parts = {
        file.name for file in folder.iterdir() if file.suffix in (".html", ".css", ".js", ".svg")
    }
    assert parts == {name for name, _ in FILES.values()}
    for file in parts:
        assert "http://" not in (text := (folder / file).read_text()).replace(
            "http://www.w3.org/", ""
        )
        assert "https://" not in text


@pytest.mark.parametrize("path", ["/nothing", "/page.html", "/../view.py", "/v1/predict"])
def test_an_unknown_path_or_method_gets_one_line_of_json(path: str) -> None:
    answer = client_of(a_status(a_contract())).get(path)
    assert answer.status_code in (404, 405)
    assert set(json.loads(answer.text)) == PROBLEM
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["detail"] in (
        "there is nothing at this path; the page is at /",
        "this path accepts POST only",
    )


def test_an_unexpected_error_gets_one_line_of_json_with_the_security_headers_and_is_raised() -> (
    None
):
    def broken(
        _: Snapshot, rows: NDArray[np.float64], contract: ResolvedContract
    ) -> NDArray[np.int64]:
        raise RuntimeError("never seen before")

    contract = a_contract(2)
    status = a_status(contract, [a_snapshot(contract, some_nodes(2, 3, 12))])
    client = WebClient(
        create_app(StatusBoard(status), CollectorRegistry(), broken), raise_errors=False
    )
    answer = client.post("/v1/predict", json=[[1.0, 2.0]])
    assert (answer.status_code, answer.json()["detail"]) == (
        500,
        "internal error; the server's log has the details",
    )
    for name, content in HEADERS.items():
        assert answer.headers[name] == content
    with pytest.raises(RuntimeError, match="never seen before"):
        WebClient(create_app(StatusBoard(status), CollectorRegistry(), broken)).post(
            "/v1/predict", json=[[1.0, 2.0]]
        )
