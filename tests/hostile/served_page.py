"""A real `shoal server` process with its page on a free port, and plain sockets to attack it
with."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.house.processes import TIMEOUT_S, wait_until
from tests.house.small_federation import write_federation


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes


class ServedPage:
    """A server process that has started to serve its page."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, authority: Path | None) -> None:
        self.process = process
        self._log = log
        self._authority = authority
        wait_until(lambda: self.address() is not None or process.poll() is not None)
        assert process.poll() is None, self.log_text()
        address = self.address()
        assert address is not None
        self.port = int(address.rstrip("/").rpartition(":")[2])

    def address(self) -> str | None:
        """Where the log says that the page is."""
        return next((line["address"] for line in self.events("page_served")), None)

    def log_text(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def events(self, event: str) -> list[dict[str, str]]:
        """The lines of the log about this event."""
        lines = [line for line in self.log_text().splitlines(keepends=True) if line.endswith("}\n")]
        return [parsed for parsed in map(json.loads, lines) if parsed.get("event") == event]

    def running(self) -> bool:
        return self.process.poll() is None

    def socket(self) -> socket.socket:
        """A plain connection to the port."""
        return socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S)

    def request(
        self,
        path: str,
        headers: Mapping[str, str] | None = None,
        method: str = "GET",
        body: str | None = None,
    ) -> Answer:
        """One request on a connection of its own; its host name is 127.0.0.1 unless `headers` has
        another."""
        if self._authority is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        else:
            trusting = ssl.create_default_context(cafile=self._authority)
            connection = http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=TIMEOUT_S, context=trusting
            )
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())


@contextlib.contextmanager
def serving(
    folder: Path, settings: str = "", *, files_max: int | None = None, authority: Path | None = None
) -> Iterator[ServedPage]:
    """`shoal server` on an embedded log in `folder`, with more lines for [server]; killed at the
    end.

    `files_max`: the process may open so many files and sockets at once. `authority`: the page is
    served over TLS, with a certificate that this file vouches for.
    """
    file = write_federation(folder)
    file.write_text(file.read_text(encoding="utf-8") + settings, encoding="utf-8")
    with started(file, ["-m", "shoal"], files_max=files_max, authority=authority) as page:
        yield page


@contextlib.contextmanager
def started(
    file: Path, program: list[str], *, files_max: int | None = None, authority: Path | None = None
) -> Iterator[ServedPage]:
    """The server of a federation file, run by a Python program with the arguments of `shoal`;
    killed at the end."""
    folder = file.parent
    command = [sys.executable, *program, "server", "--config", str(file), "--json"]
    if files_max is not None:
        command = ["sh", "-c", f'ulimit -n {files_max}; exec "$@"', "sh", *command]
    log = folder / f"server-{len(list(folder.glob('server-*.txt')))}.txt"
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd=folder,
            env={
                name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")
            },
        )
    try:
        yield ServedPage(process, log, authority)
    finally:
        process.kill()
        process.wait()
