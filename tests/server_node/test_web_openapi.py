"""The OpenAPI document of a real server: requests drawn from it get an answer that it describes."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from shoal.config.settings import LogSettings
from shoal.protocol.events import ClusterEventMessage
from shoal.protocol.messages import OperatorRequest
from shoal.protocol.topics import ensure_topics
from shoal.server_node.outputs.web import page_server
from shoal.server_node.outputs.web.server import Limits
from shoal.server_node.report.status import ClientStatus, StatusBoard
from shoal.transports import open_log
from tests.server_node.web_statuses import NOW, a_contract, a_snapshot, a_status, some_nodes

STREAM = "text/event-stream"


class Served:
    """A server of a page whose log has three events, of which its document is known."""

    def __init__(self, folder: Path) -> None:
        contract = a_contract(models=("fcac", "slow"))
        reader = partial(open_log, LogSettings(address=f"sqlite:{folder / 'log.db'}"))
        log = reader()
        ensure_topics(log, contract)
        for number in range(3):
            event = ClusterEventMessage(
                id=f"fcac/{number}/0",
                kind="birth",
                federation=contract.federation,
                model="fcac",
                version=number,
                readings=10,
                at=NOW,
                cluster=number,
                share=0.5,
                known=1,
                active=1,
            )
            log.publish(contract.events_topic, event.encode(), headers=event.headers())
        log.publish(contract.events_topic, b"no event")
        log.close()
        asked: list[OperatorRequest] = []
        clients = [ClientStatus(name, 1.7e9, 2, 20, 0.5) for name in ("attic", "cellar", "loft")]
        status = a_status(contract, [a_snapshot(contract, some_nodes(2, 3, 30))], clients=clients)
        self.web = page_server(
            StatusBoard(status),
            CollectorRegistry(),
            publish_request=asked.append,
            open_log=reader,
            limits=Limits(256, 0.0, 30.0),
        )
        self.url = f"http://127.0.0.1:{self.web.start()}"
        self.document: dict[str, Any] = json.loads(self.answer("GET", "/v1/openapi.json")[2])

    def answer(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, str, bytes, Any]:
        """Status, media type, body, headers."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, body, named, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                content = b"" if response.headers.get_content_type() == STREAM else response.read()
                return (
                    response.status,
                    response.headers.get_content_type(),
                    content,
                    response.headers,
                )
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers.get_content_type(), error.read(), error.headers

    def operations(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Method, path and what the document says of it."""
        return [
            (m.upper(), path, method)
            for path, item in self.document["paths"].items()
            for m, method in item.items()
        ]

    def check(self, operation: dict[str, Any], status: int, media_type: str, body: bytes) -> None:
        """The document has this status and media type, and the body fits its schema."""
        described = operation["responses"][str(status)]
        if "$ref" in described:
            described = self.document["components"]["responses"][str(status)]
        if status == 304:
            assert not body
            return
        schema = described["content"][media_type]["schema"]
        if media_type != STREAM:
            components = {"components": self.document["components"]}
            jsonschema.validate(json.loads(body), schema | components)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("openapi"))
    yield server
    server.web.stop()


def from_schema(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that fit a schema of the document, as far as its requests have schemas."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of([from_schema(schema_of_choice) for schema_of_choice in schema["anyOf"]])
    if isinstance(schema["type"], list):
        return st.one_of([from_schema({**schema, "type": kind}) for kind in schema["type"]])
    if schema["type"] == "object":
        return from_object(schema)
    if schema["type"] == "array":
        return st.lists(from_schema(schema["items"]), max_size=4)
    return {
        "null": st.none(),
        "boolean": st.booleans(),
        "number": st.floats(allow_nan=False, allow_infinity=False) | st.integers(),
        "integer": st.integers(schema.get("minimum"), schema.get("maximum")),
        "string": st.text(max_size=schema.get("maxLength", 20)),
    }[schema["type"]]


def from_object(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    fields = {name: from_schema(field) for name, field in schema.get("properties", {}).items()}
    needed = {name: fields.pop(name) for name in schema.get("required", ())}
    others = schema.get("additionalProperties")
    if not isinstance(others, dict):
        return st.fixed_dictionaries(needed, optional=fields)
    names = st.sampled_from(["temperature", "humidity"]) | st.text(max_size=5)
    return st.dictionaries(names, from_schema(others), max_size=4)


def requests_of(operation: dict[str, Any]) -> st.SearchStrategy[tuple[dict[str, Any], str, Any]]:
    """Parameters by name, media type of the body, and the body, half of them with a model that
    there is."""
    drawn = {}
    for parameter in operation["parameters"]:
        values = from_schema(parameter["schema"])
        if parameter["name"] in ("model", "client"):
            values = st.sampled_from(["fcac", "slow"]) | values
        drawn[parameter["name"]] = values if parameter.get("required") else st.none() | values
    content = operation.get("requestBody", {"content": {"": {}}})["content"]
    media = st.sampled_from(sorted(content))
    return st.tuples(
        st.fixed_dictionaries(drawn),
        media,
        st.just(None) if "" in content else from_schema(content["application/json"]["schema"]),
    )


def send(served: Served, method: str, path: str, drawn: tuple[dict[str, Any], str, Any]) -> Any:
    parameters, media_type, value = drawn
    query = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter is not None and f"{{{name}}}" not in path
    }
    for name, parameter in parameters.items():
        path = path.replace(f"{{{name}}}", urllib.parse.quote(str(parameter), safe=""))
    body = None if value is None else json.dumps(value).encode()
    headers = {"content_type": media_type} if body is not None else {}
    return served.answer(
        method, f"{path}?{urllib.parse.urlencode(query, errors='replace')}", body, **headers
    )


def check_all(served: Served, examples: int) -> None:
    for method, path, operation in served.operations():

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.just((method, path, operation)), requests_of(operation))
        def holds(asked: Any, drawn: Any) -> None:
            status, media_type, body, _ = send(served, *asked[:2], drawn)
            served.check(asked[2], status, media_type, body)

        holds()


def test_what_a_server_answers_is_what_its_document_says(served: Served) -> None:
    check_all(served, 4)


@pytest.mark.integration
def test_what_a_server_answers_to_many_requests_is_what_its_document_says(served: Served) -> None:
    check_all(served, 300)


def test_every_operation_can_succeed_and_names_what_it_answers(served: Served) -> None:
    bodies = {
        "predict": {"rows": [[20.0, 50.0]]},
        "name": {"name": "night"},
        "alerts": {"action": "confirm"},
    }
    without = {
        "/v1/anomalies",
        "/v1/history",
        "/v1/feeds",
        "/v1/changes",
        "/v1/cycles",
        "/v1/labels",
        "/v1/rules",
    }
    """this server has no history, no labels and no model that predicts"""
    for method, path, operation in served.operations():
        body = bodies.get(path.rsplit("/", 1)[-1])
        content = None if body is None else json.dumps(body).encode()
        status, media_type, answered, headers = served.answer(
            method, path.replace("{identity}", "0"), content, content_type="application/json"
        )
        assert status == (404 if path in without else min(map(int, operation["responses"]))), path
        served.check(operation, status, media_type, answered)
        if "304" in operation["responses"] and status == 200:
            again = served.answer(
                method, path.replace("{identity}", "0"), if_none_match=headers["etag"]
            )
            assert (again[0], again[2]) == (304, b""), path


def test_the_document_is_valid_and_has_every_path_under_v1(served: Served) -> None:
    for _, _, operation in served.operations():
        for described in operation["responses"].values():
            for content in described.get("content", {}).values():
                jsonschema.Draft202012Validator.check_schema(content["schema"])
        assert operation["summary"]
    names = [operation["operationId"] for _, _, operation in served.operations()]
    assert len(set(names)) == len(names)
    assert all(path.startswith("/v1/") for path in served.document["paths"])


def test_events_are_listed_from_a_place_on(served: Served) -> None:
    first = json.loads(served.answer("GET", "/v1/events?limit=2")[2])
    assert [event["id"] for event in first["events"]] == ["fcac/0/0", "fcac/1/0"]
    rest = json.loads(served.answer("GET", f"/v1/events?after={first['next']}")[2])
    assert [event["id"] for event in rest["events"]] == ["fcac/2/0"]
    assert rest["next"] == rest["end"]
    assert (
        json.loads(served.answer("GET", f"/v1/events?after={rest['end'] + 5}")[2])["events"] == []
    )
    assert json.loads(served.answer("GET", "/v1/events?model=slow")[2])["events"] == []
    assert served.answer("GET", "/v1/events?limit=0")[0] == 400
    assert served.answer("GET", "/v1/events?model=other")[0] == 404


def test_clients_are_listed_by_name_some_at_a_time(served: Served) -> None:
    def answer(query: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(served.answer("GET", f"/v1/clients{query}")[2])
        return found

    def names(query: str) -> list[str]:
        return [client["client"] for client in answer(query)["clients"]]

    assert names("") == ["attic", "cellar", "loft"]
    assert (names("?limit=2"), answer("?limit=2")["next"], answer("?limit=2")["total"]) == (
        ["attic", "cellar"],
        "cellar",
        3,
    )
    assert (names("?limit=2&after=cellar"), answer("?limit=1&after=cellar")["next"]) == (
        ["loft"],
        None,
    )
    assert answer("?after=zinc") == {"clients": [], "total": 3, "next": None}
    assert served.answer("GET", "/v1/clients?limit=1001")[0] == 400


def test_old_paths_are_gone(served: Served) -> None:
    for path in (
        "/snapshot",
        "/status",
        "/events",
        "/clusters",
        "/predict",
        "/nodes",
        "/privacy",
        "/rules",
    ):
        assert served.answer("GET", path)[0] == 404
