"""The web server in its thread: it listens, pushes what changes, and stops when told to."""

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

from server_node.status import ServerStatus, StatusBoard
from server_node.web import WebServer, create_app, page_server
from server_node.web.event_stream import WATCHERS_MAX
from shoal.errors import SettingsError
from shoal.protocol.messages import Snapshot
from tests.server_node.web_pictures import a_contract, a_picture, a_snapshot, some_nodes

CONTRACT = a_contract(2)
LEARNT = a_picture(CONTRACT, [a_snapshot(CONTRACT, some_nodes(2, 3, 12))])
PATIENCE_S = 30


class Event(NamedTuple):
    mark: str
    picture: dict[str, Any]


class Watching:
    """An open event stream."""

    def __init__(self, port: int, seen: str = "") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        self._connection.request("GET", "/events", headers={"last-event-id": seen} if seen else {})
        self.answer = self._connection.getresponse()
        self.signs_of_life = 0

    def next(self) -> Event | None:
        """The next event, None when the stream has ended."""
        told: dict[str, str] = {}
        while line := self.answer.readline().decode():
            name, _, content = line.rstrip("\n").partition(": ")
            told[name] = content
            if not name and told.get("event") == "alive":
                self.signs_of_life += 1
                told = {}
            elif not name and "data" in told:
                assert told["event"] == "picture"
                return Event(told["id"], json.loads(told["data"]))
        return None

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


@contextmanager
def serving(picture: ServerStatus = LEARNT) -> Iterator[tuple[StatusBoard, int, WebServer]]:
    board = StatusBoard(picture)
    web = page_server(board, CollectorRegistry())
    port = web.start()
    try:
        yield board, port, web
    finally:
        web.stop()


@contextmanager
def watching(port: int, seen: str = "") -> Iterator[Watching]:
    watcher = Watching(port, seen)
    try:
        yield watcher
    finally:
        watcher.close()


def status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S).close()
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
    with serving() as (board, port, _), pytest.raises(SettingsError, match=rf"127\.0\.0\.1 port {port}: .* in use"):
        page_server(board, CollectorRegistry(), port=port).start()


@pytest.mark.parametrize(("host", "port"), [("192.0.2.1", 0), ("x" * 64, 0), ("127.0.0.1", 70_000), ("127.0.0.1", -1)])
def test_an_address_that_cannot_be_had_is_refused(host: str, port: int) -> None:
    with pytest.raises(SettingsError):
        page_server(StatusBoard(LEARNT), CollectorRegistry(), host, port).start()


def test_the_port_is_free_again_at_once_for_a_server_that_restarts() -> None:
    with serving() as (board, port, web), watching(port) as watcher:
        assert watcher.next()
        web.stop()
        again = page_server(board, CollectorRegistry(), port=port)
        assert again.start() == port
        again.stop()


def test_signals_stay_with_the_main_thread() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with serving():
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_empty_board_is_pushed_too() -> None:
    with serving(a_picture(CONTRACT)) as (_, port, _web), watching(port) as watcher:
        event = watcher.next()
        assert event
        assert event.picture["models"][0]["drawn"] is None


def test_what_changes_is_pushed_and_what_does_not_is_not() -> None:
    with serving() as (board, port, _), watching(port) as watcher:
        assert watcher.answer.headers["content-type"].startswith("text/event-stream")
        first = watcher.next()
        board.set(replace(LEARNT, now=LEARNT.now + 1))  # nothing but the clock
        board.set(replace(LEARNT, lag_records=3))
        second = watcher.next()
        assert first
        assert second
        assert (first.picture["lag_records"], second.picture["lag_records"]) == (0, 3)
        assert first.mark != second.mark


def test_while_nothing_changes_a_watcher_hears_that_the_server_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server_node.web.event_stream.HEARTBEAT_S", 0.3)
    with serving() as (board, port, _), watching(port) as watcher:
        assert watcher.next()
        hung = threading.Timer(2.0, lambda: board.set(replace(LEARNT, lag_records=3)))
        hung.start()
        event = watcher.next()
        assert event
        assert event.picture["lag_records"] == 3
        assert watcher.signs_of_life >= 1


def test_a_watcher_that_comes_back_is_told_only_what_it_has_not_seen() -> None:
    with serving() as (board, port, _):
        with watching(port) as watcher:
            seen = watcher.next()
        assert seen
        with watching(port, seen.mark) as watcher, watching(port, "something old") as other:
            fresh = other.next()
            assert fresh
            assert fresh.mark == seen.mark
            board.set(replace(LEARNT, lag_records=5))
            event = watcher.next()
            assert event
            assert event.picture["lag_records"] == 5


def test_all_watchers_are_let_go_when_the_server_stops() -> None:
    with serving() as (_, port, web):
        watchers = [Watching(port) for _ in range(5)]
        assert all(watcher.next() for watcher in watchers)
        web.stop()
        assert [watcher.next() for watcher in watchers] == [None] * 5
        for watcher in watchers:
            watcher.close()


def test_a_stream_is_ended_and_not_cut_off_when_the_server_stops() -> None:
    with serving() as (_, port, web), socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as watcher:
        watcher.sendall(b"GET /events HTTP/1.1\r\nHost: shoal\r\n\r\n")
        received = b""
        while b"event: picture" not in received:
            received += watcher.recv(65536)
        web.stop()
        while more := watcher.recv(65536):
            received += more
        assert received.endswith(b"\r\n0\r\n\r\n")


def test_a_watcher_that_does_not_read_cannot_hold_the_server(caplog: pytest.LogCaptureFixture) -> None:
    more_than_any_buffer = replace(LEARNT, rejected={"x" * 16_000_000: 1})
    with serving(more_than_any_buffer) as (_, port, web), socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", port))
        deaf.sendall(b"GET /events HTTP/1.1\r\nHost: shoal\r\n\r\n")
        received = b""
        while b"data: " not in received:
            received += deaf.recv(64)
        web.stop()
        assert refuses(port)
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


def test_a_prediction_under_way_cannot_hold_the_server() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slow(_: Snapshot, rows: NDArray[np.float64]) -> NDArray[np.int64]:
        asked.set()
        go_on.wait(PATIENCE_S)
        return np.zeros(len(rows), dtype=np.int64)

    web = WebServer(create_app(StatusBoard(LEARNT), CollectorRegistry(), slow))
    port = web.start()
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as asking:
        asking.sendall(b"POST /predict HTTP/1.1\r\nHost: shoal\r\nContent-Length: 7\r\n\r\n[[1,1]]")
        assert asked.wait(PATIENCE_S)
        web.stop()
        assert refuses(port)
    go_on.set()


def test_too_many_watchers_are_refused_and_there_is_room_when_one_leaves() -> None:
    with serving() as (board, port, _):
        watchers = [Watching(port) for _ in range(WATCHERS_MAX)]
        assert all(watcher.next() for watcher in watchers)
        with watching(port) as rejected:
            assert rejected.answer.status == 503
        watchers.pop().close()
        lag = 0
        while status_of_a_watch(port) == 503:
            # A watcher that left is noticed when something is pushed to it.
            lag += 1
            board.set(replace(LEARNT, lag_records=lag))
        for watcher in watchers:
            watcher.close()


def status_of_a_watch(port: int) -> int:
    with watching(port) as watcher:
        return watcher.answer.status
