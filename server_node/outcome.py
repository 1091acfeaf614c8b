"""What one step of the server did: every stage adds to it, and monitoring derives metrics and events from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from server_node.models.base import AnswerResult, PublishedSnapshot
from server_node.models.events import ModelEvent
from server_node.reassembly import IncompleteUpdate
from shoal.protocol.quarantine import QuarantinedClient


class IngestOutcome(NamedTuple):
    """What became of one record of the updates topic. Small: the arrays of an update are not kept for it."""

    topic: str
    partition: int
    offset: int
    at: float
    """when it was processed, seconds since 1970"""
    result: Literal[
        "absorbed",
        "repeated",
        "chunk",
        "rejected",
        "quarantined",
        "wake_request",
        "cluster_name",
        "quarantine_request",
        "contribute_request",
    ]
    """`chunk`: some chunks of this update are still to come; `quarantined`: of a client in quarantine, not absorbed"""
    model: str = ""
    """empty, as `client`, for a record that could not be read"""
    client: str = ""
    readings: int = 0
    """that it adds; 0 for answers, as one round after the other is about the same rows"""
    made_at: float = 0.0
    """when the client made the update, by its clock"""
    answer: AnswerResult | None = None
    reason: str = ""
    """why it was rejected: one of `shoal.protocol.rejected.REASONS`"""
    detail: str = ""
    """the same for people; of a quarantine request, why"""
    action: str = ""
    """of a quarantine request: one of `ACTIONS`"""
    unlearn: bool = False
    """whether the model has to be rebuilt without the client"""


@dataclass(frozen=True)
class StepOutcome:
    """What one step of the server did."""

    ingested: Sequence[IngestOutcome]
    ingest_s: float
    """time taken by that"""
    incomplete: Sequence[IncompleteUpdate]
    """updates given up because chunks of them are missing"""
    waiting_updates: int
    """updates whose other chunks are still to come"""
    events: Sequence[ModelEvent]
    """of models, by the clock"""
    published: Sequence[PublishedSnapshot]
    quarantined: Sequence[QuarantinedClient]
    """the clients in quarantine"""
    stored_at: float | None
    """when the checkpoint was saved, seconds since 1970; None if it was not"""
