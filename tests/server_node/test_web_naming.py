"""Naming a cluster over HTTP: what is published, and every request that is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from shoal.config.sections import is_loopback
from shoal.config.settings import load_config
from shoal.errors import LogUnavailable
from shoal.protocol.messages import ClusterName
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.ingest.request_publishing import request_publisher
from shoal.server_node.outputs.web import create_app, predict
from shoal.server_node.outputs.web.access import REQUEST_BYTES_MAX
from shoal.server_node.report.status import StatusBoard
from shoal.transports import open_log
from shoal.transports.base import beginning
from tests.federation_text import federation_text
from tests.server_node.web_client import PROBLEM, WebClient
from tests.server_node.web_statuses import a_contract, a_snapshot, a_status, some_nodes

CONTRACT = a_contract(2, models=("fcac", "slow"))
LEARNT = a_status(CONTRACT, [a_snapshot(CONTRACT, some_nodes(2, 3, 12))])
HERE = {"host": "127.0.0.1:8765", "content-type": "application/json"}
NAME = '{"name": "night"}'


class Published:
    """Keeps the requests that would go into the log."""

    def __init__(self) -> None:
        self.requests: list[ClusterName] = []

    def __call__(self, request: ClusterName) -> None:
        self.requests.append(request)


@pytest.fixture
def published() -> Published:
    return Published()


def client_of(
    publish: Callable[[ClusterName], None] | None, address: str = "127.0.0.1"
) -> WebClient:
    return WebClient(
        create_app(StatusBoard(LEARNT), CollectorRegistry(), predict, publish), address=address
    )


def test_a_name_is_published_as_the_request_of_shoal_name(published: Published) -> None:
    answer = client_of(published).post(
        "/v1/clusters/2/name?model=fcac", content='{"name": " night "}', headers=HERE
    )
    assert answer.status_code == 202
    assert answer.json() == {"model": "fcac", "cluster": 2, "name": "night"}
    (request,) = published.requests
    assert abs(request.made_at - time.time()) < 60
    expected = ClusterName(
        CONTRACT.federation, CONTRACT.digest, "fcac", 2, "night", made_at=request.made_at
    )
    assert request == expected


def test_an_empty_name_takes_it_away(published: Published) -> None:
    assert (
        client_of(published)
        .post("/v1/clusters/0/name", content='{"name": ""}', headers=HERE)
        .status_code
        == 202
    )
    assert published.requests[0].name == ""


@pytest.mark.parametrize(
    "more",
    [
        {"origin": "http://127.0.0.1:8765", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
        {"host": "localhost:8765", "origin": "http://localhost:8765"},
        {"host": "[::1]:8765", "origin": "http://[::1]:8765"},
        {"host": "LOCALHOST", "origin": "http://localhost"},
        {"content-type": "Application/JSON; charset=utf-8"},
    ],
)
def test_a_page_of_this_server_and_a_program_on_this_machine_may_name(
    published: Published, more: Mapping[str, str]
) -> None:
    assert (
        client_of(published)
        .post("/v1/clusters/0/name", content=NAME, headers=HERE | more)
        .status_code
        == 202
    )
    assert len(published.requests) == 1


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"origin": "http://elsewhere.example"}, 403),
        ({"origin": "http://127.0.0.1:9000"}, 403),
        ({"origin": "http://localhost:8765"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"host": "rebound.example:8765", "origin": "http://rebound.example:8765"}, 421),
        ({"host": "rebound.example:8765"}, 421),
        ({"host": "127.0.0.1.example"}, 421),
        ({"host": "[bad"}, 421),
        ({"host": ""}, 421),
        ({"x-forwarded-for": "127.0.0.1"}, 403),
        ({"forwarded": "for=203.0.113.5"}, 403),
        ({"x-real-ip": "203.0.113.5"}, 403),
        ({"via": "1.1 proxy"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "text/plain; a=application/json"}, 415),
        ({"content-type": ""}, 415),
    ],
)
def test_a_page_of_another_site_and_a_proxy_may_not(
    published: Published, more: Mapping[str, str], status: int
) -> None:
    answer = client_of(published).post("/v1/clusters/0/name", content=NAME, headers=HERE | more)
    assert (answer.status_code, set(answer.json())) == (status, PROBLEM)
    assert published.requests == []


@pytest.mark.parametrize(
    "address", ["192.0.2.7", "::ffff:192.0.2.7", "2001:db8::1", "0.0.0.0", "unix"]
)
def test_another_machine_may_not(published: Published, address: str) -> None:
    answer = client_of(published, address).post("/v1/clusters/0/name", content=NAME, headers=HERE)
    assert answer.status_code == 403
    assert "shoal name" in answer.json()["detail"]
    assert published.requests == []


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", "LocalHost"]
)
def test_the_addresses_of_this_machine_for_itself(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/v1/clusters/3/name", "no cluster"),
        ("/v1/clusters/-2/name", "no cluster"),
        ("/v1/clusters/+1/name", "no cluster"),
        ("/v1/clusters/01/name", "no cluster"),
        (f"/v1/clusters/{'9' * 5000}/name", "no cluster"),
        ("/v1/clusters/first/name", "no cluster"),
        ("/v1/clusters/0/name?model=slow", "model slow has no cluster"),
        ("/v1/clusters/0/name?model=other", "no such model; this federation has fcac, slow"),
    ],
)
def test_an_unknown_cluster_or_model_is_not_found(
    published: Published, path: str, error: str
) -> None:
    answer = client_of(published).post(path, content=NAME, headers=HERE)
    assert answer.status_code == 404
    assert error in answer.json()["detail"]
    assert published.requests == []


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("", "not JSON"),
        ("night", "not JSON"),
        ("[" * 4000, "not JSON"),
        ("[]", "no name"),
        ("{}", "no name"),
        ('"night"', "no name"),
        ('{"name": 5}', "no name"),
        ('{"name": null}', "no name"),
        ('{"name": "night", "model": "slow"}', "no name"),
        (json.dumps({"name": "n" * 61}), "at most 60 characters"),
        ('{"name": "two\\nlines"}', "not a line"),
        ('{"name": "\\u202enight"}', "not a line"),
        ('{"name": "half \\ud83d"}', "not a line"),
    ],
)
def test_a_body_without_a_valid_name_is_refused(
    published: Published, body: str, error: str
) -> None:
    answer = client_of(published).post("/v1/clusters/0/name", content=body, headers=HERE)
    assert answer.status_code == 400
    assert set(answer.json()) == PROBLEM
    assert error in answer.json()["detail"]
    assert published.requests == []


def test_the_longest_name_fits_and_a_larger_body_is_refused(published: Published) -> None:
    longest = json.dumps({"name": "\U0001f41f" * 60})
    assert (
        client_of(published).post("/v1/clusters/0/name", content=longest, headers=HERE).status_code
        == 202
    )
    large = NAME + " " * REQUEST_BYTES_MAX
    assert (
        client_of(published).post("/v1/clusters/0/name", content=large, headers=HERE).status_code
        == 413
    )


def test_only_post_names() -> None:
    answer = client_of(Published()).get("/v1/clusters/0/name", headers=HERE)
    assert (answer.status_code, answer.json()["detail"]) == (405, "this path accepts POST only")


def test_a_server_without_a_log_to_publish_to_takes_no_names() -> None:
    answer = client_of(None).post("/v1/clusters/0/name", content=NAME, headers=HERE)
    assert (answer.status_code, "shoal name" in answer.json()["detail"]) == (503, True)


def test_a_log_that_is_away_is_reported_and_nothing_of_it_is_quoted() -> None:
    def away(_: ClusterName) -> None:
        raise LogUnavailable("broker secret-host:9092 is away")

    answer = client_of(away).post("/v1/clusters/0/name", content=NAME, headers=HERE)
    assert (answer.status_code, answer.json()["detail"]) == (
        503,
        "the server cannot answer this now",
    )


FILE = federation_text(
    "greenhouse",
    features=[{"name": "light", "low": 0.0, "high": 1000.0}],
    models=[{"name": "fcac", "algorithm": "fcac"}],
    log={"address": "sqlite:{folder}/log.db"},
    server={"folder": "{folder}/server"},
)


def test_requests_reach_the_log_that_the_server_reads(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(FILE.format(folder=tmp_path), encoding="utf-8")
    config = load_config(file)
    request = ClusterName(
        config.contract.federation, config.contract.digest, "fcac", 0, "night", made_at=1.0
    )
    with resumed(open_server(config)) as server:
        request_publisher(config)(request)
        assert server.step(), "the server reads it, and rejects it: there is no such cluster yet"
    with closing(open_log(config.log)) as log:
        topic = config.contract.updates_topic
        records, _ = log.read(topic, beginning(log, topic))
        assert [ClusterName.decode(record.value, record.headers) for record in records] == [request]
        rejected, _ = log.read(
            config.contract.rejected_topic, beginning(log, config.contract.rejected_topic)
        )
        assert len(rejected) == 1
