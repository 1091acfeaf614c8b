"""Row 6: connections that are never used, requests that never end, and processes with few
descriptors.

Whatever sockets do, the page answers, the server goes on, and its log stays short.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from shoal.server_node.outputs.web.page import SUBSCRIBERS_MAX
from tests.hostile.served_page import ServedPage, serving
from tests.house.processes import wait_until

MANY = 1500
HALF_A_REQUEST = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "
HALF_A_BODY = b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n[[1,"
ANSWERED_BEFORE_ITS_BODY = HALF_A_BODY.replace(b"POST /v1/predict", b"GET /livez")
EVENTS = b"GET /v1/status/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
LOG_BYTES_MAX = 100_000


@pytest.fixture(autouse=True)
def many_sockets() -> Iterator[None]:
    """This process may open as many sockets as the attacks need."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def opened(page: ServedPage, stack: ExitStack, first: bytes = b"") -> socket.socket:
    """A connection that has sent `first`; one that the server has closed at once is one too."""
    one = stack.enter_context(page.socket())
    with contextlib.suppress(ConnectionError):
        one.sendall(first)
    return one


def is_closed(one: socket.socket) -> bool:
    """Whether the server has closed the connection; what it has sent before is read."""
    one.setblocking(False)
    try:
        while one.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.mark.parametrize(
    "sent", [b"", HALF_A_REQUEST, HALF_A_BODY], ids=["nothing", "half a header", "half a body"]
)
def test_requests_that_never_end_are_closed_while_the_page_answers(
    tmp_path: Path, sent: bytes
) -> None:
    with serving(tmp_path, "request_s = 1.0\nrequests_per_s = 0.0\n") as page, ExitStack() as stack:
        connections = []
        for number in range(MANY):
            connections.append(opened(page, stack, sent))
            if number % 300 == 299:
                assert page.request("/livez").status == 200
        for connection in connections:
            wait_until(lambda connection=connection: is_closed(connection))
        assert page.request("/metrics").status == 200
        assert page.running()
        assert len(page.log_text()) < LOG_BYTES_MAX + MANY * 200
        assert "Traceback" not in page.log_text()


def test_connections_without_a_tls_handshake_are_closed_while_the_page_answers(
    certificate: Path, tmp_path: Path
) -> None:
    files = "".join(
        f'{name}_file = "{certificate}/{name}.pem"\n' for name in ("certificate", "key")
    )
    authority = certificate / "certificate.pem"
    with (
        serving(tmp_path, f"request_s = 1.0\n{files}", authority=authority) as page,
        ExitStack() as stack,
    ):
        connections = [opened(page, stack) for _ in range(600)]
        assert page.request("/livez").status == 200
        for connection in connections:
            wait_until(lambda connection=connection: is_closed(connection))
        assert "Traceback" not in page.log_text()


def test_a_header_and_a_body_sent_byte_by_byte_do_not_keep_a_connection(tmp_path: Path) -> None:
    with serving(tmp_path, "request_s = 1.0\n") as page, ExitStack() as stack:
        for first in (HALF_A_REQUEST, HALF_A_BODY, ANSWERED_BEFORE_ITS_BODY):
            one = opened(page, stack, first)

            def closed_at_the_next_byte(one: socket.socket = one) -> bool:
                with contextlib.suppress(ConnectionError):
                    one.setblocking(True)
                    one.sendall(b"1")
                return is_closed(one)

            wait_until(closed_at_the_next_byte)


def test_a_response_that_is_not_read_does_not_keep_its_connection(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "request_s = 0.5\nrequests_per_s = 0.0\n") as page,
        socket.socket() as reader,
    ):
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        reader.connect(("127.0.0.1", page.port))
        reader.settimeout(280)
        request = b"GET /page.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        with contextlib.suppress(ConnectionError):
            # until the server has waited long enough for one of its responses to be read
            while True:
                reader.sendall(request)
        assert page.request("/livez").status == 200


def test_with_few_descriptors_the_server_lives_answers_and_reads_its_log(tmp_path: Path) -> None:
    with serving(tmp_path, "request_s = 2.0\n", files_max=128) as page:
        with ExitStack() as stack:
            for _ in range(400):
                opened(page, stack)
            assert page.running()
            assert page.request("/livez").status == 200
        name = {"Content-Type": "application/json"}
        wait_until(lambda: page.request("/readyz").status == 200)
        assert page.request("/v1/clusters/0/name", name, "POST", '{"name": "night"}').status == 404
        assert page.running(), page.log_text()
        assert len(page.log_text()) < LOG_BYTES_MAX


def test_an_aborted_request_is_one_line_of_the_log(tmp_path: Path) -> None:
    aborted = 1000
    with serving(tmp_path, "requests_per_s = 0.0\nconnections_max = 2000\n") as page:
        for _ in range(aborted):
            with page.socket() as one:
                one.sendall(HALF_A_BODY)
        assert page.request("/livez").status == 200
        wait_until(lambda: len(page.events("request_aborted")) == aborted)
        text = page.log_text()
        assert "Traceback" not in text
        assert len(text) < LOG_BYTES_MAX + aborted * 300
        assert all(json.loads(line) for line in text.splitlines())


def test_as_many_event_streams_open_as_may_and_not_one_more(tmp_path: Path) -> None:
    with serving(tmp_path, "requests_per_s = 0.0\n") as page, ExitStack() as stack:
        streams = [opened(page, stack, EVENTS) for _ in range(151)]
        statuses = [stream.recv(12) for stream in streams]
        assert statuses.count(b"HTTP/1.1 200") == SUBSCRIBERS_MAX
        assert statuses.count(b"HTTP/1.1 503") == 151 - SUBSCRIBERS_MAX


def test_one_address_gets_so_many_requests_a_second_and_health_is_always_answered(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, "requests_per_s = 5.0\n") as page:
        answers = [page.request("/v1/privacy") for _ in range(60)]
        refused = [answer for answer in answers if answer.status == 429]
        assert answers[0].status == 200
        assert len(refused) > 1
        assert int(refused[0].headers["retry-after"]) >= 1
        assert page.request("/livez").status == 200
        wait_until(lambda: page.request("/v1/privacy").status == 200)
        assert len(page.events("requests_limited")) == 1


def test_a_request_that_is_not_http_is_one_line_of_the_log(tmp_path: Path) -> None:
    with serving(tmp_path, "requests_per_s = 0.0\n") as page:
        for _ in range(20):
            with page.socket() as one:
                one.sendall(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
                assert one.recv(100).startswith(b"HTTP/1.1 400")
        assert len(page.events("request_malformed")) == 20
        assert not re.search(r"^[^{]", page.log_text(), re.MULTILINE), "each line is an event"
