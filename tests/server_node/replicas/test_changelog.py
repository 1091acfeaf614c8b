"""A state that is larger than any record that brokers take is restored from the changelog."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shoal.config.sections import ReplicaSettings
from shoal.config.settings import log_settings
from shoal.server_node.replicas.replica_command import changelog_topic
from shoal.server_node.replicas.state_store import (
    CHANGELOG_RECORD_BYTES_MAX,
    PART_BYTES,
    load_state,
    save_state,
)
from shoal.transports import open_log
from shoal.transports.base import TopicSettings


@pytest.fixture
def signals_as_they_were() -> Iterator[None]:
    """An application takes the signals of its process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_state_larger_than_a_record_survives_the_loss_of_its_local_copy(
    quix_streams: None, kafka_bootstrap: str, tmp_path: Path, signals_as_they_were: None
) -> None:
    from shoal.server_node.replicas.replica import (  # noqa: PLC0415 - an extra
        Application,
        connection,
        consumer_config,
        producer_config,
    )

    log = log_settings(address=f"kafka://{kafka_bootstrap}")
    topic = f"updates-{uuid.uuid4().hex}"
    settings = ReplicaSettings(group=f"replicas-{uuid.uuid4().hex}")
    state = bytes(number % 251 for number in range(3 * PART_BYTES)) * 3
    found: list[bytes | None] = []

    def absorb_one(value: bytes, store: Any) -> None:
        found.append(load_state(store))
        if found[-1] is None:
            save_state(store, state)

    with closing(open_log(log)) as opened:
        opened.ensure(topic)
        opened.ensure(
            changelog_topic(settings.group, topic),
            TopicSettings(compact=True, record_bytes_max=CHANGELOG_RECORD_BYTES_MAX),
        )
        # the second one has a folder of its own, without anything in it
        for name in ("one", "two"):
            opened.publish(topic, b"update", b"key")
            opened.flush()
            application = Application(
                broker_address=connection(log),
                consumer_group=settings.group,
                auto_offset_reset="earliest",
                processing_guarantee="exactly-once",
                consumer_extra_config=consumer_config(settings, name),
                producer_extra_config=producer_config(log, settings, name),
                state_dir=tmp_path / name,
                consumer_poll_timeout=0.1,
                auto_create_topics=False,
                loglevel=None,
            )
            updates = application.topic(topic, value_deserializer="bytes")
            application.dataframe(updates).update(absorb_one, stateful=True)
            application.run(count=1)
    assert found == [None, state]
    assert len(state) > 2 * 1024 * 1024
