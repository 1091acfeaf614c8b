"""Numba's cache of compiled kernels, looked into by a process that must not compile.

Not among the files of `shoal.kernels.compiled`, of which each is a part of the cache's key.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class NotInCache(Exception):
    """Numba's cache lacks a kernel that must not be compiled now."""


@contextmanager
def without_compiling() -> Iterator[None]:
    """Within it this thread compiles no function: `NotInCache` is raised where one is not in
    Numba's cache."""
    from numba.core.event import Event, Listener, install_listener  # noqa: PLC0415 - loads Numba

    this_thread = threading.get_ident()

    class Refusal(Listener):  # type: ignore[misc]  # Numba has no types
        """Refuses what this thread begins to compile; others may compile a user's own."""

        def on_start(self, event: Event) -> None:
            """Numba calls this where it has not found a function in its cache."""
            if threading.get_ident() == this_thread:
                raise NotInCache

        def on_end(self, event: Event) -> None:
            """What was compiled, or refused, has ended."""

    with install_listener("numba:compile", Refusal()):
        yield
