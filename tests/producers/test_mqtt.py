"""Sensors over MQTT, with a real Mosquitto: what arrives is stored, once, with its time, whatever
the network does."""

from __future__ import annotations

import json
import logging
import math
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.config.base import client_name_of
from shoal.errors import InvalidState, LogUnavailable, SettingsError
from shoal.producers.mqtt import connection as mqtt
from shoal.producers.mqtt.connection import Connection
from shoal.producers.mqtt.ingest import MqttIngest, open_mqtt_ingest
from tests.mosquitto_broker import Mosquitto, Sensor
from tests.producers.mqtt_ingest import CLIENT, IngestSite
from tests.producers.running_producer import Clock, stored_in

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
def logged(caplog: pytest.LogCaptureFixture) -> Any:
    """Asks for the events of a name, each with its fields."""
    caplog.set_level(logging.INFO, "shoal")
    return lambda event: [
        vars(record)["fields"] for record in caplog.records if record.getMessage() == event
    ]


def run_ingest_for(ingest: MqttIngest) -> None:
    """For ten seconds at most."""
    for _ in range(100):
        ingest.step(0.1)


@pytest.mark.parametrize("version", VERSIONS)
def test_messages_sent_while_no_producer_ran_are_aligned_and_stored(
    tmp_path: Path, mosquitto_port: int, version: str
) -> None:
    site = IngestSite(tmp_path, mosquitto_port, version)
    assert site.run().published == 0
    with Sensor(mosquitto_port) as sensor:
        sensor.publish_all([message for number in range(300) for message in site.pair(number)])
    assert site.run(readings=300).published == 300
    assert site.readings() == [[float(number)] * 2 for number in range(300)]
    assert site.counts.faults == {}
    assert site.run().published == 0, "what was acknowledged does not come again"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_that_was_restarted_brings_what_it_held(
    tmp_path: Path, own_broker: Mosquitto, version: str
) -> None:
    site = IngestSite(tmp_path, own_broker.port, version)
    site.run()
    with Sensor(own_broker.port) as sensor:
        sensor.publish_all([message for number in range(50) for message in site.pair(number)])
    own_broker.stop()
    own_broker.start()
    assert site.run(readings=50).published == 50


def test_one_producer_feeds_each_client_that_a_level_of_the_topic_names(
    tmp_path: Path, mosquitto_port: int
) -> None:
    at = f"h{uuid.uuid4().hex}"
    settings = 'client = "{topic.1}"\ntime = "t"'
    site = IngestSite(
        tmp_path, mosquitto_port, settings, plain=False, topics=(f"{at}/+/climate/#", f"{at}/+/air")
    )
    site.client = None
    site.run()

    def messages(room: str, number: int) -> list[tuple[str, str | bytes]]:
        (_, warm), (_, damp) = site.timed(number, THEN + 60 * number)
        return [(f"{at}/{room}/climate/{number}", warm), (f"{at}/{room}/air", damp)]

    def stored() -> dict[str, list[list[float]]]:
        return {
            name: [record.values for record in kept]
            for name, kept in stored_in(tmp_path / "clients").items()
        }

    south = client_name_of("Werk Süd")
    with Sensor(mosquitto_port) as sensor:
        sensor.publish_all([*messages("Werk Süd", 0), *messages("hall", 1), *messages("hall", 2)])
        # The other half comes to the next process, at the same time as another room's.
        sensor.publish_all(
            [*messages("Werk Süd", 3)[:1], (f"{at}//air", '{"t": 1, "air": {"damp": 1}}')]
        )
    counts = site.run(readings=3, faults=1)
    assert counts.by_client == {"hall": 2, south: 1}
    assert counts.faults == {"nameless": 1}
    with Sensor(mosquitto_port) as sensor:
        sensor.publish_all([*messages("hall", 3), messages("Werk Süd", 3)[1]])
    site.run(readings=2)
    assert stored() == {"hall": [[1, 1], [2, 2], [3, 3]], south: [[0, 0], [3, 3]]}
    assert (tmp_path / "clients" / south / "name.txt").read_text(encoding="utf-8") == "Werk Süd\n"


