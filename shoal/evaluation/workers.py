"""The same function over many jobs, on all cores, with nothing left running when somebody presses Ctrl-C."""

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
    """Each job with its result, in the order they finish; in this process when one is enough.

    `work` and the jobs must be picklable: workers are started afresh, so that threads and open files of
    this process do not matter to them. What `work` raises is raised here.
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
            promised = {pool.submit(work, job): job for job in jobs}
            for done in as_completed(promised):
                yield promised[done], done.result()
        except BaseException:
            # A job takes minutes on large data: whoever stops waiting, or Ctrl-C, ends it now.
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
    """Workers inherit the environment when they start, and numpy reads it when it is imported."""
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
