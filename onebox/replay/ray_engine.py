"""The engine `ray`: tasks on a Ray cluster, or on Ray started on this machine. Needs the extra
`ray`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from shoal.errors import MissingExtra, ShoalError
from shoal.onebox.replay.engine import learn_from_files
from shoal.onebox.replay.plan import ReplayPlan
from shoal.onebox.replay.results import PartSummary

J = TypeVar("J")
R = TypeVar("R")
STORE_BYTES = 256 * 1024 * 1024
"""bytes of Ray's object store on this machine; readings travel in files, so little is in it"""
START_TRIES = 3
"""most attempts to start Ray on this machine"""


class RayEngine:
    """Ray tasks, one for each piece or part."""

    def __init__(self, workers: int, address: str | None = None) -> None:
        """`address` of a running cluster; None: Ray is started on this machine, for loopback alone."""
        self._ray = ray = _import_ray(for_loopback=address is None)
        if address is not None:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
            return
        options = {
            "num_cpus": workers,
            "include_dashboard": False,
            "logging_level": logging.ERROR,
            "log_to_driver": False,
            "object_store_memory": STORE_BYTES,
            "_node_ip_address": "127.0.0.1",
        }
        for left in reversed(range(START_TRIES)):
            try:
                ray.init(**options)
                break
            except Exception:
                # Ray gives its services 30 s to start, and raises nothing more specific: a busy
                # machine needs longer.
                ray.shutdown()
                if not left:
                    raise

    def spread(self, work: Callable[[J], R], jobs: Sequence[J]) -> Iterator[R]:
        """See `Engine.spread`."""
        ray = self._ray
        task = ray.remote(num_cpus=1)(_run)
        shared = ray.put(work)
        waiting = [task.remote(shared, job) for job in jobs]
        while waiting:
            # One at a time, in the order in which they end: a failed one is reported at once.
            done, waiting = ray.wait(waiting, num_returns=1)
            try:
                yield ray.get(done[0])
            except ray.exceptions.RayTaskError as failed:
                if isinstance(failed.cause, ShoalError):
                    raise failed.cause from None
                raise

    def learn(self, plan: ReplayPlan, parts: Sequence[int]) -> Iterator[PartSummary]:
        """See `Engine.learn`."""
        return learn_from_files(self, plan, parts)

    def close(self) -> None:
        """See `Engine.close`; Ray ends if it was started here."""
        self._ray.shutdown()


def _import_ray(for_loopback: bool) -> Any:
    """The module ray, which reads these variables when it is imported. Raises `MissingExtra`."""
    # Ray reports its use to its makers unless this is set.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if for_loopback:
        # Otherwise Ray on Linux listens on all addresses of the machine, whatever it is given as
        # its own.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray  # noqa: PLC0415 - an extra, and see above
    except ImportError:
        raise MissingExtra("--engine ray", "ray") from None
    return ray


def _run(work: Callable[[J], R], job: J) -> R:
    return work(job)
