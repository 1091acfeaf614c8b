"""Sensors over MQTT, with a real Mosquitto: what arrives is stored, once, with its time, whatever the network does."""

from __future__ import annotations

import logging
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from producers.mqtt import connection as mqtt
from producers.mqtt.connection import Connection
from producers.mqtt.ingest import MqttIngest
from producers.mqtt.service import open_mqtt_ingest
from shoal.errors import InvalidState, LogUnavailable, SettingsError
from tests.mosquitto_broker import Mosquitto, Sensor
from tests.producers.mqtt_ingest import CLIENT, Ingest
from tests.producers.running_producer import Clock

pytestmark = pytest.mark.needs("mosquitto")

VERSIONS = ('version = "5"', 'version = "3.1.1"')
THEN = 1_700_000_000.0


@pytest.fixture
def own_broker(can_run_mosquitto: None, tmp_path: Path) -> Iterator[Mosquitto]:
    """One that a test may stop."""
    (tmp_path / "broker").mkdir()
    broker = Mosquitto(tmp_path / "broker")
    yield broker
    broker.stop()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Any:
    """Asks for the events of a name, each with its fields."""
    caplog.set_level(logging.INFO, "shoal")
    return lambda event: [vars(record)["fields"] for record in caplog.records if record.getMessage() == event]


def listen_on(listener: MqttIngest) -> None:
    """For ten seconds at most."""
    for _ in range(100):
        listener.step(0.1)


@pytest.mark.parametrize("version", VERSIONS)
def test_messages_that_came_while_nobody_listened_are_joined_and_stored(
    tmp_path: Path, mosquitto_port: int, version: str
) -> None:
    hearing = Ingest(tmp_path, mosquitto_port, version)
    assert hearing.listen().published == 0
    with Sensor(mosquitto_port) as sensor:
        sensor.say_all([message for number in range(300) for message in hearing.pair(number)])
    assert hearing.listen(readings=300).published == 300
    assert hearing.readings() == [[float(number)] * 2 for number in range(300)]
    assert hearing.counts.faults == {}
    assert hearing.listen().published == 0, "what was acknowledged does not come again"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_that_was_restarted_brings_what_it_held(tmp_path: Path, own_broker: Mosquitto, version: str) -> None:
    hearing = Ingest(tmp_path, own_broker.port, version)
    hearing.listen()
    with Sensor(own_broker.port) as sensor:
        sensor.say_all([message for number in range(50) for message in hearing.pair(number)])
    own_broker.stop()
    own_broker.start()
    assert hearing.listen(readings=50).published == 50


def test_a_broker_that_goes_away_is_told_and_what_was_stored_is_not_stored_again(
    tmp_path: Path, own_broker: Mosquitto
) -> None:
    hearing = Ingest(tmp_path, own_broker.port)
    with open_mqtt_ingest(hearing.config, CLIENT, tmp_path / "clients", hearing.counts) as listener:
        with Sensor(own_broker.port) as sensor:
            sensor.say_all([message for number in range(5) for message in hearing.pair(number)])
        while hearing.counts.published < 5:
            listener.step(0.1)
        own_broker.stop()
        with pytest.raises(LogUnavailable, match="cannot be reached"):
            listen_on(listener)
    own_broker.start()
    with Sensor(own_broker.port) as sensor:
        sensor.say_all(hearing.pair(5))
    hearing.listen(readings=1)
    assert hearing.readings() == [[float(number)] * 2 for number in range(6)]


def test_messages_keep_their_own_times_in_whatever_order_the_sensors_are_heard(
    tmp_path: Path, mosquitto_port: int
) -> None:
    hearing = Ingest(tmp_path, mosquitto_port, 'time = "t"', plain=False)
    hearing.listen()
    said = [hearing.timed(number, THEN + 60 * number) for number in range(20)]
    with Sensor(mosquitto_port) as sensor:
        # The one sensor has been away: all it has to say comes after the other's.
        sensor.say_all([pair[0] for pair in said[:10]] + [pair[1] for pair in said[:10]])
        sensor.say_all([message for pair in said[10:] for message in pair])
    hearing.listen(readings=11)
    assert hearing.counts.faults == {"incomplete": 9, "late": 9}, "by default a reading waits 10 s of its own time"
    assert hearing.times() == [THEN + 60 * number for number in range(9, 20)]
    assert hearing.readings() == [[float(number)] * 2 for number in range(9, 20)]


