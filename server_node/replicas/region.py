"""One region as a replica serves it: it absorbs each record into the model that its key names."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from server_node.monitoring import ServerMonitoring
from server_node.replicas.absorb import RegionModel, absorb
from server_node.replicas.stored_state import Store, load_state, save_state
from server_node.replicas.timers import Timers
from shoal.config.settings import Config
from shoal.errors import MessageRejected
from shoal.runtime.checkpoint import OutboxRecord
from shoal.runtime.signed_snapshots import snapshot_signer
from shoal.telemetry.events import log_event
from shoal.telemetry.metrics import ServerMetrics
from shoal.transports.base import Record


class Region:
    """The models of one federation. What becomes of a record is the same in every replica."""

    def __init__(self, config: Config, log_identity: bytes) -> None:
        """`log_identity` is that of its topic of updates. Raises `SettingsError` for keys that cannot be read."""
        self.config, contract = config, config.contract
        models = [RegionModel(config, model, log_identity) for model in contract.models]
        self.models = {contract.update_key(model.model.name): model for model in models}
        self._monitoring = ServerMonitoring(ServerMetrics(), contract)
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
            if one.unlearn:  # a replica cannot read the log from its start once more
                log_event("unlearning_refused", logging.WARNING, model=one.model, client=one.client)
        return [one._replace(headers=one.headers + self._sign(one)) for one in absorbed.contribution]

    def _without_model(self, record: Record) -> OutboxRecord:
        wrong = MessageRejected("model", "the key of its record names no model of this federation")
        origin = f"{record.topic}/{record.partition}/{record.offset}"
        log_event("update_rejected", logging.WARNING, reason=wrong.reason, detail=wrong.detail, origin=origin)
        any_model = next(iter(self.models.values()))
        return any_model.rejections.record_of(record, wrong)
