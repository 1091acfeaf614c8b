"""Worker processes: one function over many jobs.

All processes end when the caller is interrupted.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from multiprocessing.process import BaseProcess
from typing import TypeVar

J = TypeVar("J")
R = TypeVar("R")

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def usable_cores() -> int:
    """Cores this process may run on."""
    # A container or taskset may allow fewer than the machine has. macOS cannot tell.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def spread(work: Callable[[J], R], jobs: Sequence[J], processes: int) -> Iterator[tuple[J, R]]:
    """Each job with its result, in the order in which they finish.

    With one process or one job, all is done in this process. `work` and the jobs must be picklable.
    Raises what `work` raises.
    """
    if len(jobs) <= 1:
        processes = 1
    with closing(Workers(min(processes, len(jobs)))) as workers:
        yield from workers.spread(work, jobs)


class Workers:
    """Processes for the same function over many jobs.

    They are started when there is something to do. They are new processes, independent of the
    threads and open files of this one.
    """

    def __init__(self, processes: int) -> None:
        """Do the jobs in this process if `processes` is 1 or 0."""
        self._processes = processes
        self._pool: ProcessPoolExecutor | None = None
        self._others: set[BaseProcess] = set()

    def spread(self, work: Callable[[J], R], jobs: Sequence[J]) -> Iterator[tuple[J, R]]:
        """See the function `spread`."""
        if self._processes <= 1:
            for job in jobs:
                yield job, work(job)
            return
        if self._pool is None:
            self._others = set(multiprocessing.active_children())
            self._pool = ProcessPoolExecutor(
                self._processes,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_follow_parent,
            )
        try:
            # Workers start as jobs are submitted.
            with _one_thread_each():
                pending = {self._pool.submit(work, job): job for job in jobs}
            for done in as_completed(pending):
                yield pending[done], done.result()
        except BaseException:
            # A job takes minutes on large data, so it is ended at once when the caller stops or
            # presses Ctrl-C.
            self._pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - self._others:
                worker.terminate()
            raise

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def _follow_parent() -> None:
    """Leave interrupts to the parent, and end when it ends, also when it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(
            target=_end_with, args=(parent.join,), name="shoal-parent", daemon=True
        ).start()


def _end_with(parent_ends: Callable[[], None]) -> None:
    parent_ends()
    os._exit(1)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """One thread for each worker: with more, workers on all cores would wait for each other."""
    # Workers inherit the environment, and numpy reads these variables on import.
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
