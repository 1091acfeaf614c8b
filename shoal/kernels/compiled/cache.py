"""Numba that takes functions from its cache and compiles none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from numba.core.event import Event, Listener, install_listener

from shoal.kernels.compiled import NotInCache


class _Refusal(Listener):  # type: ignore[misc]  # Numba has no types
    """Refuses what one thread begins to compile; other threads may be a user's own."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def on_start(self, event: Event) -> None:
        """Numba calls this where it has looked for a function in its cache and not found it."""
        if threading.get_ident() == self._thread:
            raise NotInCache

    def on_end(self, event: Event) -> None:
        """Nothing was refused, or it was refused at its start."""


@contextmanager
def without_compiling() -> Iterator[None]:
    """Within it this thread compiles no function: `NotInCache` is raised where one is not in
    Numba's cache."""
    with install_listener("numba:compile", _Refusal()):
        yield
