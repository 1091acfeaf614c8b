"""Changed requests to the page: no status of 500 or more, no exception, and the page still
answers."""

from __future__ import annotations

import ast
import asyncio
import json
import random
from typing import Any

from prometheus_client import CollectorRegistry

from shoal.protocol.messages import OperatorRequest
from shoal.server_node.outputs.web import create_app, predict
from shoal.server_node.outputs.web.server import Limits
from shoal.server_node.report.status import StatusBoard
from tests.hostile.fuzzing import corpus, keeping, numbers
from tests.hostile.fuzzing.mutations import NUMBERS, TEXTS, changed_bytes, changed_value
from tests.server_node.web_statuses import a_contract, a_snapshot, a_status, some_nodes

PATHS = (
    "/",
    "/v1/status",
    "/v1/snapshot",
    "/v1/snapshot?model=fcac",
    "/v1/predict",
    "/v1/predict?model=fcac",
    "/readyz",
    "/v1/privacy",
    "/v1/clusters/0/name",
    "/v1/clusters/0/name?model=fcac",
    "/session",
    "/page.js",
    "/metrics",
    "/livez",
    "/page.css",
    "/v1/openapi.json",
    "/v1/clients",
    "/v1/clusters/0/alerts",
)
METHODS = (
    "GET",
    "GET",
    "POST",
    "POST",
    "HEAD",
    "PUT",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "get",
    "X",
)
HEADERS = (
    (b"content-type", b"application/json"),
    (b"content-type", b"text/csv"),
    (b"if-none-match", b'"x"'),
    (b"accept", b"text/html"),
    (b"accept-encoding", b"gzip"),
    (b"authorization", b"Bearer x"),
    (b"cookie", b"a=b; c"),
    (b"origin", b"http://evil.example"),
    (b"host", b"127.0.0.1:8765"),
    (b"range", b"bytes=0-1"),
    (b"etag", b"*"),
    (b"x-forwarded-for", b"::1"),
    (b"content-length", b"5"),
    (b"sec-fetch-site", b"cross-site"),
    (b"referer", b"\xff"),
)
BODIES: tuple[Any, ...] = (
    {"rows": [[20.0, 50.0], [21.5, 40.0]]},
    {"rows": []},
    {"name": "north hall"},
    {"model": "fcac", "rows": [[1, 2]]},
    {"token": "secret"},
)


async def respond(app: Any, case: dict[str, Any]) -> int:
    """The status of the answer. A body comes in one piece, and then the client has gone."""
    sent: list[dict[str, Any]] = []
    pieces = [{"type": "http.request", "body": case["body"], "more_body": False}]

    async def receive() -> dict[str, Any]:
        return pieces.pop() if pieces else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 8765),
        "client": ("127.0.0.1", 50_000),
        "root_path": "",
        **{name: case[name] for name in ("method", "path", "raw_path", "query_string", "headers")},
    }
    await asyncio.wait_for(app(scope, receive, send), 30)
    return next(
        (message["status"] for message in sent if message["type"] == "http.response.start"), 0
    )


def changed(number: int) -> dict[str, Any]:
    """The request of this number."""
    rng = random.Random(number)
    path, _, query = rng.choice(PATHS).partition("?")
    if rng.random() < 0.4:
        path = (
            path.replace("0", str(rng.choice(NUMBERS)))
            if rng.random() < 0.5
            else path + rng.choice(TEXTS)
        )
    if rng.random() < 0.4:
        query += rng.choice(("&", "model=", "model=fcac&model=x", "%", "=")) + rng.choice(TEXTS)
    body: Any = rng.choice(BODIES)
    for _ in range(rng.choice((0, 1, 2))):
        body = changed_value(rng, body)
    try:
        content = json.dumps(body).encode()
    except (TypeError, ValueError):
        content = repr(body).encode("utf-8", "replace")
    if rng.random() < 0.4:
        content = changed_bytes(rng, content, [content, b"[" * 5000, b'{"rows":' * 500])
    headers = [(b"host", b"127.0.0.1"), *(rng.choice(HEADERS) for _ in range(rng.randrange(4)))]
    if rng.random() < 0.5:
        place = rng.randrange(len(headers))
        name, value = headers[place]
        headers[place] = (name, changed_bytes(rng, value, [value, b"W/*", b"bytes=1-2,3-4"]))
    return {
        "method": rng.choice(METHODS),
        "path": path,
        "raw_path": path.encode("utf-8", "replace"),
        "query_string": query.encode("utf-8", "replace"),
        "headers": headers,
        "body": content,
    }


def test_no_changed_request_makes_the_page_fail() -> None:
    contract = a_contract()
    board = StatusBoard(a_status(contract, [a_snapshot(contract, some_nodes(2, 3, 30))]))
    named: list[OperatorRequest] = []
    app = create_app(
        board, CollectorRegistry(), predict, named.append, limits=Limits(1000, 0.0, 30.0)
    )
    statuses = set()

    def answered(number: int | str, case: dict[str, Any]) -> int:
        with keeping("http", number, lambda: repr(case).encode()):
            try:
                status = asyncio.run(respond(app, case))
            except Exception as wrong:
                raise AssertionError(
                    f"case {number}: {case['method']} {case['path']}: {wrong!r}"
                ) from wrong
            assert status < 500 or status == 503, (
                f"case {number}: {status} for {case['method']} {case['path']}"
            )
        return status

    for name, content in corpus("http").items():
        answered(name, ast.literal_eval(content.decode()))
    for number in numbers("http", 0.1):
        statuses.add(answered(number, changed(number)))
    assert {200, 404} <= statuses, "the cases reach what is behind the first check"
    fine = {
        "method": "GET",
        "path": "/v1/status",
        "raw_path": b"/v1/status",
        "query_string": b"",
        "body": b"",
    }
    assert asyncio.run(respond(app, {**fine, "headers": [(b"host", b"127.0.0.1")]})) == 200
