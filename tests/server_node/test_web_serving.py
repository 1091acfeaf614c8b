"""The web server in its thread: it listens, sends events when the status changes, and stops."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from shoal.config.resolved import ResolvedContract
from shoal.errors import SettingsError
from shoal.protocol.messages import Snapshot
from shoal.server_node.outputs.web import WebServer, create_app, page_server
from shoal.server_node.outputs.web import server as server_module
from shoal.server_node.outputs.web.page import SUBSCRIBERS_MAX
from shoal.server_node.report.status import ServerStatus, StatusBoard
from tests.house.processes import wait_until
from tests.server_node.web_changes import applied
from tests.server_node.web_statuses import a_contract, a_snapshot, a_status, some_nodes

CONTRACT = a_contract(2)
LEARNT = a_status(CONTRACT, [a_snapshot(CONTRACT, some_nodes(2, 3, 12))])
TIMEOUT_S = 120


class Event(NamedTuple):
    etag: str
    status: dict[str, Any]
    kind: str = "status"


class Subscription:
    """An open event stream."""

    def __init__(self, port: int, last_etag: str = "", seen: Event | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        self._connection.request(
            "GET", "/v1/status/stream", headers={"last-event-id": last_etag} if last_etag else {}
        )
        self.answer = self._connection.getresponse()
        self.heartbeats = 0
        self._last = seen

    def next(self) -> Event | None:
        """The status after the next event, None when the stream has ended."""
        body: dict[str, str] = {}
        while line := self.answer.readline().decode():
            name, _, content = line.rstrip("\n").partition(": ")
            body[name] = content
            if not name and body.get("event") == "heartbeat":
                self.heartbeats += 1
                body = {}
            elif not name and "data" in body:
                self._last = self._after(body["event"], body["id"], json.loads(body["data"]))
                return self._last
        return None

    def _after(self, kind: str, etag: str, data: dict[str, Any]) -> Event:
        if kind == "status":
            return Event(etag, data)
        assert kind == "change"
        assert self._last
        assert data["of"] == self._last.etag
        return Event(etag, applied(self._last.status, data["change"]) | {"now": data["now"]}, kind)

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


@contextmanager
def serving(status: ServerStatus = LEARNT) -> Iterator[tuple[StatusBoard, int, WebServer]]:
    board = StatusBoard(status)
    web = page_server(board, CollectorRegistry())
    port = web.start()
    try:
        yield board, port, web
    finally:
        web.stop()


@contextmanager
def subscribed(port: int, last_etag: str = "", seen: Event | None = None) -> Iterator[Subscription]:
    """`seen` is the status with `last_etag`."""
    subscriber = Subscription(port, last_etag, seen)
    try:
        yield subscriber
    finally:
        subscriber.close()


def status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_server_that_never_started_stops() -> None:
    page_server(StatusBoard(LEARNT), CollectorRegistry()).stop()


def test_it_listens_when_start_returns_and_not_after_stop() -> None:
    with serving() as (_, port, web):
        assert port > 0
        assert status(port, "/livez") == 200
        web.stop()
        assert refuses(port)
        web.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == f"web:{port}"]


def test_a_port_in_use_is_named_with_what_to_do() -> None:
    with (
        serving() as (board, port, _),
        pytest.raises(SettingsError, match=rf"127\.0\.0\.1 port {port}: .* in use"),
    ):
        page_server(board, CollectorRegistry(), port=port).start()


@pytest.mark.parametrize(
    ("host", "port"), [("192.0.2.1", 0), ("x" * 64, 0), ("127.0.0.1", 70_000), ("127.0.0.1", -1)]
)
def test_an_address_that_cannot_be_used_is_refused(host: str, port: int) -> None:
    with pytest.raises(SettingsError):
        page_server(StatusBoard(LEARNT), CollectorRegistry(), host, port).start()


def test_the_port_is_free_again_at_once_for_a_server_that_restarts() -> None:
    with serving() as (board, port, web), subscribed(port) as subscriber:
        assert subscriber.next()
        web.stop()
        again = page_server(board, CollectorRegistry(), port=port)
        assert again.start() == port
        again.stop()


def test_signals_stay_with_the_main_thread() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with serving():
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_status_without_snapshots_is_sent() -> None:
    with serving(a_status(CONTRACT)) as (_, port, _web), subscribed(port) as subscriber:
        event = subscriber.next()
        assert event
        assert event.status["models"][0]["clustering"] is None


def test_an_event_is_sent_only_when_more_than_the_clock_changes() -> None:
    with serving() as (board, port, _), subscribed(port) as subscriber:
        assert subscriber.answer.headers["content-type"].startswith("text/event-stream")
        first = subscriber.next()
        board.post(replace(LEARNT, now=LEARNT.now + 1))  # nothing but the clock
        board.post(replace(LEARNT, lag_records=3))
        second = subscriber.next()
        assert first
        assert second
        assert (first.status["lag_records"], second.status["lag_records"]) == (0, 3)
        assert first.etag != second.etag


def test_while_nothing_changes_subscribers_get_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.server_node.outputs.web.page.HEARTBEAT_S", 0.3)
    with serving() as (board, port, _), subscribed(port) as subscriber:
        assert subscriber.next()
        change = threading.Timer(2.0, lambda: board.post(replace(LEARNT, lag_records=3)))
        change.start()
        event = subscriber.next()
        assert event
        assert event.status["lag_records"] == 3
        assert subscriber.heartbeats >= 1


def test_a_subscriber_that_reconnects_gets_only_what_is_new() -> None:
    with serving() as (board, port, _):
        with subscribed(port) as subscriber:
            seen = subscriber.next()
        assert seen
        with (
            subscribed(port, seen.etag, seen) as subscriber,
            subscribed(port, "something old") as other,
        ):
            fresh = other.next()
            assert fresh
            assert (fresh.kind, fresh.etag) == ("status", seen.etag)
            board.post(replace(LEARNT, lag_records=5))
            event = subscriber.next()
            assert event
            assert (event.kind, event.status) == ("change", seen.status | {"lag_records": 5})


def test_all_event_streams_end_when_the_server_stops() -> None:
    with serving() as (_, port, web):
        subscribers = [Subscription(port) for _ in range(5)]
        assert all(subscriber.next() for subscriber in subscribers)
        web.stop()
        assert [subscriber.next() for subscriber in subscribers] == [None] * 5
        for subscriber in subscribers:
            subscriber.close()


def test_a_stream_ends_in_order_when_the_server_stops() -> None:
    with (
        serving() as (_, port, web),
        socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as subscriber,
    ):
        subscriber.sendall(b"GET /v1/status/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        received = b""
        while b"event: status" not in received:
            received += subscriber.recv(65536)
        web.stop()
        while more := subscriber.recv(65536):
            received += more
        assert received.endswith(b"\r\n0\r\n\r\n")


def test_a_subscriber_that_does_not_read_cannot_block_the_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    more_than_any_buffer = replace(LEARNT, rejected={"x" * 16_000_000: 1})
    with serving(more_than_any_buffer) as (_, port, web), socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", port))
        reader.sendall(b"GET /v1/status/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        received = b""
        while b"data: " not in received:
            received += reader.recv(64)
        web.stop()
        assert refuses(port)
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


def test_a_prediction_in_progress_cannot_block_the_stop() -> None:
    asked = threading.Event()
    go_on = threading.Event()

    def slow(
        _: Snapshot, rows: NDArray[np.float64], contract: ResolvedContract
    ) -> NDArray[np.int64]:
        asked.set()
        go_on.wait(TIMEOUT_S)
        return np.zeros(len(rows), dtype=np.int64)

    web = WebServer(create_app(StatusBoard(LEARNT), CollectorRegistry(), slow))
    port = web.start()
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as web_client:
        web_client.sendall(
            b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 7\r\n\r\n[[1,1]]"
        )
        assert asked.wait(TIMEOUT_S)
        web.stop()
        assert refuses(port)
    go_on.set()


def test_too_many_subscribers_are_refused_until_one_leaves() -> None:
    with serving() as (board, port, _):
        subscribers = [Subscription(port) for _ in range(SUBSCRIBERS_MAX)]
        assert all(subscriber.next() for subscriber in subscribers)
        with subscribed(port) as refused:
            assert refused.answer.status == 503
        subscribers.pop().close()
        lag = 0
        while status_of_a_subscription(port) == 503:
            # The server notices that a subscriber has left when it sends to it.
            lag += 1
            board.post(replace(LEARNT, lag_records=lag))
        for subscriber in subscribers:
            subscriber.close()


def status_of_a_subscription(port: int) -> int:
    with subscribed(port) as subscriber:
        return subscriber.answer.status


def test_a_server_without_connections_rests_and_still_answers_and_stops_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "IDLE_TICK_S", 1e6)  # one that waits for it never stops
    ticks: list[int] = []
    with serving() as (_, port, web):
        server = web._server
        thread = web._thread
        assert server is not None
        assert thread is not None
        on_tick = server.on_tick

        async def counted(counter: int) -> bool:
            ticks.append(counter)
            return await on_tick(counter)

        server.on_tick = counted  # type: ignore[method-assign]  # to count its calls
        for _ in range(2):
            assert status(port, "/livez") == 200
            wait_until(lambda: not server._listener.has_connections)
            ticks.clear()
            thread.join(0.5)
            assert len(ticks) <= 1
        web.stop()
        assert not thread.is_alive()
