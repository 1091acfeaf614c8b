"""The main loop: retriable errors rebuild the node after a wait, all others end the process."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.errors import InvalidState, LogError, LogUnavailable, ShoalError
from shoal.runtime.service import run, stopped_by_signals


class Script:
    """A node whose steps are given: True, False, or an error to raise. It counts how often it is
    built."""

    def __init__(
        self, *steps: bool | ShoalError, built: tuple[ShoalError | None, ...] = ()
    ) -> None:
        self.steps = list(steps)
        self.built = list(built)
        self.built_count = 0
        self.closed_count = 0
        self.waited: list[float] = []

    @contextmanager
    def build(self) -> Iterator[Script]:
        self.built_count += 1
        trouble = self.built.pop(0) if self.built else None
        if trouble is not None:
            raise trouble
        try:
            yield self
        finally:
            self.closed_count += 1

    def step(self, timeout_s: float = 0.0) -> bool:
        self.waited.append(timeout_s)
        happens = self.steps.pop(0) if self.steps else False
        if isinstance(happens, ShoalError):
            raise happens
        return happens


@pytest.fixture
def stop() -> threading.Event:
    """A stop event whose `wait` returns at once."""

    class Impatient(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return super().wait(0)

    return Impatient()


def test_a_stop_before_the_start_builds_nothing(stop: threading.Event) -> None:
    stop.set()
    script = Script()
    run(script.build, stop)
    assert script.built_count == 0


def test_it_steps_until_it_was_idle_for_long_enough(stop: threading.Event) -> None:
    script = Script(True, False, False, True)
    run(script.build, stop, until_idle_s=0.75, poll_s=0.25)
    assert script.waited == [0.25] * 7
    assert (script.built_count, script.closed_count) == (1, 1)


def test_it_ends_also_when_it_is_idle_from_the_beginning(stop: threading.Event) -> None:
    script = Script()
    run(script.build, stop, until_idle_s=0.0)
    assert len(script.waited) == 1


def test_a_stop_ends_it_after_the_current_step(stop: threading.Event) -> None:
    script = Script()
    step = script.step

    def last(timeout_s: float = 0.0) -> bool:
        if len(script.waited) == 3:
            stop.set()
        return step(timeout_s)

    script.step = last  # type: ignore[method-assign]  # from here on
    run(script.build, stop)
    assert len(script.waited) == 4
    assert script.closed_count == 1


def test_the_longer_nothing_comes_the_longer_a_step_waits_up_to_a_second(
    stop: threading.Event,
) -> None:
    script = Script(*[False] * 400, True, False)
    step = script.step

    def last(timeout_s: float = 0.0) -> bool:
        if not script.steps:
            stop.set()
        return step(timeout_s)

    script.step = last  # type: ignore[method-assign]  # from here on
    run(script.build, stop)
    quiet = script.waited[:401]
    assert quiet == sorted(quiet)
    assert (quiet[0], quiet[-1]) == (0.25, 1.0)
    assert script.waited[401] == 0.25, "something has come"


def test_after_a_retriable_error_a_new_node_is_built(stop: threading.Event) -> None:
    script = Script(True, LogUnavailable("away"), LogUnavailable("away"), True)
    run(script.build, stop, until_idle_s=0.0)
    assert (script.built_count, script.closed_count) == (3, 3)


def test_building_is_retried_after_a_retriable_error(stop: threading.Event) -> None:
    script = Script(built=(LogUnavailable("away"), LogUnavailable("away"), None))
    run(script.build, stop, until_idle_s=0.0)
    assert (script.built_count, script.closed_count) == (3, 1)


def test_retry_intervals_grow_to_a_limit_and_start_again_after_success() -> None:
    waits: list[float] = []

    class Recording(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waits.append(timeout)
            return False

    away = [LogUnavailable("away")] * 8
    run(Script(*away, True, LogUnavailable("away")).build, Recording(), until_idle_s=0.0)
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 0.2]


def test_the_hook_is_called_with_the_node_before_every_step(stop: threading.Event) -> None:
    script = Script(True, False)
    seen: list[tuple[Script, int]] = []
    run(
        script.build,
        stop,
        until_idle_s=0.5,
        on_step=lambda node: seen.append((node, len(node.waited))),
    )
    assert seen == [(script, steps) for steps in range(len(script.waited))]


def test_an_error_of_the_hook_is_one_of_the_step(stop: threading.Event) -> None:
    script = Script(True)
    errors = [LogUnavailable("away")]

    def fail_once(_: Script) -> None:
        if errors:
            raise errors.pop()

    run(script.build, stop, until_idle_s=0.0, on_step=fail_once)
    assert (script.built_count, script.closed_count) == (2, 2)
    with pytest.raises(InvalidState):
        run(script.build, stop, on_step=lambda _: (_ for _ in ()).throw(InvalidState("damaged")))


@pytest.mark.parametrize("error", [InvalidState("damaged"), LogError("too large")])
def test_other_errors_end_it(stop: threading.Event, error: ShoalError) -> None:
    script = Script(True, error, True)
    with pytest.raises(type(error)):
        run(script.build, stop)
    assert (script.built_count, script.closed_count) == (1, 1)
    with pytest.raises(type(error)):
        run(Script(built=(error,)).build, stop)


def test_a_stop_while_waiting_ends_it() -> None:
    class Stopped(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            self.set()
            return True

    script = Script(LogUnavailable("away"))
    run(script.build, Stopped())
    assert script.built_count == 1


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_the_first_signal_sets_stop_and_the_second_raises() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with stopped_by_signals() as stop:
        assert not stop.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


# Notifications to systemd.


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_notified_of_the_start_and_of_every_step(
    stop: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    name = f"shoal-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name}" if abstract else name)
        systemd.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if abstract else name)
        run(Script(True, False).build, stop, until_idle_s=0.5)
        received = [systemd.recv(100) for _ in range(4)]
    assert received == [b"READY=1", *[b"WATCHDOG=1"] * 3]


def test_a_notify_socket_that_is_gone_is_ignored(
    stop: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    run(Script(True).build, stop, until_idle_s=0.5)
