"""What the server says over HTTP, before and after it has learnt something."""

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

from server_node import web
from server_node.status import ServerStatus, StatusBoard
from server_node.web import create_app, predict
from server_node.web.app import FILES
from server_node.web.headers import HEADERS
from shoal.protocol.messages import Snapshot
from tests.server_node.web_asking import Asking
from tests.server_node.web_pictures import a_contract, a_picture, a_snapshot, some_nodes


def asking(picture: ServerStatus, registry: CollectorRegistry | None = None) -> Asking:
    return Asking(create_app(StatusBoard(picture), registry or CollectorRegistry(), predict))


def test_before_the_first_snapshot_everything_answers_and_says_what_is_missing() -> None:
    contract = a_contract()
    client = asking(a_picture(contract))
    assert client.get("/livez").status_code == 200
    missing = client.get("/snapshot")
    assert missing.status_code == 404
    assert missing.json() == {"error": "no clustering yet", "waiting_for": "1 of 2 clients have spoken."}
    picture = client.get("/picture").json()
    assert picture["models"][0]["drawn"] is None
    assert picture["models"][0]["waiting_for"] == "1 of 2 clients have spoken."
    assert client.get("/metrics").text == ""


def test_ready_is_said_only_when_the_log_has_been_read() -> None:
    contract = a_contract()
    late = asking(a_picture(contract, ready=False, lag_records=7)).get("/readyz")
    assert late.status_code == 503
    assert "7 updates are left" in late.text
    assert late.text.count("\n") == 1
    ready = asking(a_picture(contract)).get("/readyz")
    assert (ready.status_code, ready.text) == (200, "ready\n")


def test_a_server_that_is_not_ready_is_alive() -> None:
    assert asking(a_picture(a_contract(), ready=False)).get("/livez").status_code == 200


@pytest.mark.parametrize("accept", ["", "text/plain", "application/openmetrics-text;version=1.0.0"])
def test_metrics_are_those_of_the_registry_in_the_form_that_was_asked_for(accept: str) -> None:
    registry = CollectorRegistry()
    Counter("shoal_updates", "Updates", ["result"], registry=registry).labels("absorbed").inc(5)
    answer = asking(a_picture(a_contract()), registry).get("/metrics", headers={"accept": accept})
    assert 'shoal_updates_total{result="absorbed"} 5.0' in answer.text
    assert answer.headers["content-type"].startswith("application/openmetrics" if "open" in accept else "text/plain")
    if "open" not in accept:
        assert list(text_string_to_metric_families(answer.text))


def test_a_snapshot_is_told_in_the_units_of_the_contract() -> None:
    contract = a_contract(2)
    arrays = some_nodes(2, 3, 12)
    arrays["weight"][0] = [0.5, 1.0]
    arrays["sigma"][1] = math.inf
    told = asking(a_picture(contract, [a_snapshot(contract, arrays, version=4)])).get("/snapshot").json()
    assert (told["model"], told["algorithm"], told["version"]) == ("fcac", "fcac", 4)
    assert told["contract"] == contract.digest
    assert told["positions"] == [[0, 480]]
    assert told["features"] == [{"name": "temperature", "unit": "°C"}, {"name": "humidity", "unit": "%"}]
    assert told["nodes"][0]["position"] == [20.0, 100.0]
    assert told["nodes"][0]["count"] == arrays["count"][0]
    assert told["nodes"][1]["sigma"] is None
    assert [node["cluster"] for node in told["nodes"]] == arrays["cluster"].tolist()
    assert told["edges"] == arrays["edge"].tolist()
    assert [cluster["weight"] for cluster in told["clusters"]] == arrays["centre_weight"].tolist()
    temperature = [cluster["centre"][0] for cluster in told["clusters"]]
    assert np.allclose(temperature, -20 + 80 * arrays["centre"][:, 0])
    assert told["privacy"]["formal"] is True


