"""A token endpoint of OAuth 2.0 on this machine, which gives clients unsigned tokens, and the ways
in which real ones fail."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

PATH = "/realms/plant/protocol/openid-connect/token"


def unsigned_token(seconds: float, user: str = "attic") -> str:
    """A bearer token that ends after so many seconds, unsigned."""
    now = time.time()
    # A broker whose clock is behind, or that is fast, must not take it for one of the future.
    parts = ({"alg": "none"}, {"sub": user, "iat": now - 60, "exp": now + seconds})
    return (
        ".".join(
            base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
            for part in parts
        )
        + "."
    )


class Endpoint:
    """What the endpoint answers, and what it was asked."""

    def __init__(self, client: str, secret: str, lifetime_s: float) -> None:
        self.client = client
        self.secret = secret
        self.lifetime_s = lifetime_s
        self.forms: list[dict[str, str]] = []
        """the form of each request"""
        self.tokens: list[str] = []
        """the tokens that were given"""
        self.instead: tuple[int, dict[str, str], bytes] | None = None
        """status, headers and content to answer with in place of a token"""
        self.port = 0

    def url(self, scheme: str = "http") -> str:
        """Where it is."""
        return f"{scheme}://127.0.0.1:{self.port}{PATH}"

    def answer(self, login: str, form: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content for a request."""
        self.forms.append(form)
        if self.instead is not None:
            return self.instead
        kind, _, encoded = login.partition(" ")
        client, _, secret = base64.b64decode(encoded).decode().partition(":")
        known = (unquote_plus(client), unquote_plus(secret)) == (self.client, self.secret)
        if kind != "Basic" or not known:
            return _as_json(401, {"error": "invalid_client", "error_description": secret})
        if form.get("grant_type") != "client_credentials":
            return _as_json(400, {"error": "unsupported_grant_type"})
        token = unsigned_token(self.lifetime_s)
        self.tokens.append(token)
        given = {"access_token": token, "token_type": "Bearer", "expires_in": self.lifetime_s}
        return _as_json(200, given)


def _as_json(status: int, content: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    return status, {"Content-Type": "application/json"}, json.dumps(content).encode()


@contextmanager
def token_endpoint(
    client: str = "attic",
    secret: str = "battery staple",
    lifetime_s: float = 300.0,
    certificate: Path | None = None,
) -> Iterator[Endpoint]:
    """An endpoint that serves within the context; `certificate`: with its key, in one file (PEM),
    for TLS."""
    endpoint = Endpoint(client, secret, lifetime_s)

    class Requests(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", "0"))
            form = dict(parse_qsl(self.rfile.read(length).decode()))
            status, headers, content = endpoint.answer(self.headers.get("Authorization", ""), form)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *about: Any) -> None:
            """Nothing: requests are in `forms`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    endpoint.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