def test_a_lost_broker_is_reported_and_no_reading_is_stored_twice(
    tmp_path: Path, own_broker: Mosquitto
) -> None:
    site = IngestSite(tmp_path, own_broker.port)
    with open_mqtt_ingest(site.config, CLIENT, tmp_path / "clients", site.counts) as ingest:
        with Sensor(own_broker.port) as sensor:
            sensor.publish_all([message for number in range(5) for message in site.pair(number)])
        while site.counts.published < 5:
            ingest.step(0.1)
        own_broker.stop()
        with pytest.raises(LogUnavailable, match="cannot be reached"):
            run_ingest_for(ingest)
    own_broker.start()
    with Sensor(own_broker.port) as sensor:
        sensor.publish_all(site.pair(5))
    site.run(readings=1)
    assert site.readings() == [[float(number)] * 2 for number in range(6)]


def test_messages_keep_their_own_times_in_any_order_of_arrival(
    tmp_path: Path, mosquitto_port: int
) -> None:
    site = IngestSite(tmp_path, mosquitto_port, 'time = "t"', plain=False)
    site.run()
    messages = [site.timed(number, THEN + 60 * number) for number in range(20)]
    with Sensor(mosquitto_port) as sensor:
        # The one sensor has been away: all it has to say comes after the other's.
        sensor.publish_all(
            [pair[0] for pair in messages[:10]] + [pair[1] for pair in messages[:10]]
        )
        sensor.publish_all([message for pair in messages[10:] for message in pair])
    site.run(readings=11)
    assert site.counts.faults == {"incomplete": 9, "late": 9}, (
        "by default a reading waits 10 s of its own time"
    )
    assert site.times() == [THEN + 60 * number for number in range(9, 20)]
    assert site.readings() == [[float(number)] * 2 for number in range(9, 20)]


def test_a_reading_whose_sensor_is_late_is_learnt_for_what_came(
    tmp_path: Path, mosquitto_port: int
) -> None:
    site = IngestSite(
        tmp_path, mosquitto_port, 'time = "t"', plain=False, privacy='missing = "learn"'
    )
    site.run()
    messages = [site.timed(number, THEN + 60 * number) for number in range(6)]
    with Sensor(mosquitto_port) as sensor:
        # The damp of 2 and the warm of 3 never come.
        sensor.publish_all(
            [
                record
                for pair in (*messages[:2], messages[2][:1], messages[3][1:], *messages[4:])
                for record in pair
            ]
        )
    site.run(readings=6)
    assert site.times() == [THEN + 60 * number for number in range(6)]
    expected = [[0, 0], [1, 1], [2, math.nan], [math.nan, 3], [4, 4], [5, 5]]
    np.testing.assert_array_equal(
        np.array(site.readings(), dtype=float), np.array(expected, dtype=float)
    )


def test_who_waits_longer_loses_nothing(tmp_path: Path, mosquitto_port: int) -> None:
    site = IngestSite(tmp_path, mosquitto_port, 'time = "t"\nwait_s = 3600', plain=False)
    site.run()
    messages = [site.timed(number, THEN + 60 * number) for number in range(10)]
    with Sensor(mosquitto_port) as sensor:
        sensor.publish_all([pair[0] for pair in messages] + [pair[1] for pair in messages])
    site.run(readings=10)
    assert site.times() == [THEN + 60 * number for number in range(10)]


def test_missing_values_are_filled_when_the_settings_say_so(
    tmp_path: Path, mosquitto_port: int
) -> None:
    site = IngestSite(
        tmp_path, mosquitto_port, 'time = "t"\nmissing = "hold"\nwait_s = 1', plain=False
    )
    site.run()
    with Sensor(mosquitto_port) as sensor:
        sensor.publish_all(site.timed(1, THEN))
        for number in (2, 3, 4):
            sensor.publish(*site.timed(number, THEN + 60 * number)[0])
    # The last one is given out when a second has passed without a word.
    site.run(readings=4)
    assert site.readings() == [[1.0, 1.0], [2.0, 1.0], [3.0, 1.0], [4.0, 1.0]]
    assert site.counts.faults == {"filled": 3}


