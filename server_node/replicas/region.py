"""One region as a replica serves it: it absorbs each record into the model that its key names.

The state of a model is kept in parts, small enough for a record of the changelog, that are written
in one transaction. A model whose updates no snapshot shows yet is asked to look at its timers once
the time for a snapshot has come, by a record in the topic of updates, so that the log alone
decides. After every assignment of regions to replicas all models are asked once, because the
replica that would have asked may have ended.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, Final, Protocol

from shoal.config.limits import KIB, UPDATE_RECORD_BYTES_MAX
from shoal.config.settings import Config
from shoal.errors import MessageRejected, ShoalError
from shoal.runtime.checkpoint import OutboxRecord
from shoal.runtime.logs import snapshot_signer
from shoal.server_node.monitoring import ServerMonitoring
from shoal.server_node.replicas.region_model import RegionModel, absorb
from shoal.telemetry.events import log_event
from shoal.telemetry.metrics import ServerMetrics
from shoal.transports.base import Log, Record

PART_BYTES: Final = 768 * KIB
"""bytes of a state in one record of the changelog"""
CHANGELOG_RECORD_BYTES_MAX: Final = UPDATE_RECORD_BYTES_MAX
"""largest record of a changelog: a part, with its key and headers"""
_NUMBER: Final = "parts"


class Store(Protocol):
    """Store that Quix Streams gives a function for the key of its record."""

    def get(self, key: Any, default: Any = None) -> Any: ...

    def get_bytes(self, key: Any, default: Any = None) -> bytes | None: ...

    def set(self, key: Any, value: Any) -> None: ...

    def set_bytes(self, key: Any, value: bytes) -> None: ...

    def delete(self, key: Any) -> None: ...


def load_state(store: Store) -> bytes | None:
    """The state; None if there is none yet."""
    number = store.get(_NUMBER, 0)
    return b"".join(store.get_bytes(part) or b"" for part in range(number)) if number else None


def save_state(store: Store, state: bytes) -> None:
    """Replace the state."""
    before = store.get(_NUMBER, 0)
    parts = [state[start : start + PART_BYTES] for start in range(0, len(state), PART_BYTES)]
    for number, part in enumerate(parts):
        store.set_bytes(number, part)
    # Parts of a state that was longer would stay in the changelog for ever.
    for number in range(len(parts), before):
        store.delete(number)
    # Each write is a record of the changelog, and the number rarely changes.
    if len(parts) != before:
        store.set(_NUMBER, len(parts))


RETRY_S = 2.0
WAIT_MAX_S = 5.0
"""longest wait between two requests for a model that has nothing to publish yet, such as one that
waits for clients"""
STOP_S = 10.0


class Timers:
    """Publishes the requests of one replica, from a thread of its own. Every method may be called
    by any thread."""

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
            # What is due earlier stays so: assignments that follow each other must not put it off.
            self._due |= {
                model: now + model.settings.snapshot_s
                for model in self._models
                if model not in self._due
            }
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
            # It may wait for a broker that is gone: the replica ends without it.
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
                # Until the next timer is due, or a model changes what is due; for ever where
                # nothing is.
                self._changed.wait(min(self._due.values()) - now if self._due else None)
            return None

    def _publish(self, log: Log, models: Sequence[RegionModel]) -> None:
        for model in models:
            request = model.timer_request
            log.publish(request.topic, request.value, request.key, request.headers)
        log.flush()


class Assignments:
    """Logs every assignment, and has all models asked for their timers after it."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._newest: tuple[int, list[str]] = (0, [])

    def look(self, statistics: str) -> None:
        """Take in the newest statistics, which are JSON."""
        found = json.loads(statistics)
        rebalances = found.get("cgrp", {}).get("rebalance_cnt", 0)
        assigned = sorted(
            f"{name}/{partition}"
            for name, topic in found.get("topics", {}).items()
            for partition, about in topic["partitions"].items()
            if name.endswith(".updates") and about.get("fetch_state") == "active"
        )
        if (rebalances, assigned) == self._newest:
            return
        if assigned != self._newest[1]:
            log_event("regions_assigned", partitions=len(assigned), topics=" ".join(assigned))
        self._newest = (rebalances, assigned)
        self._timers.ask_all()


class Region:
    """The models of one federation. What becomes of a record is the same in every replica."""

    def __init__(self, config: Config, log_identity: bytes) -> None:
        """`log_identity` is that of its topic of updates. Raises `SettingsError` for keys that
        cannot be read."""
        self.config = config
        contract = config.contract
        resolved = config.resolved
        models = [
            RegionModel(config, resolved, model, log_identity) for model in resolved.models.values()
        ]
        self.models = {contract.update_key(model.model.name): model for model in models}
        self._monitoring = ServerMonitoring(ServerMetrics(), resolved)
        self._sign = snapshot_signer(config)

    def absorb(self, record: Record, store: Store, timers: Timers) -> Sequence[OutboxRecord]:
        """Absorb a record into the model whose state is in `store`; the records to publish for it.

        Raises `InvalidState`.
        """
        model = self.models.get(record.key or b"")
        if model is None:
            return [self._without_model(record)]
        began = time.perf_counter()
        absorbed = absorb(model, load_state(store), record)
        save_state(store, absorbed.state)
        timers.note(model, absorbed.pending)
        self._monitoring.observe(replace(absorbed.outcome, ingest_s=time.perf_counter() - began))
        for one in absorbed.outcome.ingested:
            # a replica cannot read the log from its start again
            if one.request is not None and one.request.unlearn:
                log_event(
                    "unlearning_refused",
                    logging.WARNING,
                    model=one.model,
                    client=one.request.unlearn,
                )
        return [one._replace(headers=one.headers + self._sign(one)) for one in absorbed.records]

    def _without_model(self, record: Record) -> OutboxRecord:
        wrong = MessageRejected("model", "the key of its record names no model of this federation")
        origin = f"{record.topic}/{record.partition}/{record.offset}"
        log_event(
            "update_rejected",
            logging.WARNING,
            reason=wrong.reason,
            detail=wrong.detail,
            origin=origin,
        )
        any_model = next(iter(self.models.values()))
        return any_model.rejections.record_of(record, wrong)
