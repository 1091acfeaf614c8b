"""The write endpoint of InfluxDB: `/write` of version 1 and `/api/v2/write` of version 2.

A write is answered once its readings are stored, so that a sender which repeats what was not
answered loses nothing.
"""

from __future__ import annotations

import hmac
import json
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Final
from urllib.parse import parse_qs, urlsplit

from shoal import __version__
from shoal.errors import LogUnavailable
from shoal.producers.files.line_protocol import PRECISIONS
from shoal.producers.influx.settings import InfluxSettings, host_and_port

WRITES_HELD_MAX: Final = 64
"""most writes that wait to be stored; further ones are told to come again"""
STORE_S: Final = 30.0
"""seconds after which a write that is not stored is told to come again"""
SOCKET_S: Final = 20.0
"""seconds without a byte after which a sender's connection is closed"""


class Write:
    """One write on its way into the readings logs."""

    def __init__(self, text: str, unit_ns: int) -> None:
        self.text = text
        self.unit_ns = unit_ns
        """nanoseconds of the unit of its times"""
        self.faulty_lines = 0
        """lines that were no points"""
        self.stored = Event()


class Endpoint:
    """Receives writes in threads of its own; `take` gives them one by one."""

    def __init__(self, settings: InfluxSettings, token: str) -> None:
        """Bind the address; `token` is that of a write, "" for none.

        Raises `LogUnavailable` where the address is in use, so that it is tried again.
        """
        self._writes: Queue[Write] = Queue(WRITES_HELD_MAX)
        host, port = host_and_port(settings.listen)
        try:
            self._server = _Server((host, port), settings.body_bytes_max, token, self._writes)
        except OSError as error:
            raise LogUnavailable(
                f"[influx] listen = {settings.listen}: {error.strerror or error}"
            ) from None
        self.port: int = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def take(self, timeout_s: float) -> Write | None:
        """The next write; None when none came for this long."""
        try:
            return self._writes.get(timeout=timeout_s) if timeout_s else self._writes.get_nowait()
        except Empty:
            return None

    def close(self) -> None:
        """Receive no more; writes that were not stored get no answer, and are repeated."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self, address: tuple[str, int], body_bytes_max: int, token: str, writes: Queue[Write]
    ) -> None:
        super().__init__(address, _Handler)
        self.body_bytes_max = body_bytes_max
        self.token = token
        self.writes = writes


class _Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = SOCKET_S
    server: _Server

    def do_GET(self) -> None:
        """Answer whether the endpoint is there, as clients of InfluxDB ask."""
        path = urlsplit(self.path).path
        if path == "/ping":
            self._answer(204)
        elif path == "/health":
            self._answer(200, {"name": "shoal", "status": "pass"})
        elif path == "/query":
            # Telegraf's output for version 1 asks for its database when it starts.
            self._answer(200, {"results": []})
        else:
            self._answer(404, {"error": "only writes are taken: /write and /api/v2/write"})

    do_HEAD = do_GET  # noqa: N815 - the name that the standard library calls

    def do_POST(self) -> None:
        """Take a write."""
        url = urlsplit(self.path)
        try:
            body = self._body()
            if url.path == "/query":
                self._answer(200, {"results": []})
                return
            if url.path not in ("/write", "/api/v2/write"):
                raise _Refused(404, "only writes are taken: /write and /api/v2/write")
            self._check_sender()
            precision = parse_qs(url.query).get("precision", ["ns"])[0]
            if precision not in PRECISIONS:
                raise _Refused(400, f"precision: one of {', '.join(PRECISIONS)}")
            try:
                write = Write(body.decode("utf-8"), PRECISIONS[precision])
            except UnicodeDecodeError:
                raise _Refused(400, "the body is no UTF-8 text") from None
            self._store(write)
        except _Refused as refused:
            # What is left of the body would be read as the next request.
            self.close_connection = True
            self._answer(refused.status, {"error": str(refused)})

    def _store(self, write: Write) -> None:
        try:
            self.server.writes.put_nowait(write)
        except Full:
            raise _Refused(503, "too many writes wait; send it again") from None
        if not write.stored.wait(STORE_S):
            raise _Refused(503, "not stored yet; send it again")
        if write.faulty_lines:
            # As InfluxDB answers: the other points are stored, and the write is not repeated.
            reason = f"partial write: {write.faulty_lines} lines are no line protocol; rest stored"
            self._answer(400, {"error": reason})
        else:
            self._answer(204)

    def _check_sender(self) -> None:
        # A page in a browser on this machine can send simple requests to a loopback address.
        if self.headers.get("Origin") is not None:
            raise _Refused(403, "writes from pages are refused")
        token = self.server.token
        given = self.headers.get("Authorization", "").removeprefix("Token ").strip()
        if token and not hmac.compare_digest(given.encode(), token.encode()):
            raise _Refused(401, "Authorization: Token ... is missing or wrong")

    def _body(self) -> bytes:
        most = self.server.body_bytes_max
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = self._chunks(most)
        else:
            length = self.headers.get("Content-Length", "0")
            if not length.isdigit() or int(length) > most:
                raise _Refused(413, f"a write has at most {most} bytes")
            body = self.rfile.read(int(length))
        if self.headers.get("Content-Encoding", "").lower() != "gzip":
            return body
        try:
            inflate = zlib.decompressobj(wbits=31)
            plain = inflate.decompress(body, most + 1)
        except zlib.error:
            raise _Refused(400, "the body is no gzip") from None
        if len(plain) > most:
            raise _Refused(413, f"a write has at most {most} bytes")
        return plain

    def _chunks(self, most: int) -> bytes:
        body = b""
        while True:
            try:
                size = int(self.rfile.readline(64).split(b";")[0], 16)
            except ValueError:
                raise _Refused(400, "a chunk has no length") from None
            if size < 0 or len(body) + size > most:
                raise _Refused(413, f"a write has at most {most} bytes")
            body += self.rfile.read(size)
            self.rfile.readline(64)
            if not size:
                return body

    def _answer(self, status: int, content: dict[str, object] | None = None) -> None:
        body = json.dumps(content).encode() if content is not None else b""
        self.send_response_only(status)
        self.send_header("X-Influxdb-Version", f"shoal-{__version__}")
        if status == 503:
            self.send_header("Retry-After", "1")
        if body:
            self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Log nothing: the line of a request could contain anything."""
