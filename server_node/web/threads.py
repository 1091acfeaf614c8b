"""Runs what takes long in a thread of its own, so that the server answers other requests meanwhile.

Of the standard library alone: the threads of anyio, which Starlette would use, take 3 MiB for their code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

Result = TypeVar("Result")
Given = TypeVarTuple("Given")


async def in_thread(function: Callable[[*Given], Result], *given: *Given) -> Result:
    """What `function` returns, or raises. A caller that is cancelled meanwhile leaves the thread to itself."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="web-request")
    try:
        return await asyncio.wrap_future(thread.submit(function, *given))
    finally:
        thread.shutdown(wait=False)
