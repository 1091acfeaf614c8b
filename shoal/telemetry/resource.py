"""What a process exports of one federation: metrics and spans, a resource of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from shoal.telemetry.spans import SPANS, SpanReceivers

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Telemetry(NamedTuple):
    """The metrics and spans of one federation in a process."""

    registry: CollectorRegistry
    attributes: Mapping[str, str]
    """attributes of the resource, besides the name of the service"""
    spans: SpanReceivers = SPANS
    """receivers of its spans; by default those of the whole process"""