def test_a_snapshot_that_is_known_is_not_sent_again() -> None:
    contract = a_contract(2)
    first = a_picture(contract, [a_snapshot(contract, some_nodes(2, 3, 12), version=1)])
    board = StatusBoard(first)
    client = Asking(create_app(board, CollectorRegistry(), predict))
    mark = client.get("/snapshot").headers["etag"]
    again = client.get("/snapshot", headers={"if-none-match": f'"other", W/{mark}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", mark)
    board.set(a_picture(contract, [a_snapshot(contract, some_nodes(2, 3, 12), version=2)]))
    newer = client.get("/snapshot", headers={"if-none-match": mark})
    assert (newer.status_code, newer.json()["version"]) == (200, 2)


def test_a_federation_that_began_anew_is_not_taken_for_the_old_one() -> None:
    contract = a_contract(2)
    snapshot = a_snapshot(contract, some_nodes(2, 3, 12))
    anew = replace(snapshot, made_at=snapshot.made_at + 3600)
    marks = {asking(a_picture(contract, [one])).get("/snapshot").headers["etag"] for one in (snapshot, anew)}
    assert len(marks) == 2


def test_each_model_has_its_own_snapshot() -> None:
    contract = a_contract(2, models=("fast", "slow"))
    snapshot = a_snapshot(contract, some_nodes(2, 3, 12), model="slow")
    client = asking(a_picture(contract, [snapshot]))
    assert client.get("/snapshot").status_code == 404  # the first model of the contract has none
    assert client.get("/snapshot?model=slow").json()["model"] == "slow"
    unknown = client.get("/snapshot?model=<b>x</b>")
    assert unknown.status_code == 404
    assert unknown.json() == {"error": "no such model; this federation has fast, slow"}


def test_an_algorithm_with_centres_only_is_shown_as_its_centres() -> None:
    contract = a_contract(2)
    arrays = some_nodes(2, 3, 12)
    centres = {"centre": arrays["centre"]}
    snapshot = replace(a_snapshot(contract, arrays), arrays=centres)
    told = asking(a_picture(contract, [snapshot])).get("/snapshot").json()
    assert [node["cluster"] for node in told["nodes"]] == [0, 1, 2]
    assert told["edges"] == []


def test_privacy_is_the_statement_of_the_contract() -> None:
    picture = a_picture(a_contract(2))
    told = asking(picture).get("/privacy").json()
    assert told == picture.privacy
    assert told["epsilon_per_reading"] == 4.0


def test_a_picture_that_is_known_is_not_sent_again() -> None:
    contract = a_contract(2)
    picture = a_picture(contract, [a_snapshot(contract, some_nodes(2, 3, 12))])
    board = StatusBoard(picture)
    client = Asking(create_app(board, CollectorRegistry(), predict))
    mark = client.get("/picture").headers["etag"]
    board.set(replace(picture, now=picture.now + 60))
    assert client.get("/picture", headers={"if-none-match": mark}).status_code == 304
    board.set(replace(picture, lag_records=1))
    assert client.get("/picture", headers={"if-none-match": mark}).status_code == 200


@pytest.mark.parametrize("path", FILES)
def test_the_page_and_its_parts_are_served_with_what_keeps_a_browser_from_running_anything_else(path: str) -> None:
    answer = asking(a_picture(a_contract())).get(path)
    assert answer.status_code == 200
    for name, content in HEADERS.items():
        assert answer.headers[name] == content
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_every_part_of_the_page_in_the_folder_is_served_and_installed() -> None:
    folder = Path(web.__file__).parent / "static"
    parts = {file.name for file in folder.iterdir() if file.suffix in (".html", ".css", ".js", ".svg")}
    assert parts == {name for name, _ in FILES.values()}
    for file in parts:
        assert "http://" not in (text := (folder / file).read_text()).replace("http://www.w3.org/", "")
        assert "https://" not in text


@pytest.mark.parametrize("path", ["/nothing", "/page.html", "/../view.py", "/predict"])
def test_what_is_not_there_is_refused_in_one_json_line(path: str) -> None:
    answer = asking(a_picture(a_contract())).get(path)
    assert answer.status_code in (404, 405)
    assert set(json.loads(answer.text)) == {"error"}
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["error"] in (
        "nothing is at this address; the page is at /",
        "this address answers POST only",
    )


def test_what_nobody_foresaw_is_answered_in_one_json_line_with_the_same_headers_and_logged() -> None:
    def broken(_: Snapshot, rows: NDArray[np.float64]) -> NDArray[np.int64]:
        raise RuntimeError("never seen before")

    contract = a_contract(2)
    picture = a_picture(contract, [a_snapshot(contract, some_nodes(2, 3, 12))])
    client = Asking(create_app(StatusBoard(picture), CollectorRegistry(), broken), raise_errors=False)
    answer = client.post("/predict", json=[[1.0, 2.0]])
    assert (answer.status_code, answer.json()) == (500, {"error": "the server is at fault here; its log says more"})
    for name, content in HEADERS.items():
        assert answer.headers[name] == content
    with pytest.raises(RuntimeError, match="never seen before"):
        Asking(create_app(StatusBoard(picture), CollectorRegistry(), broken)).post("/predict", json=[[1.0, 2.0]])
