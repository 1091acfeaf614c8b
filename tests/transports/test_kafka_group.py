"""A member of a consumer group on a real broker."""

from __future__ import annotations

import time
import uuid
from contextlib import closing

import pytest

from shoal.transports.base import TopicSettings
from shoal.transports.kafka import group
from shoal.transports.kafka.group import GroupMember
from shoal.transports.kafka.log import KafkaLog
from shoal.transports.kafka.settings import KafkaSettings

BUSY_S = 0.2
"""longer than an attempt to join takes where cores are idle"""
CALLS_MAX = 60


def test_a_member_joins_though_its_process_is_busy_when_the_answers_come(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "JOINING_S", 0.001)
    topic = f"devices-{uuid.uuid4().hex}"
    with closing(KafkaLog(f"//{kafka_bootstrap}")) as log:
        log.ensure(topic, TopicSettings(partitions=2))
    with closing(GroupMember(f"//{kafka_bootstrap}", KafkaSettings(), topic, topic)) as member:
        for _ in range(CALLS_MAX):
            partitions = member.assigned()
            if partitions:
                break
            time.sleep(BUSY_S)
    assert partitions == {0, 1}
