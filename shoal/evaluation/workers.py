"""The same function over many jobs, on several processes, all of which end when the caller is interrupted."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TypeVar

J = TypeVar("J")
R = TypeVar("R")

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(work: Callable[[J], R], jobs: Sequence[J], processes: int) -> Iterator[tuple[J, R]]:
    """Each job with its result, in the order in which they finish; with one process or one job, in this process.

    `work` and the jobs must be picklable: workers are new processes, independent of the threads and open files of this
    one. Raises what `work` raises.
    """
    if min(processes, len(jobs)) <= 1:
        for job in jobs:
            yield job, work(job)
        return
    others = set(multiprocessing.active_children())
    with _one_thread_each():
        pool = ProcessPoolExecutor(
            min(processes, len(jobs)), mp_context=multiprocessing.get_context("spawn"), initializer=_ignore_interrupts
        )
        try:
            pending = {pool.submit(work, job): job for job in jobs}
            for done in as_completed(pending):
                yield pending[done], done.result()
        except BaseException:
            # A job takes minutes on large data, so it is ended at once when the caller stops or presses Ctrl-C.
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """One thread for each worker: workers inherit the environment, and numpy reads these variables on import."""
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
