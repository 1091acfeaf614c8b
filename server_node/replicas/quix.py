"""What replicas use of Quix Streams, an extra, and of librdkafka's client below it."""

from __future__ import annotations

import warnings

with warnings.catch_warnings(record=True):  # what it depends on warns, while it is imported, of its own dependencies
    from confluent_kafka import KafkaException
    from quixstreams import Application, State
    from quixstreams.context import message_context
    from quixstreams.exceptions import QuixException
    from quixstreams.kafka import ConnectionConfig
    from quixstreams.models import Serializer, Topic
    from quixstreams.state.exceptions import StateRecoveryOffsetOutOfRange

__all__ = [
    "Application",
    "ConnectionConfig",
    "KafkaException",
    "QuixException",
    "Serializer",
    "State",
    "StateRecoveryOffsetOutOfRange",
    "Topic",
    "message_context",
]