def test_who_waits_longer_loses_nothing(tmp_path: Path, mosquitto_port: int) -> None:
    hearing = Ingest(tmp_path, mosquitto_port, 'time = "t"\nwait_s = 3600', plain=False)
    hearing.listen()
    said = [hearing.timed(number, THEN + 60 * number) for number in range(10)]
    with Sensor(mosquitto_port) as sensor:
        sensor.say_all([pair[0] for pair in said] + [pair[1] for pair in said])
    hearing.listen(readings=10)
    assert hearing.times() == [THEN + 60 * number for number in range(10)]


def test_values_that_lack_are_held_when_the_file_says_so(tmp_path: Path, mosquitto_port: int) -> None:
    hearing = Ingest(tmp_path, mosquitto_port, 'time = "t"\nmissing = "hold"\nwait_s = 1', plain=False)
    hearing.listen()
    with Sensor(mosquitto_port) as sensor:
        sensor.say_all(hearing.timed(1, THEN))
        for number in (2, 3, 4):
            sensor.say(*hearing.timed(number, THEN + 60 * number)[0])
    # The last one is given out when a second has passed without a word.
    hearing.listen(readings=4)
    assert hearing.readings() == [[1.0, 1.0], [2.0, 1.0], [3.0, 1.0], [4.0, 1.0]]
    assert hearing.counts.faults == {"filled": 3}


def test_a_message_sent_twice_is_one_reading(tmp_path: Path, mosquitto_port: int) -> None:
    hearing = Ingest(tmp_path, mosquitto_port, 'time = "t"', plain=False)
    hearing.listen()
    with Sensor(mosquitto_port) as sensor:
        for number in range(5):
            sensor.say_all([message for message in hearing.timed(number, THEN + 60 * number) for _ in range(3)])
    hearing.listen(readings=5, faults=20)
    assert hearing.readings() == [[float(number)] * 2 for number in range(5)]
    assert hearing.counts.faults == {"repeated": 20}


def test_what_the_broker_sends_again_is_known_though_it_has_no_time(tmp_path: Path, mosquitto_port: int) -> None:
    hearing = Ingest(tmp_path, mosquitto_port)
    hearing.listen()
    with Sensor(mosquitto_port) as sensor:
        sensor.say_all([message for number in range(8) for message in hearing.pair(number)])
    forgotten = pytest.MonkeyPatch()
    with forgotten.context() as patch:
        patch.setattr(Connection, "acknowledge", lambda self, messages: None)
        hearing.listen(readings=8)
    hearing.listen(faults=16)
    assert hearing.counts.faults == {"repeated": 16}
    assert hearing.readings() == [[float(number)] * 2 for number in range(8)]
    assert hearing.listen().faults == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_old_message_kept_by_the_broker_is_not_taken_for_a_new_one(
    tmp_path: Path, mosquitto_port: int, version: str
) -> None:
    hearing = Ingest(tmp_path, mosquitto_port, version)
    with Sensor(mosquitto_port) as sensor:
        sensor.say_all(hearing.pair(1), retain=True)
        hearing.listen()
        assert hearing.readings() == []
        sensor.say_all(hearing.pair(2), retain=True)
    assert hearing.listen(readings=1).published == 1, "what is retained and new is new"
    assert hearing.listen().published == 0
    assert hearing.readings() == [[2.0, 2.0]]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_old_message_with_a_time_of_its_own_is_used_once(tmp_path: Path, mosquitto_port: int, version: str) -> None:
    hearing = Ingest(tmp_path, mosquitto_port, f'{version}\ntime = "t"', plain=False)
    with Sensor(mosquitto_port) as sensor:
        sensor.say_all(hearing.timed(1, THEN), retain=True)
    hearing.listen(readings=1)
    for _ in range(2):
        hearing.listen()
    assert hearing.readings() == [[1.0, 1.0]]
    assert hearing.times() == [THEN]


