"""Timers of the models of a replica: requests to look whether a snapshot is due.

A model whose updates no snapshot shows yet is asked to look at its timers once the time for a
snapshot has come. The request is a record in the topic of updates, so that the log alone decides
what a model does. After every assignment of regions to replicas all models are asked once, because
the replica that would have asked may have ended.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

from shoal.errors import ShoalError
from shoal.server_node.replicas.region_model import RegionModel
from shoal.telemetry.events import log_event
from shoal.transports.base import Log

RETRY_S = 2.0
WAIT_MAX_S: Final = 5.0
"""longest wait between two requests for a model that has nothing to publish yet, such as one that
waits for clients"""
DOUBLINGS_MAX: Final = 30
"""doublings of a wait: more would overflow a float, and the longest wait comes long before"""
STOP_S: Final = 10.0


class Timers:
    """Publishes the requests of one replica, from a thread of its own.

    Every method may be called by any thread.
    """

    def __init__(self, models: Sequence[RegionModel], open_log: Callable[[], Log]) -> None:
        """`open_log` opens the log that all topics of updates are in."""
        self._models = models
        self._open_log = open_log
        self._due: dict[RegionModel, float] = {}
        """model -> when it is asked; monotonic, seconds"""
        self._asked: Counter[RegionModel] = Counter()
        """times that each has been asked without a snapshot"""
        self._changed = threading.Condition()
        self._stopped = False

    def note(self, model: RegionModel, pending: bool) -> None:
        """Note that a model has absorbed a record; `pending` as in `Absorbed`."""
        with self._changed:
            if not pending:
                self._due.pop(model, None)
                self._asked.pop(model, None)
            elif model not in self._due:
                self._due[model] = time.monotonic() + self._wait_s(model)
                self._changed.notify()

    def ask_all(self) -> None:
        """Ask every model, soon."""
        with self._changed:
            now = time.monotonic()
            for model in self._models:
                # What is due earlier stays so: assignments that follow each other must not put it
                # off.
                self._due.setdefault(model, now + model.settings.snapshot_s)
            self._changed.notify()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Publish requests while the context is open."""
        thread = threading.Thread(target=self._run, name="timers", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._stopped = True
                self._changed.notify()
            # It may wait for a broker that is gone: the replica ends without it.
            thread.join(STOP_S)

    def _wait_s(self, model: RegionModel) -> float:
        """Twice as long each time that it has been asked in vain."""
        first_s = model.settings.snapshot_s
        doublings = min(self._asked[model], DOUBLINGS_MAX)
        return max(first_s, min(WAIT_MAX_S, first_s * 2.0**doublings))

    def _run(self) -> None:
        while not self._stopped:
            try:
                with closing(self._open_log()) as log:
                    self._publish_until_stopped(log)
            except ShoalError as error:
                log_event("retrying", logging.WARNING, error=str(error), retry_s=RETRY_S)
                # What was due has been taken out of the list, and is perhaps not published.
                self.ask_all()
                with self._changed:
                    self._changed.wait_for(lambda: self._stopped, RETRY_S)

    def _publish_until_stopped(self, log: Log) -> None:
        while True:
            models = self._next()
            if models is None:
                return
            for model in models:
                request = model.timer_request
                log.publish(request.topic, request.value, request.key, request.headers)
            log.flush()

    def _next(self) -> list[RegionModel] | None:
        """The models to ask now, once there are any; None when the replica stops."""
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                due = [model for model, at in self._due.items() if at <= now]
                for model in due:
                    del self._due[model]
                    self._asked[model] += 1
                if due:
                    return due
                # Until the next timer is due, or a model changes what is due; for ever where
                # nothing is.
                self._changed.wait(min(self._due.values()) - now if self._due else None)
            return None


class Assignments:
    """Logs every assignment, and has all models asked for their timers after it."""

    def __init__(
        self,
        timers: Timers,
        observe: Callable[[Mapping[str, Mapping[int, int]]], None] = lambda _: None,
    ) -> None:
        """`observe` gets what is assigned with each statistics, topic -> partition -> records that
        are not read yet."""
        self._timers = timers
        self._observe = observe
        self._newest: tuple[int, list[str]] = (0, [])

    def take_statistics(self, text: str) -> None:
        """Take in the newest statistics of the consumer, which are JSON."""
        statistics = json.loads(text)
        rebalances = statistics.get("cgrp", {}).get("rebalance_cnt", 0)
        assigned: list[str] = []
        lags: dict[str, dict[int, int]] = {}
        for name, topic in statistics.get("topics", {}).items():
            if not name.endswith(".updates"):
                continue
            for partition, about in topic["partitions"].items():
                if about.get("fetch_state") == "active":
                    assigned.append(f"{name}/{partition}")
                    lags.setdefault(name, {})[int(partition)] = _lag(about)
        assigned.sort()
        self._observe(lags)
        if (rebalances, assigned) == self._newest:
            return
        if assigned != self._newest[1]:
            log_event("regions_assigned", partitions=len(assigned), topics=" ".join(assigned))
        self._newest = (rebalances, assigned)
        self._timers.ask_all()


def _lag(about: Mapping[str, Any]) -> int:
    """Records of a partition that are not read yet, by its statistics in librdkafka.

    Not its `consumer_lag`, which goes by offsets that the consumer itself commits: those of a
    replica are committed by its producer, in transactions.
    """
    end = int(about.get("ls_offset", -1))
    fetched = int(about.get("next_offset", -1))
    waiting = int(about.get("fetchq_cnt", 0))
    if min(end, fetched) < 0:
        return waiting
    return max(0, end - fetched) + waiting
