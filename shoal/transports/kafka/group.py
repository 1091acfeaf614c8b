"""Membership in a consumer group of Kafka: which partitions of a topic this process is to read.

The group divides the partitions among its members, and nothing else: records are read, and
positions kept, by the reader itself. What is committed to the group is for tools that show the lag,
with a note of the member. When a partition moves, the member that had it may not know so yet; a
reader must keep out of what another one still writes by means of its own, such as a lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, Final

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import (
    CommitFailedError,
    IllegalGenerationError,
    KafkaError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from kafka.structs import MemberState, OffsetAndMetadata

from shoal.transports.base import Positions
from shoal.transports.kafka.connection import CONNECT_S, client_config, connect, kafka_errors
from shoal.transports.kafka.settings import KafkaSettings, check_compression, servers_of

SESSION_S: Final = 10.0
"""seconds without a heartbeat after which the partitions of a member go to the others"""
HEARTBEAT_S: Final = 1.0
"""interval of heartbeats, by which a member learns that the group is divided anew"""
STEP_S_MAX: Final = 600.0
"""longest time between two calls of a member that lives"""
NEW_PARTITIONS_S: Final = 60.0
"""seconds after which it is noticed that the topic has more partitions"""
JOINING_S: Final = 0.05
"""first wait for the answers of the broker while the group is divided anew"""
JOINING_S_MAX: Final = 2.0
"""longest such wait"""
GROUP_CLOSE_S: Final = 5.0
_DIVIDED_ANEW = (
    CommitFailedError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)


class _FetchesNothing(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """Keeps the consumer of a member from fetching records, which others read."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        """Pause them, at a position that is not asked for."""
        places = list(assigned)
        for place in places:
            self._consumer.seek(place, 0)
        self._consumer.pause(*places)

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        """Nothing: `GroupMember.assigned` tells what is left."""


class GroupMember:
    """A member of the consumer group `group` for one topic. One object per thread; it connects when
    it is first used.

    Raises as `KafkaLog` does.
    """

    def __init__(
        self,
        place: str,
        settings: KafkaSettings,
        group: str,
        topic: str,
        member: str = "",
        session_s: float = SESSION_S,
    ) -> None:
        """`member`: a name by which the group knows this member again, within `session_s` seconds
        after it was closed or killed, and gives it its partitions without dividing them anew; with
        "" it leaves the group when it is closed."""
        servers = servers_of(place)
        check_compression(settings)
        self._where = f"kafka://{','.join(servers)}"
        self._client_config = client_config(servers, settings)
        self._group = group
        self._topic = topic
        self._member = member or None
        self._session_s = session_s
        self._consumer: Any = None
        self._has_joined = False
        self._joining_s = JOINING_S
        """the next wait for answers"""

    def assigned(self, timeout_s: float = 0.0) -> frozenset[int] | None:
        """The partitions that are this member's; None until the group has been divided for the
        first time.

        Has to be called at intervals, at most `STEP_S_MAX`. While the group is divided anew the
        partitions of before stay the member's, until it is said which ones go.
        """
        consumer = self._connected()
        with kafka_errors(self._where):
            wait_s = timeout_s
            if not self._is_stable():
                wait_s = max(timeout_s, self._joining_s)
            consumer.poll(timeout_ms=int(1000 * wait_s))
            if self._is_stable():
                self._has_joined = True
                self._joining_s = JOINING_S
            else:
                # kafka-python drops an attempt to join whose last answer came between two polls.
                # One that began because the topic's partitions had changed it does not even
                # repeat: the member would wait for ever, with its heartbeats switched off. So it is
                # told to (which is nothing new to it where an attempt still waits for an answer).
                consumer._coordinator.request_rejoin()  # no public method does
                # For each new attempt all members have to join again, and a process that stores
                # readings meanwhile would miss every last answer; with waits that grow an attempt
                # ends within one.
                self._joining_s = min(2.0 * self._joining_s, JOINING_S_MAX)
            places = consumer.assignment()
        if not self._has_joined:
            return None
        return frozenset(place.partition for place in places)

    def commit(self, at: Positions, note: str) -> bool:
        """Show how far this member has read its partitions, with a note; False where the group is
        being divided anew, and takes none."""
        places = {}
        for partition, position in at.items():
            places[TopicPartition(self._topic, partition)] = OffsetAndMetadata(position, note, -1)
        consumer = self._connected()
        try:
            with kafka_errors(self._where, but=_DIVIDED_ANEW):
                consumer.commit(places, timeout_ms=int(1000 * CONNECT_S))
        except _DIVIDED_ANEW:
            return False
        return True

    def has(self, partition: int) -> bool:
        """Whether the group says now that a partition is this member's, and not only what it said
        when this process last looked, which may have stood still since."""
        consumer = self._connected()
        place = TopicPartition(self._topic, partition)
        with kafka_errors(self._where):
            position = consumer.committed(place, timeout_ms=int(1000 * CONNECT_S))
        # What is shown stays as it is; a commit of a former member is refused.
        return self.commit({partition: position or 0}, "")

    def notes(self, partitions: Collection[int]) -> dict[int, str]:
        """The notes of the newest commits of these partitions, by whichever member; none for one
        that was never committed."""
        consumer = self._connected()
        notes = {}
        with kafka_errors(self._where):
            for partition in partitions:
                committed = consumer.committed(
                    TopicPartition(self._topic, partition),
                    metadata=True,
                    timeout_ms=int(1000 * CONNECT_S),
                )
                if committed is not None:
                    notes[partition] = str(committed.metadata)
        return notes

    def close(self) -> None:
        """Leave the group, whose other members get the partitions at once, or after the session of
        a member with a name; never raises."""
        consumer = self._consumer
        self._consumer = None
        if consumer is not None:
            with suppress(KafkaError):
                consumer.close(autocommit=False, timeout_ms=int(1000 * GROUP_CLOSE_S))

    def _is_stable(self) -> bool:
        return bool(self._connected().group_metadata().state == MemberState.STABLE)

    def _connected(self) -> Any:
        if self._consumer is None:
            more = {
                "group_id": self._group,
                "enable_auto_commit": False,
                "auto_offset_reset": "earliest",
                "allow_auto_create_topics": False,
                # Partitions stay where they are, but for those of members that come and go.
                "partition_assignment_strategy": [CooperativeStickyAssignor],
                "session_timeout_ms": int(1000 * self._session_s),
                "group_instance_id": self._member,
                "heartbeat_interval_ms": int(1000 * HEARTBEAT_S),
                "max_poll_interval_ms": int(1000 * STEP_S_MAX),
                "metadata_max_age_ms": int(1000 * NEW_PARTITIONS_S),
                "metrics_enabled": False,
            }
            consumer = connect(self._where, KafkaConsumer, self._client_config | more)
            consumer.subscribe([self._topic], listener=_FetchesNothing(consumer))
            self._consumer = consumer
        return self._consumer
