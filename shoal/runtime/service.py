"""The main loop of a client and of a server.

It steps until it is asked to stop, and builds the node again from its checkpoint after an outage.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import Protocol, TypeVar

from shoal.errors import ShoalError
from shoal.kernels.forms import PROCESS
from shoal.telemetry.events import log_event

# A restart of a broker takes seconds: soon at first, then doubled, so that an outage of hours costs
# nothing.
RETRY_FIRST_S = 0.2
RETRY_MAX_S = 10.0
QUIET_SHARE = 50
QUIET_STEP_S = 1.0
"""a step waits for 1/`QUIET_SHARE` of the time since there was something to do, and never longer
than this: it is also how late the clock's work and an order to stop may be"""
LIVE_S = 120.0
"""a healthy step ends sooner, also when no broker answers: its longest waits are 30 s"""


class Heartbeat:
    """Time of the newest step. `clock` gives seconds and never goes back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()

    def beat(self) -> None:
        """Note that a step begins now."""
        self._at = self._clock()

    @property
    def alive(self) -> bool:
        """Whether the newest step began within the last `LIVE_S` seconds."""
        return self._clock() - self._at < LIVE_S


class Steppable(Protocol):
    """Anything that works in steps: a producer, a client, a server."""

    def step(self, timeout_s: float = 0.0) -> bool:
        """Do what there is to do, waiting up to `timeout_s` seconds for input.

        False when there was nothing.
        """
        ...


class Node(Protocol):
    """A client, a server, a helper or a bridge.

    It keeps a checkpoint, so it can be killed at any instant. Its constructor reads nothing and
    publishes nothing.
    """

    def resume(self) -> None:
        """Make every stage, restore the checkpoint into them and publish its outbox again.

        Once, before a step.
        """
        ...


AnySteppable = TypeVar("AnySteppable", bound=Steppable)
AnyNode = TypeVar("AnyNode", bound=Node)


def start_kernels(*, prefer_numpy: bool = False) -> None:
    """Check and load the kernels as SHOAL_KERNELS says, and log it where they cannot be compiled.

    `prefer_numpy`: for a process that is to stay small, NumPy's form where SHOAL_KERNELS says
    nothing. Raises as `Forms.start`.
    """
    if prefer_numpy:
        PROCESS.prefer_numpy()
    PROCESS.on_problem = lambda why: log_event("kernels_not_compiled", logging.WARNING, error=why)
    PROCESS.start()


@contextmanager
def resumed(opened: AbstractContextManager[AnyNode]) -> Iterator[AnyNode]:
    """Open a node, resume it, and close it at the end.

    At a start, at a restart and after an outage alike: each is tested by the others.
    """
    with opened as node:
        node.resume()
        yield node


@contextmanager
def in_thread(name: str, work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Let a thread of this name work until the context ends.

    `work` gets an event, which is set then, and is waited for: what it has opened is closed.
    """
    stop = threading.Event()
    # A daemon, for an end that does not come by the context: the process must not wait for it.
    thread = threading.Thread(target=work, args=[stop], name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def run(
    build: Callable[[], AbstractContextManager[AnySteppable]],
    stop: threading.Event,
    until_idle_s: float | None = None,
    poll_s: float = 0.25,
    on_step: Callable[[AnySteppable], None] = lambda _: None,
) -> None:
    """Step what `build` gives until `stop` is set or nothing arrived for `until_idle_s` seconds.

    `on_step` is called before every step. An error that it raises counts as one of the step.

    After a retriable error the node is closed and built again from its checkpoint: the same path as
    after a kill, so there is only one recovery to get right. Other errors end the process.
    """
    retry_s = RETRY_FIRST_S
    notify_systemd("READY=1")
    while not stop.is_set():
        notify_systemd("WATCHDOG=1")
        try:
            with build() as node:
                idle_s = 0.0
                while not stop.is_set():
                    notify_systemd("WATCHDOG=1")
                    on_step(node)
                    # A step costs more than the wait for a record within it: a node without
                    # records for long takes fewer steps, and a record still ends the wait.
                    wait_s = max(poll_s, min(idle_s / QUIET_SHARE, QUIET_STEP_S))
                    if until_idle_s is not None:
                        wait_s = poll_s
                    if node.step(wait_s):
                        idle_s = 0.0
                        retry_s = RETRY_FIRST_S
                        continue
                    idle_s += wait_s
                    if until_idle_s is not None and idle_s >= until_idle_s:
                        return
        except ShoalError as error:
            if not error.retriable:
                raise
            log_event("retrying", logging.WARNING, error=str(error), retry_s=retry_s)
            stop.wait(retry_s)
            # Reset by a step that did something, not by a start: a node that fails at once is tried
            # ever less often.
            retry_s = min(2 * retry_s, RETRY_MAX_S)


def notify_systemd(state: str) -> None:
    """Send `state` to systemd if it runs this process as a service of `Type=notify`; do nothing
    otherwise.

    READY=1: the configuration is valid and the loop runs. WATCHDOG=1: the loop is not stuck.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address or not hasattr(socket, "AF_UNIX"):
        return
    if address.startswith("@"):
        # An abstract socket: the kernel has a zero byte where systemd writes "@".
        address = f"\0{address[1:]}"
    # A supervisor that is gone must not end the process that it watched.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd, suppress(OSError):
        systemd.sendto(state.encode(), address)


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM or Ctrl-C sets, so that the process ends after the current step.

    A second Ctrl-C raises `KeyboardInterrupt` at once.
    """
    stop = threading.Event()

    def request_stop(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    handlers_before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        handlers_before[number] = signal.signal(number, request_stop)
    try:
        yield stop
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)
