"""Any sequence of calls against the simplest model of a log: a list for each partition."""

from __future__ import annotations

import uuid

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from shoal.transports import open_log
from shoal.transports.base import (
    Headers,
    Positions,
    RecordBatch,
    TopicSettings,
    latest,
    publish_batch,
)
from tests.laws.log_places import Place, everything

Entry = tuple[bytes | None, bytes | None, Headers]
PARTITIONS = 2
partitions = st.integers(0, PARTITIONS - 1)
keys = st.sampled_from([b"a", b"b", b"c"])
values = st.none() | st.binary(max_size=30)
some_headers = st.lists(
    st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), st.binary(max_size=5)), max_size=3
)


class LogMachine(RuleBasedStateMachine):
    """`plain` is kept whole, `compact` by key; both get every record with a key, and `plain` those
    of batches too."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.address = place.address
        self.log = open_log(place.address)
        run = uuid.uuid4().hex
        self.plain = f"plain-{run}"
        self.compact = f"compact-{run}"
        self.log.ensure(self.plain, TopicSettings(PARTITIONS))
        self.log.ensure(self.compact, TopicSettings(PARTITIONS, compact=True))
        self.published: list[list[Entry]] = [[] for _ in range(PARTITIONS)]
        self.keyed: list[list[Entry]] = [[] for _ in range(PARTITIONS)]
        self.stored = [0] * PARTITIONS
        self.reader: Positions = {0: 0, 1: 0}

    @rule(partition=partitions, key=keys, value=values, headers=some_headers)
    def publish(
        self, partition: int, key: bytes, value: bytes | None, headers: list[tuple[str, bytes]]
    ) -> None:
        # a key lives in one partition, or its newest record would not be defined
        key += b"%d" % partition
        for topic in (self.plain, self.compact):
            self.log.publish(topic, value, key, tuple(headers), partition)
        self.published[partition].append((key, value, tuple(headers)))
        self.keyed[partition].append((key, value, tuple(headers)))

    @rule(
        partition=partitions,
        contents=st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=3)), max_size=6),
        headers=some_headers,
        varying=st.integers(0, 2),
    )
    def publish_batch(
        self,
        partition: int,
        contents: list[tuple[bytes, bytes]],
        headers: list[tuple[str, bytes]],
        varying: int,
    ) -> None:
        values = [value for value, _ in contents]
        others = [other for _, other in contents]
        batch = RecordBatch(values, tuple(headers), [("a", others), ("b", values)][:varying])
        publish_batch(self.log, self.plain, batch, partition)
        self.published[partition] += [(None, value, own) for value, own in batch.records()]

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.stored = [len(entries) for entries in self.published]

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.log = open_log(self.address)
        self.stored = [len(entries) for entries in self.published]

    @rule(partition=partitions, limit=st.integers(1, 4))
    def read_next(self, partition: int, limit: int) -> None:
        at = {partition: self.reader[partition]}
        records, after = self.log.read(self.plain, at, limit)
        got = [(record.key, record.value, record.headers) for record in records]
        assert got == self.published[partition][at[partition] : after[partition]]
        assert after == {partition: at[partition] + len(got)}
        assert len(got) <= limit
        assert got or at[partition] >= self.stored[partition]
        self.reader |= after

    @invariant()
    def all_that_was_flushed_is_there(self) -> None:
        for partition, entries in enumerate(self.published):
            first, end = self.log.bounds(self.plain)[partition]
            assert first == 0
            assert self.stored[partition] <= end <= len(entries)
            got = everything(self.log, self.plain, {partition: 0}, limit=3)
            assert [(record.key, record.value, record.headers) for record in got] == entries[
                : len(got)
            ]

    @invariant()
    def a_compacted_topic_has_the_newest_of_each_key(self) -> None:
        ends = None
        # what was not flushed may be stored at any moment
        while self.log.bounds(self.compact) != ends:
            ends = self.log.bounds(self.compact)
            read = [
                everything(self.log, self.compact, {partition: 0}, limit=2)
                for partition in range(PARTITIONS)
            ]
            seen = {key: record.value for key, record in latest(self.log, self.compact).items()}
        view: dict[bytes, bytes | None] = {}
        for partition, got in enumerate(read):
            assert ends is not None
            entries = self.keyed[partition][: ends[partition][1]]
            assert [record.offset for record in got] == sorted({record.offset for record in got})
            assert all(
                (record.key, record.value, record.headers) == entries[record.offset]
                for record in got
            )
            newest = {key: offset for offset, (key, _, _) in enumerate(entries)}
            assert set(newest.values()) <= {record.offset for record in got}
            for offset in sorted(newest.values()):
                key, value, _ = entries[offset]
                assert key is not None
                view.pop(key, None) if value is None else view.update({key: value})
        assert seen == view

    def teardown(self) -> None:
        self.log.close()


def test_a_log_is_a_list_for_each_partition(place: Place) -> None:
    run_state_machine_as_test(
        lambda: LogMachine(place),  # type: ignore[arg-type]  # any factory of machines will do
        settings=settings(
            max_examples=place.examples,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