def test_messages_with_a_user_id_are_readings_of_their_own_with_that_id(
    tmp_path: Path, mosquitto_port: int
) -> None:
    topic = f"h{uuid.uuid4().hex[:12]}/rooms"
    settings = 'time = "t"\nuser_id = "who.id"'
    site = IngestSite(tmp_path, mosquitto_port, settings, plain=False, topics=(topic, topic))
    site.run()
    with Sensor(mosquitto_port) as sensor:
        for user, more in (
            ("anna", {"warm": 1, "air": {"damp": 1}}),
            ("ben", {"warm": 2}),
            (None, {"air": {}}),
        ):
            sensor.publish(topic, json.dumps({"t": THEN, "who": {"id": user}, **more}))
        for user in ("ben", None):
            sensor.publish(
                topic, json.dumps({"t": THEN, "who": {"id": user}, "warm": 3, "air": {"damp": 3}})
            )
    site.run(readings=3)
    assert site.readings() == [[1.0, 1.0], [3.0, 3.0], [3.0, 3.0]], "at one time, and not joined"
    assert site.users() == [b"anna", b"ben", None]
    assert site.counts.faults["incomplete"] == 1


def test_a_message_sent_twice_is_one_reading(tmp_path: Path, mosquitto_port: int) -> None:
    site = IngestSite(tmp_path, mosquitto_port, 'time = "t"', plain=False)
    site.run()
    with Sensor(mosquitto_port) as sensor:
        for number in range(5):
            sensor.publish_all(
                [message for message in site.timed(number, THEN + 60 * number) for _ in range(3)]
            )
    site.run(readings=5, faults=20)
    assert site.readings() == [[float(number)] * 2 for number in range(5)]
    assert site.counts.faults == {"repeated": 20}


def test_what_the_broker_sends_again_is_known_though_it_has_no_time(
    tmp_path: Path, mosquitto_port: int
) -> None:
    site = IngestSite(tmp_path, mosquitto_port)
    site.run()
    with Sensor(mosquitto_port) as sensor:
        sensor.publish_all([message for number in range(8) for message in site.pair(number)])
    forgotten = pytest.MonkeyPatch()
    with forgotten.context() as patch:
        patch.setattr(Connection, "acknowledge", lambda self, messages: None)
        site.run(readings=8)
    site.run(faults=16)
    assert site.counts.faults == {"repeated": 16}
    assert site.readings() == [[float(number)] * 2 for number in range(8)]
    assert site.run().faults == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_old_message_kept_by_the_broker_is_not_taken_for_a_new_one(
    tmp_path: Path, mosquitto_port: int, version: str
) -> None:
    site = IngestSite(tmp_path, mosquitto_port, version)
    with Sensor(mosquitto_port) as sensor:
        sensor.publish_all(site.pair(1), retain=True)
        site.run()
        assert site.readings() == []
        sensor.publish_all(site.pair(2), retain=True)
    assert site.run(readings=1).published == 1, "what is retained and new is new"
    assert site.run().published == 0
    assert site.readings() == [[2.0, 2.0]]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_old_message_with_a_time_of_its_own_is_used_once(
    tmp_path: Path, mosquitto_port: int, version: str
) -> None:
    site = IngestSite(tmp_path, mosquitto_port, f'{version}\ntime = "t"', plain=False)
    with Sensor(mosquitto_port) as sensor:
        sensor.publish_all(site.timed(1, THEN), retain=True)
    site.run(readings=1)
    for _ in range(2):
        site.run()
    assert site.readings() == [[1.0, 1.0]]
    assert site.times() == [THEN]


