"""Row F4: a webhook's receiver that never ends its answer, or answers what is no HTTP, holds no
alert for long."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from shoal.errors import LogUnavailable
from shoal.server_node.outputs.sinks import http_post, webhook
from shoal.server_node.outputs.sinks.base import Sink, Sinks
from shoal.server_node.outputs.sinks.webhook import Webhook
from tests.server_node.test_forwarding import configured, event, forward, publish

ALERT = {
    "alert": "all",
    "event": {
        "id": "p/m/1",
        "kind": "birth",
        "model": "m",
        "cluster": 1,
        "federation": "p",
        "at": 0.0,
    },
}


def receiver(answer: Callable[[socket.socket], None]) -> str:
    """The URL of a server that takes one request."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listening, listening.accept()[0] as connection:
            connection.recv(65536)
            try:
                answer(connection)
            except OSError:
                return

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}/secret"


def drip(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while True:
        connection.sendall(b"x")
        time.sleep(0.02)


def headers_without_end(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"X-More: 1\r\n")


def test_an_answer_that_comes_byte_by_byte_is_given_up_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(http_post, "ANSWER_S", 0.3)
    with pytest.raises(LogUnavailable, match=r"no whole answer in 0\.3 s") as away:
        Webhook(receiver(drip), None).deliver(ALERT, "birth", "m")
    assert "secret" not in str(away.value)
    assert "secret" not in caplog.text, "the client logs nothing of the URL"


def handshake_byte_by_byte(connection: socket.socket) -> None:
    connection.sendall(b"\x16\x03\x03\x40\x00")
    while True:
        connection.sendall(b"\x00")
        time.sleep(0.02)


def test_a_handshake_that_comes_byte_by_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "TIMEOUT_S", 0.3)
    with pytest.raises(LogUnavailable, match=r"nothing in 0\.3 s") as away:
        Webhook(receiver(handshake_byte_by_byte).replace("http:", "https:"), None).deliver(
            ALERT, "birth", "m"
        )
    assert "secret" not in str(away.value)


@pytest.mark.parametrize(
    "answer",
    [
        headers_without_end,
        lambda connection: connection.sendall(b"\0" * 100_000),
        lambda connection: connection.close(),
    ],
    ids=["headers without end", "no HTTP", "nothing"],
)
def test_what_is_no_answer_is_tried_again(answer: Callable[[socket.socket], None]) -> None:
    with pytest.raises(LogUnavailable):
        Webhook(receiver(answer), None).deliver(ALERT, "birth", "m")


def test_a_body_without_end_is_not_read() -> None:
    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)

    assert Webhook(receiver(endless), None).deliver(ALERT, "birth", "m")


def test_a_receiver_that_is_busy_for_ever_holds_no_other_sink(tmp_path: Path) -> None:
    config = configured(tmp_path, '[events.webhook]\nurl = "http://127.0.0.1:9/none"')
    taken: list[str] = []

    class Other:
        def deliver(self, alert: Mapping[str, Any], event: str, model: str) -> bool:
            taken.append(alert["event"]["id"])
            return True

    class Both(Sinks):
        def items(self) -> list[tuple[str, Sink]]:
            return [*super().items(), ("other", cast("Sink", Other()))]

    def try_again() -> None:
        with pytest.raises(LogUnavailable):
            forward(config, sinks=Both)

    publish(config, event(1))
    try_again()
    publish(config, event(2), event(3))
    try_again()
    try_again()
    assert taken == ["rooms/1/0", "rooms/2/0", "rooms/3/0"], "each once"
