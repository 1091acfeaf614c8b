"""Reads the body of a request, up to a limit."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request


async def read_body(request: Request, bytes_max: int) -> bytes:
    """The whole body. Raises `HTTPException` (413) for a longer one."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > bytes_max:
            raise HTTPException(413, f"the body is too large; send at most {bytes_max} bytes at a time")
    return bytes(body)
