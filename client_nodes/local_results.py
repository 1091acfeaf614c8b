"""What a client writes to its own log about each reading: why it was rejected, or its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from client_nodes.intake import Batch, RejectedReading
from shoal.protocol.messages import envelope_headers
from shoal.protocol.site_events import SiteEvent
from shoal.protocol.topics import REJECTED
from shoal.runtime.checkpoint import OutboxRecord
from shoal.transports.base import Log


class Labelled(NamedTuple):
    """What labelling did in one step."""

    labels: int = 0
    """number of labels written"""
    backlog: int = 0
    """number of earlier readings read again to be labelled"""
    records: Sequence[OutboxRecord] = ()
    """records to publish; none without `publish_labels`"""
    events: Sequence[SiteEvent] = ()
    """what was found in the labels"""


class ReadingLabels(Protocol):
    """Labels readings (`client_nodes.labelling.labeller`). A client that does not label does not load it."""

    @property
    def has_work(self) -> bool:
        """Whether earlier readings can be labelled now."""
        ...

    @property
    def novel(self) -> Mapping[str, int]:
        """model -> novel readings since the client was first started."""
        ...

    def label(self, batch: Batch) -> Labelled:
        """Write the labels of a batch and of a piece of the earlier readings that have none; the caller flushes."""
        ...

    def reset_identities(self) -> None:
        """Forget what is known by lasting identity: another log of the federation begins with others."""
        ...

    def state(self) -> dict[str, Any]:
        """What the checkpoint has of it."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        ...


class LocalResults:
    """Writes rejected readings and labels to the client's own log, keyed by the reading's place.

    So writing them again after a kill changes nothing in the compacted view.
    """

    def __init__(self, readings: Log, labels: ReadingLabels | None) -> None:
        self._readings = readings
        self._labels = labels

    def write(self, batch: Batch) -> Labelled:
        """Write what there is to write about a batch, and flush it. Raises as the log does."""
        for rejected in batch.rejected:
            self._write_rejected(rejected)
        labelled = Labelled() if self._labels is None else self._labels.label(batch)
        if batch.rejected or labelled.labels:
            self._readings.flush()
        return labelled

    def _write_rejected(self, rejected: RejectedReading) -> None:
        record = rejected.record
        key = f"{record.partition}/{record.offset}".encode()
        headers = (*envelope_headers("rejected"), ("reason", rejected.reason.encode()))
        # A record without a value would delete the key from the compacted view.
        self._readings.publish(REJECTED, record.value or b"", key, headers)