def test_garbage_is_counted_by_reason_and_never_shown(
    tmp_path: Path, mosquitto_port: int, logged: Any, caplog: pytest.LogCaptureFixture
) -> None:
    site = IngestSite(tmp_path, mosquitto_port, 'time = "t"\npayload_bytes_max = 100', plain=False)
    site.run()
    garbage: list[tuple[str, str | bytes]] = [
        (site.warm, b"\xff secret"),
        (site.warm, "secret"),
        (site.warm, '{"t": 1, "warm": "secret"}'),
        (site.warm, '{"t": "secret", "warm": 1}'),
        (site.warm, '{"t": 1, "warm": NaN}'),
        (site.damp, '{"t": 1, "air": {"damp": 1e999}}'),
        (site.damp, '{"t": 1}'),
        (site.damp, f'{{"t": {time.time() + 3600}, "air": {{"damp": 1}}}}'),
        (site.damp, b"secret" * 100),
    ]
    with Sensor(mosquitto_port) as sensor:
        sensor.publish_all(garbage)
        sensor.publish_all(site.timed(7, THEN))
    site.run(readings=1, faults=9)
    assert site.readings() == [[7.0, 7.0]]
    reasons = ["not_text", "not_json", "timeless", "infinite", "not_a_number", "ahead", "oversized"]
    # NaN is a value that is missing, as a key that is not there.
    assert site.counts.faults == dict.fromkeys(reasons, 1) | {"missing": 2}
    rejections = {
        (fields["reason"], fields["topic"]): fields["messages"]
        for fields in logged("messages_rejected")
    }
    assert rejections["not_a_number", site.warm] == 1
    assert len(rejections) == 9
    assert "secret" not in caplog.text + repr([vars(record) for record in caplog.records])


def test_a_silent_sensor_is_reported_once_and_once_more_when_it_is_back(
    tmp_path: Path, mosquitto_port: int, logged: Any
) -> None:
    site = IngestSite(tmp_path, mosquitto_port, "silent_s = 30")
    steady = Clock()
    with (
        Sensor(mosquitto_port) as sensor,
        open_mqtt_ingest(
            site.config, CLIENT, tmp_path / "clients", site.counts, steady=time.monotonic
        ) as ingest,
    ):
        ingest._steady = steady
        site.counts.silence.start(steady())
        steady.now += 29
        sensor.publish(site.warm, "1")
        while not ingest.step(0.1):
            pass
        assert logged("sensor_silent") == []
        for _ in range(3):
            steady.now += 5
            ingest.step()
        assert logged("sensor_silent") == [{"topic": site.damp, "silent_s": 30.0}]
        sensor.publish(site.damp, "1")
        while not ingest.step(0.1):
            pass
    assert logged("sensor_back") == [{"topic": site.damp, "silent_s": 44.0}]


def test_a_session_that_the_broker_has_lost_is_reported(
    tmp_path: Path, own_broker: Mosquitto, logged: Any
) -> None:
    site = IngestSite(tmp_path, own_broker.port)
    site.run()
    with Sensor(own_broker.port) as sensor:
        sensor.publish_all(site.pair(1))
    site.run(readings=1)
    assert logged("mqtt_session_lost") == []
    own_broker.stop()
    (own_broker.folder / "mosquitto.db").unlink()
    own_broker.start()
    site.run()
    assert len(logged("mqtt_session_lost")) == 1


def test_times_go_on_when_the_clock_is_set_back(tmp_path: Path, mosquitto_port: int) -> None:
    site = IngestSite(tmp_path, mosquitto_port)
    clock = Clock(THEN)
    site.run(clock=clock)
    for number in range(3):
        with Sensor(mosquitto_port) as sensor:
            sensor.publish_all(site.pair(number))
        site.run(readings=1, clock=clock)
        clock.now -= 3600
    times = [at for at in site.times() if at is not None]
    assert times == sorted(set(times))
    assert THEN <= times[0] <= times[-1] < THEN + 1
    assert site.readings() == [[float(number)] * 2 for number in range(3)]


# Its memory.


def test_one_client_has_one_producer(tmp_path: Path, mosquitto_port: int) -> None:
    site = IngestSite(tmp_path, mosquitto_port)
    with (
        open_mqtt_ingest(site.config, CLIENT, tmp_path / "clients", site.counts),
        pytest.raises(
            InvalidState, match=r"is the MQTT producer of client attic of .* running already"
        ),
    ):
        site.run()


