"""An HTTP client of an application that needs no socket."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from starlette.applications import Starlette


class WebClient:
    """Requests to an application, one at a time."""

    def __init__(self, app: Starlette, raise_errors: bool = True) -> None:
        """`raise_errors`: an unhandled exception of the application is raised here, as a server would log it."""
        self._app, self._raise_errors = app, raise_errors

    def get(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return asyncio.run(self._response("GET", path, headers=headers))

    def post(self, path: str, json: Any = None, content: str | bytes | None = None) -> httpx.Response:
        return asyncio.run(self._response("POST", path, json=json, content=content))

    async def _response(self, method: str, path: str, **parts: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=self._raise_errors)
        async with httpx.AsyncClient(transport=transport, base_url="http://shoal") as client:
            return await client.request(method, path, **parts)
