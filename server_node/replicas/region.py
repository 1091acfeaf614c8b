"""One region as a replica serves it: it absorbs each record into the model that its key names."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from shoal.config.settings import Config
from shoal.errors import MessageRejected
from shoal.runtime.checkpoint import OutboxRecord
from shoal.runtime.logs import snapshot_signer
from shoal.server_node.monitoring import ServerMonitoring
from shoal.server_node.replicas.region_model import RegionModel, absorb
from shoal.server_node.replicas.state_store import Store, load_state, save_state
from shoal.server_node.replicas.timers import Timers
from shoal.telemetry.events import log_event
from shoal.telemetry.metrics import ServerMetrics
from shoal.telemetry.spans import SpanReceivers
from shoal.transports.base import Record


class Region:
    """The models of one federation. What they make of a record is the same in every replica."""

    def __init__(self, config: Config, log_identity: bytes) -> None:
        """`log_identity` is that of its topic of updates. Raises `SettingsError` for keys that
        cannot be read."""
        self.config = config
        resolved = config.resolved
        self.models: dict[bytes, RegionModel] = {}
        """key of the records of a model -> the model"""
        for name, model in resolved.models.items():
            key = config.contract.update_key(name)
            self.models[key] = RegionModel(config, resolved, model, log_identity)
        self.metrics = ServerMetrics()
        self.spans = SpanReceivers()
        """its own: a replica exports those of each region as of its federation"""
        self._monitoring = ServerMonitoring(self.metrics, resolved, spans=self.spans)
        self._sign = snapshot_signer(config)

    def absorb(self, record: Record, store: Store, timers: Timers) -> Sequence[OutboxRecord]:
        """Absorb a record into the model whose state is in `store`; the records to publish for it.

        Raises `InvalidState`.
        """
        model = self.models.get(record.key or b"")
        if model is None:
            # It is set aside and not an error: a writer of the topic could stop all replicas by it.
            return [self._without_model(record)]
        began = time.perf_counter()
        absorbed = absorb(model, load_state(store), record)
        save_state(store, absorbed.state)
        timers.note(model, absorbed.pending)
        self._monitoring.observe(replace(absorbed.outcome, ingest_s=time.perf_counter() - began))
        for outcome in absorbed.outcome.ingested:
            # A replica cannot read the log from its start again.
            if outcome.request is not None and outcome.request.unlearn:
                log_event(
                    "unlearning_refused",
                    logging.WARNING,
                    model=outcome.model,
                    client=outcome.request.unlearn,
                )
        return [
            published._replace(headers=published.headers + self._sign(published))
            for published in absorbed.records
        ]

    def observe_lag(self, topic: str, lag_records: int | None) -> None:
        """Show how many records of its updates are not read yet; None: they are another
        replica's."""
        self._monitoring.observe_lag_alone(topic, lag_records)

    def _without_model(self, record: Record) -> OutboxRecord:
        rejected = MessageRejected(
            "model", "the key of its record names no model of this federation"
        )
        origin = f"{record.topic}/{record.partition}/{record.offset}"
        log_event(
            "update_rejected",
            logging.WARNING,
            reason=rejected.reason,
            detail=rejected.detail,
            origin=origin,
        )
        any_model = next(iter(self.models.values()))
        return any_model.rejections.record_of(record, rejected)
