"""One replica: an application of Quix Streams that absorbs the updates of the regions that Kafka
assigns to it.

All replicas are one consumer group. Kafka assigns the partitions of all topics of updates to them,
fences one that was declared dead, and stores in one transaction what a replica has published, how
far it has read, and the changelog of its state, from which the next owner of a partition restores
it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from shoal.config.extension_settings import parse_address, transport_part
from shoal.config.limits import RECORD_BYTES_MAX
from shoal.config.sections import ReplicaSettings
from shoal.config.settings import LogSettings
from shoal.errors import InvalidState, LogError
from shoal.files import read_password
from shoal.runtime.checkpoint import OutboxRecord
from shoal.runtime.service import RETRY_FIRST_S, RETRY_MAX_S, notify_systemd, stopped_by_signals
from shoal.server_node.replicas.region import Region
from shoal.server_node.replicas.timers import Assignments, Timers
from shoal.telemetry.events import log_event
from shoal.transports.base import Record
from shoal.transports.kafka.connection import FRAME_BYTES
from shoal.transports.kafka.settings import KafkaSettings, servers_of
from shoal.transports.kafka.tokens import token_source

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


# What it depends on warns, while it is imported, of its own dependencies.
with warnings.catch_warnings(record=True):
    from confluent_kafka import KafkaException
    from quixstreams import Application, State
    from quixstreams.context import message_context
    from quixstreams.exceptions import QuixException
    from quixstreams.kafka import ConnectionConfig
    from quixstreams.models import Serializer, Topic
    from quixstreams.state.exceptions import (
        ColumnFamilyHeaderMissing,
        StateRecoveryOffsetOutOfRange,
    )


TRANSACTION_COMMITS: Final = 5
"""commits whose time a transaction may be open, a session at least. The brokers then abort it:
committed reads stop before an open one, so that time is a part of what taking over a region takes
"""


def kafka_settings(log: LogSettings) -> KafkaSettings:
    """The part of [log] that is about Kafka."""
    transport = parse_address(log.address).transport
    settings = transport_part(log, transport)
    assert isinstance(settings, KafkaSettings), "the command refuses other transports"
    return settings


def connection(log: LogSettings) -> ConnectionConfig:
    """Connection to the brokers. It contains secrets: never print it. Raises `SettingsError`."""
    kafka = kafka_settings(log)
    servers = servers_of(parse_address(log.address).location)
    protocol = "ssl" if kafka.tls else "plaintext"
    if kafka.sasl != "none":
        protocol = f"sasl_{protocol}"
    config: dict[str, Any] = {"bootstrap_servers": ",".join(servers), "security_protocol": protocol}
    files = {
        "ssl_ca_location": kafka.ca_file,
        "ssl_certificate_location": kafka.certificate_file,
        "ssl_key_location": kafka.key_file,
    }
    config |= {name: str(file) for name, file in files.items() if file is not None}
    secret_file = kafka.secret_file
    if secret_file is None:
        return ConnectionConfig(**config)
    config["sasl_mechanism"] = kafka.sasl.upper()
    if kafka.sasl == "oauthbearer":
        source = token_source(kafka)
        # The client asks again before the end that it is told.
        config["oauth_cb"] = lambda _: source.token()
    else:
        config["sasl_username"] = kafka.user
        config["sasl_password"] = read_password(secret_file, "log")
    return ConnectionConfig(**config)


def producer_config(log: LogSettings, settings: ReplicaSettings, name: str) -> dict[str, Any]:
    """Settings of the producer of the replica `name`.

    Started again, it fences what is left of the earlier process.
    """
    transaction_s = max(settings.session_s, TRANSACTION_COMMITS * settings.commit_s)
    return {
        "transactional.id": f"{settings.group}.{name}",
        "transaction.timeout.ms": round(1000 * transaction_s),
        "message.max.bytes": RECORD_BYTES_MAX + FRAME_BYTES,
        "compression.type": kafka_settings(log).compression,
        # Keys go to the partitions in which every other writer and reader of shoal expects them.
        "partitioner": "consistent",
        "linger.ms": 5,
    }


def consumer_config(settings: ReplicaSettings, name: str) -> dict[str, Any]:
    """Settings of the consumer of the replica `name`."""
    session_ms = round(1000 * settings.session_s)
    return {
        "client.id": name,
        "session.timeout.ms": session_ms,
        # A third, as Kafka recommends: two heartbeats may be lost before the session ends.
        "heartbeat.interval.ms": session_ms // 3,
        # A state that a killed replica had not committed must not be restored from the changelog.
        "isolation.level": "read_committed",
    }


POLL_S: Final = 0.2
"""longest wait of a poll: a commit that is due waits for it"""
STATISTICS_MS: Final = 1000
"""time between two statistics of the consumer, which show what is assigned to it"""


class Replica(Application):  # type: ignore[misc]  # its types are not looked at, as it is an extra
    """The application of one replica, which remembers that it was asked to stop."""

    asked_to_stop = False

    def stop(self, fail: bool = False) -> None:
        """Stop: by SIGTERM and Ctrl-C, and with `fail` after an error."""
        self.asked_to_stop |= not fail
        super().stop(fail)


def run_replica(
    regions: Mapping[str, Region],
    settings: ReplicaSettings,
    name: str,
    timers: Timers,
    observe: Callable[[Mapping[str, Mapping[int, int]]], None],
) -> None:
    """Serve the regions, by their topics of updates, as the replica `name`, until SIGTERM or
    Ctrl-C. `observe`: see `Assignments`.

    After an error of Kafka everything is built again from what was committed: the same path as
    after a kill. Raises `InvalidState`, `LogError`, `SettingsError`.
    """
    retry_s = RETRY_FIRST_S
    while True:
        replica: Replica | None = None
        try:
            replica = make_application(regions, settings, name, timers, observe)
            notify_systemd("READY=1")
            replica.run()
            return
        except StateRecoveryOffsetOutOfRange as gone:
            raise LogError(
                "updates were removed by retention before a replica had read them, so the models "
                f"of their region cannot go on ({gone}). Restore the log, or begin the region "
                "again under another [federation] name"
            ) from None
        except ColumnFamilyHeaderMissing:
            raise InvalidState(
                f"a topic changelog__{settings.group}--... has a record that no replica has "
                "written. Let only replicas write there, and begin the region again under another "
                "[federation] name"
            ) from None
        except (QuixException, KafkaException) as error:
            # What could not be committed while it stopped is done again by the others.
            if replica is not None and replica.asked_to_stop:
                return
            log_event(
                "retrying",
                logging.WARNING,
                error=f"{type(error).__name__}: {error}",
                retry_s=retry_s,
            )
            # Quix Streams takes signals only while its application runs.
            if _stopped_within(retry_s):
                return
            retry_s = min(2 * retry_s, RETRY_MAX_S)


def _stopped_within(seconds: float) -> bool:
    with stopped_by_signals() as stop:
        return stop.wait(seconds)


def make_application(
    regions: Mapping[str, Region],
    settings: ReplicaSettings,
    name: str,
    timers: Timers,
    observe: Callable[[Mapping[str, Mapping[int, int]]], None] = lambda _: None,
) -> Replica:
    """The application of the replica `name`. Its topics are there. `observe`: see `Assignments`.

    Raises `SettingsError`, and errors of Kafka.
    """
    log = next(iter(regions.values())).config.log
    assignments = Assignments(timers, observe)
    statistics = {
        "statistics.interval.ms": STATISTICS_MS,
        "stats_cb": assignments.take_statistics,
    }
    application = Replica(
        broker_address=connection(log),
        consumer_group=settings.group,
        auto_offset_reset="earliest",
        commit_interval=settings.commit_s,
        processing_guarantee="exactly-once",
        consumer_extra_config=consumer_config(settings, name) | statistics,
        producer_extra_config=producer_config(log, settings, name),
        state_dir=settings.folder / name,
        consumer_poll_timeout=min(POLL_S, settings.commit_s),
        # Otherwise state would be deleted where retention has removed updates that it lacks.
        auto_recover_from_source_offset_out_of_range=False,
        # `open_region` has made them, with the settings that shoal needs: compaction, and the size
        # of a record.
        auto_create_topics=False,
        loglevel=None,
        # Errors are raised, and are logged once, where they are caught.
        on_processing_error=lambda *_: False,
        on_producer_error=lambda *_: False,
        on_consumer_error=lambda *_: False,
    )
    for topic, region in regions.items():
        _add_region(application, topic, region, timers)
    return application


class _Value(Serializer):  # type: ignore[misc]  # its types are not looked at, as it is an extra
    """Takes the value out of a record that is to be published."""

    def __call__(self, value: OutboxRecord, ctx: Any) -> bytes:
        return value.value or b""


def _add_region(application: Application, topic: str, region: Region, timers: Timers) -> None:
    """Absorb what comes in `topic`, and publish what `Region.absorb` returns."""
    contract = region.config.contract
    others = (contract.snapshots_topic, contract.events_topic, contract.rejected_topic)
    outputs: dict[str, Topic] = {
        name: application.topic(name, value_serializer=_Value()) for name in others
    }

    def absorb(
        value: Any, key: Any, at_ms: int, headers: Any, state: State[Any, Any]
    ) -> Sequence[OutboxRecord]:
        place = message_context()
        # A header without a value is one with an empty value, as everywhere in shoal.
        named = tuple((name, content or b"") for name, content in headers or ())
        return region.absorb(
            Record(topic, place.partition, place.offset, at_ms, key, value, named), state, timers
        )

    updates = application.topic(topic, value_deserializer="bytes", value_serializer=_Value())
    # A region publishes requests to quarantine a client there.
    outputs[topic] = updates
    stream = application.dataframe(updates).apply(absorb, stateful=True, expand=True, metadata=True)
    stream = stream.set_headers(lambda record, *_: list(record.headers))
    stream.to_topic(lambda record, *_: outputs[record.topic], key=lambda record: record.key)
