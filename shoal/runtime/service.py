"""The life of a serving process: step until told to stop, wait out what is retriable, begin again from memory."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import Protocol

from shoal.errors import ShoalError
from shoal.telemetry.events import log_event

WAIT_FIRST_S = 0.2
WAIT_MAX_S = 10.0


class Node(Protocol):
    """What can be run: one step at a time."""

    def step(self, timeout_s: float = 0.0) -> bool: ...


def run(
    build: Callable[[], AbstractContextManager[Node]],
    stop: threading.Event,
    until_idle_s: float | None = None,
    poll_s: float = 0.25,
) -> None:
    """Build a node and step it until `stop` is set, or until nothing came for `until_idle_s`.

    After a retriable error the node is thrown away and built again from its checkpoint: the same way back as
    after a kill, so there is only one to get right. Other errors end the process.
    """
    wait_s = WAIT_FIRST_S
    tell_systemd("READY=1")
    while not stop.is_set():
        tell_systemd("WATCHDOG=1")
        try:
            with build() as node:
                idle_s = 0.0
                while not stop.is_set():
                    tell_systemd("WATCHDOG=1")
                    if node.step(poll_s):
                        idle_s, wait_s = 0.0, WAIT_FIRST_S
                        continue
                    idle_s += poll_s
                    if until_idle_s is not None and idle_s >= until_idle_s:
                        return
        except ShoalError as error:
            if not error.retriable:
                raise
            log_event("waiting", logging.WARNING, error=str(error), wait_s=wait_s)
            stop.wait(wait_s)
            wait_s = min(2 * wait_s, WAIT_MAX_S)


def tell_systemd(word: str) -> None:
    """What a service of `Type=notify` says to who started it; nothing where that was somebody else.

    READY=1: the file is right, the loop runs. WATCHDOG=1: it still turns.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address and hasattr(socket, "AF_UNIX"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line, suppress(OSError):
            line.sendto(word.encode(), f"\0{address[1:]}" if address.startswith("@") else address)


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM or Ctrl-C sets: the step under way ends, then the process. A second Ctrl-C is at once."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
