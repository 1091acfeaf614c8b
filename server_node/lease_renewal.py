"""Renews the lease from a thread of its own, with a log of its own, so that no step of the server can delay it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from server_node.lease import LeaseHolder
from shoal.errors import ShoalError
from shoal.transports.base import Log

STUCK_S = 300.0
"""a server that completes no step for so long does not renew its lease: it is stuck, and another one may take over"""
RETRY_S = 1.0


class LeaseRenewal:
    """The thread that renews one lease. `open_log` opens the log of the federation; it is called in the thread."""

    def __init__(self, holder: LeaseHolder, open_log: Callable[[], Log]) -> None:
        self._holder, self._open_log = holder, open_log
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._checked_at = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Renew the lease, which `LeaseHolder.held` has acquired, until the context ends."""
        self._stop, self._error, self._checked_at = threading.Event(), None, time.monotonic()
        thread = threading.Thread(target=self._run, args=[self._stop], name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def check(self) -> None:
        """Before each step: raises `LeaseHeld` once another server has the lease, and as the log does."""
        self._checked_at = time.monotonic()
        if self._error is not None:
            raise self._error

    def _run(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                try:
                    with closing(self._open_log()) as log:
                        self._renew(log, stop)
                except ShoalError as error:
                    if not error.retriable:
                        self._error = error
                        return
                    stop.wait(RETRY_S)
        except BaseException as error:  # the thread of the server raises it
            self._error = error
            raise

    def _renew(self, log: Log, stop: threading.Event) -> None:
        while not stop.wait(self._holder.renewal_in_s):
            if time.monotonic() < self._checked_at + STUCK_S:
                self._holder.renew(log)
            else:
                stop.wait(RETRY_S)
