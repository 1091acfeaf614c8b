"""An HTTP client of an application that needs no socket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
from starlette.applications import Starlette

PROBLEM = {"type", "title", "status", "detail"}
"""fields of an error"""


class WebClient:
    """Requests to an application, one at a time."""

    def __init__(
        self, app: Starlette, raise_errors: bool = True, address: str = "127.0.0.1"
    ) -> None:
        """`raise_errors`: an unhandled exception of the application is raised here, as a server
        would log it.

        `address` is that of the client.
        """
        self._app = app
        self._raise_errors = raise_errors
        self._address = address

    def get(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return asyncio.run(self._response("GET", path, headers=headers))

    def post(
        self,
        path: str,
        json: Any = None,
        content: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        return asyncio.run(
            self._response("POST", path, json=json, content=content, headers=headers)
        )

    async def _response(self, method: str, path: str, **parts: Any) -> httpx.Response:
        transport = httpx.ASGITransport(
            self._app, raise_app_exceptions=self._raise_errors, client=(self._address, 50_000)
        )
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, **parts)
