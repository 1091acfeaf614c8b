"""A member of a consumer group on a real broker."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import closing

import pytest
from kafka.admin import KafkaAdminClient, NewPartitions

from shoal.errors import LogError
from shoal.transports.base import TopicSettings
from shoal.transports.kafka import group
from shoal.transports.kafka.group import GroupMember
from shoal.transports.kafka.log import KafkaLog
from shoal.transports.kafka.settings import KafkaSettings
from tests.house.processes import wait_until

BUSY_S = 0.2
"""longer than an attempt to join takes where cores are idle"""
CALLS_MAX = 60
HALVES = {frozenset({0}), frozenset({1})}


@pytest.fixture
def topic(kafka_bootstrap: str) -> str:
    """A new topic of two partitions."""
    name = f"devices-{uuid.uuid4().hex}"
    with closing(KafkaLog(f"//{kafka_bootstrap}")) as log:
        log.ensure(name, TopicSettings(partitions=2))
    return name


def call_busily(member: GroupMember, partitions: frozenset[int]) -> None:
    """Call it until these are assigned, with work between two calls."""
    for _ in range(CALLS_MAX):
        assigned = member.assigned()
        if assigned == partitions:
            break
        time.sleep(BUSY_S)
    assert assigned == partitions


def test_a_member_joins_though_its_process_is_busy_when_the_answers_come(
    kafka_bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "JOINING_S", 0.001)
    with closing(GroupMember(f"//{kafka_bootstrap}", KafkaSettings(), topic, topic)) as member:
        call_busily(member, frozenset({0, 1}))


def test_a_member_that_is_busy_gets_partitions_that_are_new(
    kafka_bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "NEW_PARTITIONS_S", 0.1)
    with closing(GroupMember(f"//{kafka_bootstrap}", KafkaSettings(), topic, topic)) as member:
        call_busily(member, frozenset({0, 1}))
        with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
            admin.create_partitions({topic: NewPartitions(3)})
        call_busily(member, frozenset({0, 1, 2}))


class Calling:
    """A member that is called again and again by a thread of its own, as a process calls it: while
    one waits for an answer the group may need another one."""

    def __init__(self, member: GroupMember) -> None:
        self.member = member
        self.assigned: frozenset[int] | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._call)

    def __enter__(self) -> Calling:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _call(self) -> None:
        with closing(self.member):
            while not self._ends.is_set():
                self.assigned = self.member.assigned(0.1)

    @property
    def generation(self) -> int:
        """Number of the division of the group that it knows."""
        return int(self.member._connected().group_metadata().generation_id)


def test_a_member_with_a_name_has_its_partitions_again_without_a_new_division(
    kafka_bootstrap: str, topic: str
) -> None:
    def named(name: str) -> Calling:
        # A session that does not end while the test runs.
        settings = KafkaSettings()
        return Calling(
            GroupMember(f"//{kafka_bootstrap}", settings, topic, topic, name, session_s=300.0)
        )

    with named("host-0") as other:
        with named("host-1") as first:
            wait_until(lambda: {first.assigned, other.assigned} == HALVES)
            of_first = first.assigned
            of_other = other.assigned
            generation = other.generation
        with named("host-1") as again:
            wait_until(lambda: again.assigned == of_first)
            assert again.generation == generation
        assert (other.assigned, other.generation) == (of_other, generation)


def test_two_members_of_one_name_are_an_error_that_says_so(
    kafka_bootstrap: str, topic: str
) -> None:
    members = [
        GroupMember(f"//{kafka_bootstrap}", KafkaSettings(), topic, topic, "host-0")
        for _ in range(2)
    ]
    with closing(members[0]), closing(members[1]):
        call_busily(members[0], frozenset({0, 1}))
        call_busily(members[1], frozenset({0, 1}))
        assert members[1].has(0)
        with pytest.raises(LogError, match="give each host a member of its own"):
            members[0].has(0)
