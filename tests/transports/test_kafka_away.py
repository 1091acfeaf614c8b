"""A broker that stops and starts again, in order or killed: the log raises, and loses nothing that
it has stored."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from shoal.errors import LogUnavailable
from shoal.transports.base import TopicSettings
from shoal.transports.kafka.log import KafkaLog
from tests.kafka_broker import Broker, free_ports

WAIT_S = 60.0


@pytest.fixture(scope="module")
def broker(can_run_kafka: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("kafka-away"))
    yield broker
    broker.stop()


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker comes back in these seconds, so they need not be waited out."""
    for module in ("connection", "topics", "log"):
        monkeypatch.setattr(f"shoal.transports.kafka.{module}.CONNECT_S", 2.0)
    monkeypatch.setattr("shoal.transports.kafka.consumer.FETCH_S", 2.0)
    monkeypatch.setattr("shoal.transports.kafka.log.CLOSE_S", 2.0)


def open_log(broker: Broker, **more: int) -> KafkaLog:
    return KafkaLog(f"//{broker.bootstrap}", **more)


def test_a_broker_that_is_not_there_is_named_with_the_reason() -> None:
    with (
        closing(KafkaLog(f"//127.0.0.1:{free_ports()}")) as log,
        pytest.raises(
            LogUnavailable, match=r"127\.0\.0\.1:\d+ cannot be reached: no server listens"
        ),
    ):
        log.ensure("topic")
    with (
        closing(KafkaLog("//nobody.invalid:9092")) as log,
        pytest.raises(LogUnavailable, match=r"the host's name is not known"),
    ):
        log.ensure("topic")


def test_a_broker_that_is_away_for_a_night_costs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.transports.kafka.connection.CONNECT_S", 0.2)
    nowhere = f"//127.0.0.1:{free_ports()}"
    before = threading.active_count()
    for _ in range(5):  # as a process does: after an error all is built again
        with suppress(LogUnavailable), closing(KafkaLog(nowhere)) as log:
            log.ensure("topic")
    assert threading.active_count() == before  # each would hold a selector and sockets too


@pytest.mark.parametrize("ended", ["stop", "kill"])
def test_what_was_stored_is_there_when_the_broker_is_back_and_the_same_log_goes_on(
    broker: Broker, ended: str
) -> None:
    with closing(open_log(broker)) as log:
        log.ensure(ended)
        log.publish(ended, b"stored")
        log.flush()
        ((record,), after) = log.read(ended, {0: 0}, timeout_s=WAIT_S)
        getattr(broker, ended)()
        with pytest.raises(LogUnavailable):
            log.bounds(ended)
        log.publish(ended, b"never")
        with pytest.raises(LogUnavailable):
            log.flush(1.0)
        broker.start()
        log.publish(ended, b"again")
        log.flush(WAIT_S)
        # What was given up is not stored behind our back: its producer is gone.
        assert [r.value for r in log.read(ended, after, timeout_s=WAIT_S)[0]] == [b"again"]
        assert record.value == b"stored"


def test_a_reader_that_waits_while_the_broker_is_away_misses_nothing(broker: Broker) -> None:
    with closing(open_log(broker)) as log, closing(open_log(broker)) as writer:
        log.ensure("waiting", TopicSettings(partitions=2))
        at = log.read("waiting", {0: 0, 1: 0})[1]
        broker.kill()
        back = threading.Thread(target=broker.start)
        back.start()
        found: list[bytes | None] = []
        sent = False
        while len(found) < 2:
            try:
                records, at = log.read("waiting", at, timeout_s=0.5)
            except LogUnavailable:
                continue
            found += [record.value for record in records]
            if not sent:
                back.join()
                for partition in (0, 1):
                    writer.publish("waiting", b"%d" % partition, partition=partition)
                writer.flush(WAIT_S)
                sent = True
        assert sorted(filter(None, found)) == [b"0", b"1"]


def test_bytes_in_flight_are_bounded_and_closing_reports_what_is_lost(broker: Broker) -> None:
    log = open_log(broker, in_flight_bytes_max=100_000)
    other = open_log(broker)
    for transport in (log, other):
        transport.ensure("bounded")
        transport.publish("bounded", b"first")
        transport.flush()
    broker.kill()
    other.publish("bounded", b"on its way")
    for _ in range(9):
        log.publish("bounded", b"x" * 10_000)
    with pytest.raises(LogUnavailable, match="wait to be stored"):
        log.publish("bounded", b"x" * 10_000)
    log.close()
    with pytest.raises(LogUnavailable, match="not stored"):
        other.close()
    other.close()
    broker.start()


def test_closing_with_everything_stored_never_raises_though_the_broker_is_gone(
    broker: Broker,
) -> None:
    log = open_log(broker)
    log.ensure("closing")
    log.publish("closing", b"stored")
    log.flush()
    log.read("closing", {0: 0}, timeout_s=WAIT_S)
    broker.kill()
    log.close()
    broker.start()
