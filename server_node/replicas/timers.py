"""Asks models to look at their timers: a record in the topic of updates, so that the log alone decides.

A model whose updates no snapshot shows yet is asked once the time for a snapshot has come. After every assignment of
regions to replicas all models are asked once, because the replica that would have asked may have ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from server_node.replicas.absorb import RegionModel
from shoal.errors import ShoalError
from shoal.telemetry.events import log_event
from shoal.transports.base import Log

RETRY_S = 2.0
WAIT_MAX_S = 5.0
"""between two requests for a model that has nothing to publish yet, as one that waits for more clients"""
STOP_S = 10.0


class Timers:
    """Publishes the requests of one replica, from a thread of its own. Every method may be called by any thread."""

    def __init__(self, models: Sequence[RegionModel], open_log: Callable[[], Log]) -> None:
        """`open_log` opens the log that all topics of updates are in."""
        self._models, self._open_log = models, open_log
        self._due: dict[RegionModel, float] = {}
        """model -> when it is asked; monotonic, seconds"""
        self._asked: Counter[RegionModel] = Counter()
        """how often each has been asked without a snapshot"""
        self._changed = threading.Condition()
        self._stopped = False

    def note(self, model: RegionModel, pending: bool) -> None:
        """A record has been absorbed; `pending` as in `Absorbed`."""
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
            self._due |= {model: now + model.settings.snapshot_s for model in self._models if model not in self._due}
            self._changed.notify()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Requests are published while the context is open."""
        thread = threading.Thread(target=self._run, name="timers", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._stopped = True
                self._changed.notify()
            thread.join(STOP_S)

    def _wait_s(self, model: RegionModel) -> float:
        """Twice as long each time that it has been asked in vain."""
        first = model.settings.snapshot_s
        return max(first, min(WAIT_MAX_S, first * 2.0 ** min(self._asked[model], 30)))

    def _run(self) -> None:
        while not self._stopped:
            try:
                with closing(self._open_log()) as log:
                    while (due := self._next()) is not None:
                        self._publish(log, due)
            except ShoalError as error:
                log_event("retrying", logging.WARNING, error=str(error), retry_s=RETRY_S)
                self.ask_all()
                with self._changed:
                    self._changed.wait_for(lambda: self._stopped, RETRY_S)

    def _next(self) -> list[RegionModel] | None:
        """The models to ask now, once there are any; None when the replica stops."""
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                if due := [model for model, at in self._due.items() if at <= now]:
                    for model in due:
                        del self._due[model]
                        self._asked[model] += 1
                    return due
                self._changed.wait(min(self._due.values()) - now if self._due else None)
            return None

    def _publish(self, log: Log, models: Sequence[RegionModel]) -> None:
        for model in models:
            request = model.timer_request
            log.publish(request.topic, request.value, request.key, request.headers)
        log.flush()
