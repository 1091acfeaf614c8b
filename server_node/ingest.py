"""Hearing one record: check it at the border, give it to its model, or set it aside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from server_node.models.rounds import RoundsModel
from server_node.models.streaming import StreamingModel
from server_node.monitoring import ServerMonitoring
from server_node.reassembly import Reassembly
from shoal.config.contract import Contract
from shoal.errors import MessageRejected
from shoal.protocol.messages import Rejected, Update, Wake
from shoal.protocol.signatures import ClientKeys
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import OutboxRecord
from shoal.transports.base import Record


class Ingest:
    """Gives each record of the updates to the model it is for."""

    def __init__(
        self,
        contract: Contract,
        border: Validator,
        models: Mapping[str, StreamingModel | RoundsModel],
        joining: Reassembly,
        counting: ServerMonitoring,
        clock: Callable[[], float],
        keys: ClientKeys | None = None,
    ) -> None:
        """`keys` are the clients' secrets; None: nobody needs to sign."""
        self._rejected_topic = contract.rejected_topic
        self._border = border
        self._models = models
        self._joining = joining
        self._counting = counting
        self._clock = clock
        self._keys = keys

    def hear(self, record: Record) -> Sequence[OutboxRecord]:
        """Absorb one record; what is rejected becomes a word for the rejected topic."""
        self._counting.reading(record)
        update: Update | None = None
        try:
            if ("type", Wake.TYPE.encode()) in record.headers:
                self._wake(Wake.decode(record.value, record.headers))
                return []
            update = Update.decode(record.value, record.headers)
            if self._keys is not None:
                self._keys.check(update.client, record.topic, record.value or b"", record.headers)
            self._border.check_update(update)
            self._take_in(update, record.value or b"")
            self._counting.waiting(len(self._joining))
        except MessageRejected as rejected:
            return [self._set_aside(record, rejected, update)]
        return []

    def _take_in(self, update: Update, value: bytes) -> None:
        model, now = self._models[update.model], self._clock()
        if update.chunks > 1:
            if model.clients.knows(update.client, update.sequence):
                return self._counting.heard(update, False, now)
            whole = self._joining.take(update, value)
            if whole is None:
                return self._counting.chunk()
            # Each chunk can be true, and all of them together too large to be.
            self._border.check_update(whole)
            update = whole
        new = model.hear(update, now)
        if new:
            self._joining.drop(update.model, update.client)
        return self._counting.heard(update, new, now)

    def _wake(self, wake: Wake) -> None:
        self._border.check_wake(wake)
        model = self._models[wake.model]
        assert isinstance(model, RoundsModel), "the border lets nobody wake what has no rounds"
        model.wake()

    def _set_aside(self, record: Record, rejected: MessageRejected, update: Update | None) -> OutboxRecord:
        self._counting.set_aside(record, rejected, update)
        aside = Rejected(
            record.value, record.key, rejected.reason, rejected.detail, *record[:3], original_headers=record.headers
        )
        # No value would mean that nothing was set aside under this key: it is kept as an empty one.
        return OutboxRecord(self._rejected_topic, aside.value or b"", aside.record_key, aside.headers)