def test_garbage_is_counted_by_reason_and_never_shown(
    tmp_path: Path, mosquitto_port: int, said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    hearing = Ingest(tmp_path, mosquitto_port, 'time = "t"\npayload_bytes_max = 100', plain=False)
    hearing.listen()
    garbage: list[tuple[str, str | bytes]] = [
        (hearing.warm, b"\xff secret"),
        (hearing.warm, "secret"),
        (hearing.warm, '{"t": 1, "warm": "secret"}'),
        (hearing.warm, '{"t": "secret", "warm": 1}'),
        (hearing.warm, '{"t": 1, "warm": NaN}'),
        (hearing.damp, '{"t": 1, "air": {"damp": 1e999}}'),
        (hearing.damp, '{"t": 1}'),
        (hearing.damp, f'{{"t": {time.time() + 3600}, "air": {{"damp": 1}}}}'),
        (hearing.damp, b"secret" * 100),
    ]
    with Sensor(mosquitto_port) as sensor:
        sensor.say_all(garbage)
        sensor.say_all(hearing.timed(7, THEN))
    hearing.listen(readings=1, faults=9)
    assert hearing.readings() == [[7.0, 7.0]]
    reasons = ["not_text", "not_json", "timeless", "infinite", "missing", "ahead", "oversized"]
    assert hearing.counts.faults == dict.fromkeys(reasons, 1) | {"not_a_number": 2}
    told = {(fields["reason"], fields["topic"]): fields["messages"] for fields in said("messages_rejected")}
    assert told["not_a_number", hearing.warm] == 2
    assert len(told) == 8
    assert "secret" not in caplog.text + repr([vars(record) for record in caplog.records])


def test_a_silent_sensor_is_told_once_and_once_more_when_it_is_back(
    tmp_path: Path, mosquitto_port: int, said: Any
) -> None:
    hearing = Ingest(tmp_path, mosquitto_port, "silent_s = 30")
    steady = Clock()
    with (
        Sensor(mosquitto_port) as sensor,
        open_mqtt_ingest(
            hearing.config, CLIENT, tmp_path / "clients", hearing.counts, steady=time.monotonic
        ) as listener,
    ):
        listener._steady = steady
        hearing.counts.silence.start(steady())
        steady.now += 29
        sensor.say(hearing.warm, "1")
        while not listener.step(0.1):
            pass
        assert said("sensor_silent") == []
        for _ in range(3):
            steady.now += 5
            listener.step()
        assert said("sensor_silent") == [{"topic": hearing.damp, "silent_s": 30.0}]
        sensor.say(hearing.damp, "1")
        while not listener.step(0.1):
            pass
    assert said("sensor_back") == [{"topic": hearing.damp, "silent_s": 44.0}]


def test_a_session_the_broker_has_lost_is_told(tmp_path: Path, own_broker: Mosquitto, said: Any) -> None:
    hearing = Ingest(tmp_path, own_broker.port)
    hearing.listen()
    with Sensor(own_broker.port) as sensor:
        sensor.say_all(hearing.pair(1))
    hearing.listen(readings=1)
    assert said("mqtt_session_lost") == []
    own_broker.stop()
    (own_broker.folder / "mosquitto.db").unlink()
    own_broker.start()
    hearing.listen()
    assert len(said("mqtt_session_lost")) == 1


def test_times_go_on_when_the_clock_is_set_back(tmp_path: Path, mosquitto_port: int) -> None:
    hearing = Ingest(tmp_path, mosquitto_port)
    clock = Clock(THEN)
    hearing.listen(clock=clock)
    for number in range(3):
        with Sensor(mosquitto_port) as sensor:
            sensor.say_all(hearing.pair(number))
        hearing.listen(readings=1, clock=clock)
        clock.now -= 3600
    times = [at for at in hearing.times() if at is not None]
    assert times == sorted(set(times))
    assert THEN <= times[0] <= times[-1] < THEN + 1
    assert hearing.readings() == [[float(number)] * 2 for number in range(3)]


# Its memory.


def test_one_client_has_one_listener(tmp_path: Path, mosquitto_port: int) -> None:
    hearing = Ingest(tmp_path, mosquitto_port)
    with (
        open_mqtt_ingest(hearing.config, CLIENT, tmp_path / "clients", hearing.counts),
        pytest.raises(InvalidState, match=r"is the MQTT producer of client attic of .* running already"),
    ):
        hearing.listen()


def test_memory_of_other_features_is_refused(tmp_path: Path, mosquitto_port: int) -> None:
    hearing = Ingest(tmp_path, mosquitto_port)
    hearing.listen()
    with Sensor(mosquitto_port) as sensor:
        sensor.say_all(hearing.pair(1))
    hearing.listen(readings=1)
    more = '[[features]]\nname = "new"\nlow = 0\nhigh = 1\n[client]'
    hearing.file.write_text(hearing.file.read_text().replace("[client]", more) + 'new = "n"\n')
    with pytest.raises(InvalidState, match="under another contract or version"):
        hearing.listen()


def test_after_its_memory_is_lost_or_older_than_the_log_new_readings_are_stored_all_the_same(
    tmp_path: Path, mosquitto_port: int
) -> None:
    hearing = Ingest(tmp_path, mosquitto_port)
    memory = tmp_path / "clients" / CLIENT / "mqtt.db"
    hearing.listen()
    expected: list[list[float]] = []

    def one_more(number: int) -> None:
        with Sensor(mosquitto_port) as sensor:
            sensor.say_all(hearing.pair(number))
        hearing.listen(readings=1)
        expected.append([float(number)] * 2)
        assert hearing.readings() == expected

    one_more(1)
    shutil.copy(memory, tmp_path / "older.db")
    one_more(2)
    shutil.copy(tmp_path / "older.db", memory)
    one_more(3)
    memory.unlink()
    one_more(4)


def test_a_readings_log_that_was_removed_gets_the_readings_from_then_on(
    tmp_path: Path, mosquitto_port: int, said: Any
) -> None:
    hearing = Ingest(tmp_path, mosquitto_port)
    hearing.listen()
    for number in range(3):
        with Sensor(mosquitto_port) as sensor:
            sensor.say_all(hearing.pair(number))
        hearing.listen(readings=1)
        if number == 1:
            for file in (tmp_path / "clients" / CLIENT).glob("readings.db*"):
                file.unlink()
    assert len(said("readings_log_replaced")) == 1
    assert hearing.readings()[-1] == [2.0, 2.0]


# Who may not, and who is not there.


def test_nobody_there_is_worth_waiting_for(tmp_path: Path) -> None:
    with pytest.raises(LogUnavailable, match=r"mqtt://127.0.0.1:1 cannot be reached: Connection refused"):
        Ingest(tmp_path, 1).listen()


def test_an_unknown_host_is_told(tmp_path: Path, mosquitto_port: int) -> None:
    hearing = Ingest(tmp_path, mosquitto_port)
    hearing.file.write_text(hearing.file.read_text().replace('"127.0.0.1"', '"nowhere.invalid"'))
    with pytest.raises(LogUnavailable, match=r"nowhere.invalid:.* cannot be reached: "):
        hearing.listen()


def test_two_producers_who_push_each_other_out_are_told(tmp_path: Path, mosquitto_port: int) -> None:
    hearing = Ingest(tmp_path, mosquitto_port)
    with open_mqtt_ingest(hearing.config, CLIENT, tmp_path / "clients", hearing.counts) as listener:
        with open_mqtt_ingest(hearing.config, CLIENT, tmp_path / "elsewhere", hearing.new_tally()):
            pass
        with pytest.raises(LogUnavailable, match="does another producer use our client_id"):
            listen_on(listener)


def test_what_is_no_broker_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(mqtt, "CONNECT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port: int = mute.getsockname()[1]
        with pytest.raises(LogUnavailable, match="no answer in time"):
            Ingest(tmp_path, port).listen()


def test_a_password_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    hearing = Ingest(tmp_path, 1, 'user = "u"\nsecret_file = "nowhere"')
    with pytest.raises(SettingsError, match=r"\[mqtt\] .*nowhere: cannot be read \(FileNotFoundError\)"):
        hearing.listen()