def test_memory_of_other_features_is_refused(tmp_path: Path, mosquitto_port: int) -> None:
    site = IngestSite(tmp_path, mosquitto_port)
    site.run()
    with Sensor(mosquitto_port) as sensor:
        sensor.publish_all(site.pair(1))
    site.run(readings=1)
    more = '[[features]]\nname = "new"\nlow = 0\nhigh = 1\n[client]'
    site.file.write_text(site.file.read_text().replace("[client]", more) + 'new = "n"\n')
    with pytest.raises(InvalidState, match="under another contract or version"):
        site.run()


def test_after_its_memory_is_lost_or_older_than_the_log_new_readings_are_stored_all_the_same(
    tmp_path: Path, mosquitto_port: int
) -> None:
    site = IngestSite(tmp_path, mosquitto_port)
    memory = tmp_path / "clients" / CLIENT / "mqtt.db"
    site.run()
    expected: list[list[float]] = []

    def one_more(number: int) -> None:
        with Sensor(mosquitto_port) as sensor:
            sensor.publish_all(site.pair(number))
        site.run(readings=1)
        expected.append([float(number)] * 2)
        assert site.readings() == expected

    one_more(1)
    shutil.copy(memory, tmp_path / "older.db")
    one_more(2)
    shutil.copy(tmp_path / "older.db", memory)
    one_more(3)
    memory.unlink()
    one_more(4)


def test_a_readings_log_that_was_removed_gets_the_readings_from_then_on(
    tmp_path: Path, mosquitto_port: int, logged: Any
) -> None:
    site = IngestSite(tmp_path, mosquitto_port)
    site.run()
    for number in range(3):
        with Sensor(mosquitto_port) as sensor:
            sensor.publish_all(site.pair(number))
        site.run(readings=1)
        if number == 1:
            for file in (tmp_path / "clients" / CLIENT).glob("readings.db*"):
                file.unlink()
    assert len(logged("readings_log_replaced")) == 1
    assert site.readings()[-1] == [2.0, 2.0]


# Who may not, and who is not there.


def test_an_unreachable_broker_is_a_retriable_error(tmp_path: Path) -> None:
    with pytest.raises(
        LogUnavailable, match=r"mqtt://127.0.0.1:1 cannot be reached: Connection refused"
    ):
        IngestSite(tmp_path, 1).run()


def test_an_unknown_host_is_reported(tmp_path: Path, mosquitto_port: int) -> None:
    site = IngestSite(tmp_path, mosquitto_port)
    site.file.write_text(site.file.read_text().replace('"127.0.0.1"', '"nowhere.invalid"'))
    with pytest.raises(LogUnavailable, match=r"nowhere.invalid:.* cannot be reached: "):
        site.run()


def test_two_producers_that_disconnect_each_other_are_reported(
    tmp_path: Path, mosquitto_port: int
) -> None:
    site = IngestSite(tmp_path, mosquitto_port)
    with open_mqtt_ingest(site.config, CLIENT, tmp_path / "clients", site.counts) as ingest:
        with open_mqtt_ingest(site.config, CLIENT, tmp_path / "elsewhere", site.new_tally()):
            pass
        with pytest.raises(LogUnavailable, match="does another producer use our client_id"):
            run_ingest_for(ingest)


def test_a_server_that_is_no_broker_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(mqtt, "CONNECT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port: int = mute.getsockname()[1]
        with pytest.raises(LogUnavailable, match="no answer in time"):
            IngestSite(tmp_path, port).run()


def test_an_unreadable_password_file_is_reported(tmp_path: Path) -> None:
    site = IngestSite(tmp_path, 1, 'user = "u"\nsecret_file = "nowhere"')
    with pytest.raises(
        SettingsError, match=r"\[mqtt\] .*nowhere: cannot be read \(FileNotFoundError\)"
    ):
        site.run()
