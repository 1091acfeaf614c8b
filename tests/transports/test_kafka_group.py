"""A member of a consumer group on a real broker."""

from __future__ import annotations

import time
import uuid
from contextlib import closing

import pytest
from kafka.admin import KafkaAdminClient, NewPartitions

from shoal.transports.base import TopicSettings
from shoal.transports.kafka import group
from shoal.transports.kafka.group import GroupMember
from shoal.transports.kafka.log import KafkaLog
from shoal.transports.kafka.settings import KafkaSettings

BUSY_S = 0.2
"""longer than an attempt to join takes where cores are idle"""
CALLS_MAX = 60


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
