"""Many processes on one log, and processes that are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import zlib
from itertools import count
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event

import pytest

from shoal.transports import open_log
from shoal.transports.base import Log, Positions, Record, TopicSettings, beginning
from tests.laws.log_places import WAIT_S, Place, everything, publish

spawn = multiprocessing.get_context("spawn")
BATCHES = 30
BATCH = 20
SETTINGS = TopicSettings(partitions=2)


def write_all(address: str, topic: str, writer: int, go: Event) -> None:
    log = open_log(address)
    log.ensure(topic, SETTINGS)
    go.wait()
    for number in range(BATCHES * BATCH):
        log.publish(topic, b"%d %d" % (writer, number), partition=number % 2)
        if number % BATCH == BATCH - 1:
            log.flush()
    log.close()


def read_all(
    address: str, topic: str, expected: int, results: Queue[list[tuple[int, int, bytes | None]]]
) -> None:
    log = open_log(address)
    log.ensure(topic, SETTINGS)
    at: Positions = beginning(log, topic)
    records: list[Record] = []
    while len(records) < expected:
        some, at = log.read(topic, at, limit=37, timeout_s=WAIT_S)
        if not some:
            break
        records += some
    log.close()
    results.put([(record.partition, record.offset, record.value) for record in records])


def test_two_writers_and_two_readers_each_see_every_record_once_and_in_order(
    place: Place, topic: str
) -> None:
    go = spawn.Event()
    results = spawn.Queue()
    expected = 2 * BATCHES * BATCH
    readers = [
        spawn.Process(target=read_all, args=(place.address, topic, expected, results))
        for _ in range(2)
    ]
    writers = [
        spawn.Process(target=write_all, args=(place.address, topic, w, go)) for w in range(2)
    ]
    for process in readers + writers:  # all of them make the log and the topic at the same time
        process.start()
    go.set()
    one = results.get(timeout=200)
    other = results.get(timeout=200)
    for process in readers + writers:
        process.join()
        assert process.exitcode == 0
    results.close()
    assert len(one) == expected
    for partition in range(2):
        seen = [(offset, value) for where, offset, value in one if where == partition]
        assert seen == [(offset, value) for where, offset, value in other if where == partition]
        assert [offset for offset, _ in seen] == list(range(expected // 2))
        for writer in range(2):
            numbers = [
                int(v.split()[1])
                for _, v in seen
                if v is not None and v.startswith(b"%d " % writer)
            ]
            assert numbers == list(range(partition, BATCHES * BATCH, 2))


def write_for_ever(address: str, topic: str, flushed: Queue[int]) -> None:
    log = open_log(address)
    for number in count():
        body = b"%d " % number * 500
        log.publish(topic, body + b"%d" % zlib.crc32(body))
        if number % BATCH == BATCH - 1:
            log.flush()
            flushed.put(number)


@pytest.mark.parametrize("batches", [1, 3, 20])
def test_a_writer_killed_in_mid_stream_loses_only_what_it_had_not_flushed(
    log: Log, place: Place, topic: str, batches: int
) -> None:
    log.ensure(topic)
    flushed: Queue[int] = spawn.Queue()
    writer = spawn.Process(target=write_for_ever, args=(place.address, topic, flushed))
    writer.start()
    for _ in range(batches):
        known = flushed.get(timeout=200)
    assert writer.pid is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    flushed.close()

    records = everything(log, topic)
    assert len(records) > known
    assert [record.offset for record in records] == list(range(len(records)))
    for number, record in enumerate(records):
        assert record.value is not None
        body, _, crc = record.value.rpartition(b" ")
        assert body + b" " == b"%d " % number * 500
        assert zlib.crc32(body + b" ") == int(crc)

    publish(log, topic, b"the next one")
    assert everything(log, topic)[-1].offset == len(records)
