"""Row F3: a broker full of retained messages, and a sensor that floods, leave the readings of
others whole."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from tests.mosquitto_broker import Sensor
from tests.producers.mqtt_ingest import IngestSite

CLIENTS = 'client = "{topic.1}"\ntime = "t"'
STORM = 800
LARGE = [
    b"[" * 500_000,
    b'{"warm":' * 60_000,
    b"9" * 1_000_000,
    b"\0" * 100_000,
    b'"' + b"\\u0041" * 100_000,
]
NONSENSE = [b"", b"NaN", b"1e999", b"-Infinity", b"true", b"{}", b"\xff\xfe", b"[1,2]", b"0x10"]


def resident_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("retain", [True, False], ids=["retained", "flood"])
def test_a_storm_under_the_same_wildcard_costs_no_reading_of_another_sensor(
    tmp_path: Path, mosquitto_port: int, retain: bool
) -> None:
    name = tmp_path.name.replace("_", "-")
    site = IngestSite(
        tmp_path,
        mosquitto_port,
        plain=False,
        topics=(f"{name}/+/warm", f"{name}/+/damp"),
        settings=CLIENTS,
    )
    site.client = None
    site.run()
    before = resident_mib()
    with Sensor(mosquitto_port) as sensor:
        storm = [
            (f"{name}/x{number}/warm", NONSENSE[number % len(NONSENSE)]) for number in range(STORM)
        ]
        storm += [(f"{name}/y{number}/damp", payload) for number, payload in enumerate(LARGE)]
        honest = [
            (
                f"{name}/attic/{kind}",
                json.dumps({"t": 1e9 + number, "warm": number, "air": {"damp": number}}),
            )
            for number in range(20)
            for kind in ("warm", "damp")
        ]
        sensor.publish_all(storm, retain)
        sensor.publish_all(honest)
        sensor.publish_all(storm, retain)
    counts = site.run(readings=20)
    assert counts.by_client["attic"] == 20
    assert [values[0] for values in site.readings()] == [float(number) for number in range(20)]
    assert resident_mib() - before < 100
    if retain:
        with Sensor(mosquitto_port) as sensor:
            sensor.publish_all([(topic, b"") for topic, _ in storm], retain=True)
