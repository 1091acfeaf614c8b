"""The topics of a Kafka log: declaring and finding them, their offsets, and their identity."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)
from kafka.structs import OffsetAndMetadata

from shoal.errors import LogError, LogUnavailable, TopicMissing
from shoal.telemetry.events import log_event
from shoal.transports.base import Positions, TopicSettings, differences
from shoal.transports.kafka.connection import (
    CONNECT_S,
    configs_of,
    connect,
    kafka_errors,
    settings_of,
)

NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
COMPARED = ("cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes")
AS_DECLARED = ("message.timestamp.type", "min.insync.replicas", "compression.type")
"""settings that must be as declared, by the brokers' names: another value could lose records that
count as stored, or pack them so that readers cannot read them"""
PAUSE_S = 0.05
CHECK_S = 20.0
"""seconds after which a reader that asks for the bounds of a topic looks at its number of
partitions again"""


class Topic(NamedTuple):
    """A topic as the brokers describe it."""

    identity: bytes
    settings: TopicSettings
    replication: int
    configs: dict[str, str]
    """settings of `AS_DECLARED`; empty when this user has no right to see them"""


SETTLE_S = 5.0
"""time for which a busy broker may describe a topic that was just created without its settings"""
SETTLE_POLL_S = 0.1


NAMED_MAX = 12
"""topics that a message lists"""


def check_name(name: str) -> None:
    """Raises `LogError` for a name that Kafka cannot have."""
    if not NAME.fullmatch(name) or name in (".", ".."):
        shown = name[:20].encode("ascii", "backslashreplace").decode()
        raise LogError(
            f"topic {shown!r}: Kafka takes names of 1 to 249 letters, digits, '.', '_' and '-'"
        )


class Topics:
    """Describes and creates topics, by one admin client."""

    def __init__(self, where: str, client_config: dict[str, Any], replication: int) -> None:
        self._where = where
        self._client_config = client_config
        self._replication = replication
        self._client: Any = None
        self._known: dict[str, Topic] = {}
        self._check_due: dict[str, float] = {}
        """topic -> when its number of partitions is looked at next; monotonic, seconds"""

    def ensure(self, name: str, settings: TopicSettings | None) -> None:
        """Create the topic, or check it. Raises `LogError` with every difference."""
        check_name(name)
        # Converted there and back, because Kafka stores whole milliseconds.
        wanted = settings or TopicSettings()
        wanted = settings_of(configs_of(wanted, self._replication), wanted.partitions)
        topic = self._find(name, wanted) or self._create(name, wanted)
        if settings is not None:
            topic = self._settled(name, topic, wanted)
        self._known[name] = topic

    def _settled(self, name: str, topic: Topic, wanted: TopicSettings) -> Topic:
        """The topic once it has the wanted settings. Raises `LogError` if it does not get them."""
        until = time.monotonic() + SETTLE_S
        while True:
            differing = self._differences(topic, wanted)
            if not differing:
                return topic
            if time.monotonic() >= until:
                raise LogError(
                    f"topic {name!r} is kept with other settings than declared: "
                    f"{', '.join(differing)}"
                )
            # A broker may describe a topic that was just created without its settings.
            time.sleep(SETTLE_POLL_S)
            topic = self._described(name)

    def _differences(self, topic: Topic, wanted: TopicSettings) -> list[str]:
        texts = []
        of_settings = differences(topic.settings, wanted)
        if of_settings:
            texts.append(of_settings)
        declared = configs_of(wanted, self._replication)
        for config, value in topic.configs.items():
            if config in declared and value != declared[config]:
                texts.append(f"{config} is {value}, not {declared[config]}")
        if self._replication and topic.replication != self._replication:
            texts.append(f"replication is {topic.replication}, not {self._replication}")
        return texts

    def get(self, name: str) -> Topic:
        """The topic as it was first described. Raises `LogError` when there is none."""
        if name not in self._known:
            self._known[name] = self._described(name)
        return self._known[name]

    def identity(self, name: str) -> bytes:
        """The topic's id, asked from the brokers each time.

        Raises `LogError` when it was created again since.
        """
        known = self.get(name)
        topic = self._described(name)
        if topic.identity != known.identity:
            raise LogError(
                f"topic {name!r} was deleted and created again while this log was open; open it "
                "again"
            )
        return topic.identity

    def check_partitions(self, name: str) -> None:
        """Raises `LogError` when the topic has more partitions than at first; asks the brokers at
        intervals."""
        now = time.monotonic()
        if now < self._check_due.setdefault(name, now + CHECK_S):
            return
        self._check_due[name] = now + CHECK_S
        before = self.get(name).settings.partitions
        partitions = self._described(name).settings.partitions
        if partitions != before:
            raise LogError(
                f"topic {name!r} has {partitions} partitions now, and had {before} when this "
                "process started: updates of one model would be in several and lose their order. "
                "Kafka takes none away again: stop all processes, delete the topic, set [log] "
                f"partitions = {partitions}, and give the server a new folder; the clients then "
                "publish all they have learnt again"
            )

    def bounds(self, name: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        """See `Log.bounds`; of these partitions."""
        first = self._offsets(name, partitions, OffsetSpec.EARLIEST)
        ends = self.ends(name, first)
        return {partition: (first[partition], ends[partition]) for partition in first}

    def ends(self, name: str, partitions: Iterable[int]) -> dict[int, int]:
        """partition -> offset of the next record."""
        return self._offsets(name, partitions, OffsetSpec.LATEST)

    def cluster(self) -> str:
        """See `KafkaLog.cluster`."""
        with kafka_errors(self._where):
            return str(self._connected().describe_cluster()["cluster_id"])

    def show_progress(self, reader: str, name: str, at: Positions) -> None:
        """See `Log.show_progress`. A missing right or coordinator is only logged."""
        places = {}
        for partition, position in at.items():
            places[TopicPartition(name, partition)] = OffsetAndMetadata(position, "", -1)
        try:
            self._connected().alter_group_offsets(reader, places)
        except (KafkaError, LogUnavailable) as error:
            log_event(
                "progress_not_shown", logging.DEBUG, reader=reader, error=type(error).__name__
            )

    def _offsets(self, name: str, partitions: Iterable[int], which: OffsetSpec) -> dict[int, int]:
        # Not by the consumer: brokers answer a connection in order, and its fetches wait for
        # records.
        asked = {TopicPartition(name, partition): which for partition in partitions}
        with kafka_errors(self._where):
            answers = self._connected().list_partition_offsets(
                asked, timeout_ms=int(1000 * CONNECT_S)
            )
        return {place.partition: answers[place].offset for place in asked}

    def close(self) -> None:
        """Close the admin client."""
        client = self._client
        self._client = None
        if client is not None:
            client.close()

    def _described(self, name: str) -> Topic:
        check_name(name)
        topic = self._find(name, TopicSettings())
        if topic is None:
            raise TopicMissing(
                f"topic {name!r} is not there{self._others()}. A topic of devices is made by what"
                " sends to it; those of a federation by its server, or by shoal topics ensure"
            )
        return topic

    def _others(self) -> str:
        """The topics that there are, as the end of a sentence; empty for none."""
        with kafka_errors(self._where):
            there = self._connected().list_topics()
        # Kafka's own topics begin so.
        names = sorted(name for name in there if not name.startswith("__"))
        if not names:
            return ""
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        return f"; there are {', '.join(names[:NAMED_MAX])}{more}"

    def _find(self, name: str, assumed: TopicSettings) -> Topic | None:
        """The topic as it is now. A user without the right to describe its configuration gets
        `assumed` instead."""
        with kafka_errors(self._where):
            (described,) = self._connected().describe_topics([name])
            problem = for_code(described["error_code"])
            if problem is UnknownTopicOrPartitionError:
                return None
            if described["error_code"]:
                raise problem(name)
            partitions = len(described["partitions"])
            settings = replace(assumed, partitions=partitions)
            configs = {}
            if "DESCRIBE_CONFIGS" in described["authorized_operations"]:
                asked = ConfigResource(
                    ConfigResourceType.TOPIC, name, dict.fromkeys(COMPARED + AS_DECLARED)
                )
                described_configs = (
                    self._connected()
                    .describe_configs([asked], config_filter="all")["topic"]
                    .get(name)
                )
                if not described_configs:
                    # Deleted between the two requests.
                    return None
                known = {config: str(about["value"]) for config, about in described_configs.items()}
                settings = settings_of(known, partitions)
                configs = {name: known[name] for name in AS_DECLARED}
        replication = min(
            (len(partition["replica_nodes"]) for partition in described["partitions"]), default=0
        )
        return Topic(UUID(described["topic_id"]).bytes, settings, replication, configs)

    def _create(self, name: str, wanted: TopicSettings) -> Topic:
        declared = {
            "num_partitions": wanted.partitions,
            "replication_factor": self._replication or -1,
            "configs": configs_of(wanted, self._replication),
        }
        # Another process may be faster: its topic is checked as any other.
        with kafka_errors(self._where), suppress(TopicAlreadyExistsError):
            self._connected().create_topics({name: declared})
        until = time.monotonic() + CONNECT_S
        while time.monotonic() < until:
            with kafka_errors(self._where):
                # A topic without a leader is asked for again until the time is over.
                with suppress(KafkaTimeoutError):
                    self._connected().wait_for_topics([name], timeout_ms=int(1000 * CONNECT_S))
                topic = self._find(name, wanted)
            if topic is not None:
                return topic
            time.sleep(PAUSE_S)
        raise LogUnavailable(f"{self._where}: topic {name!r} was created but has no leader yet")

    def _connected(self) -> Any:
        if self._client is None:
            self._client = connect(self._where, KafkaAdminClient, self._client_config)
        return self._client
