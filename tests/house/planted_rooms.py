"""Rooms of an office building with planted truth, and readings at 5 minutes.

Offices are used by day and empty by night, at weekends and on holidays; a server room is always the
same, but for three hours in which its cooling fails: it goes from 21 to 37 °C, with its fans
silent. Sensors fail as well: the temperature of one room is measured by another sensor from some
day on, and the sound of another one stays at one value for a day.
"""

from __future__ import annotations

from collections.abc import Container
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.config.settings import Config, load_config
from shoal.onebox.federation import OneBox
from shoal.protocol.events import SiteEvent
from shoal.protocol.readings import NUMBER, Reading, number_contents
from shoal.protocol.topics import READINGS, READINGS_SETTINGS, SITE_EVENTS
from shoal.runtime.logs import open_client_log
from shoal.transports.base import latest
from shoal.transports.sqlite.log import SqliteLog
from tests.house.small_federation import give_noise_keys
from tests.small_plant import Clock

STEP_S: Final = 300
A_DAY: Final = 86_400 // STEP_S
START: Final = 1_704_067_200.0
"""a Monday, 2024-01-01"""
SERVER_ROOM: Final = "server-room"
OUTAGE_ROWS: Final = 36
OUTAGE_HOUR: Final = 14
OFFICE: Final = "office"
MEETING_ROOM: Final = "meeting-room"
DAYS: Final = 46
SNAPSHOT_S: Final = 86_400
OUTAGE_DAY: Final = 16
STUCK_DAY: Final = 22
STUCK_HOUR: Final = 10
EXCHANGE_DAY: Final = 29
EXCHANGED_BY: Final = 2.5
"""degrees by which the new sensor shows more"""
HOLIDAYS: Final = range(42, 44)
"""a Monday and a Tuesday"""

FILE: Final = """
[federation]
name = "rooms"
[[features]]
name = "Temperature"
unit = "°C"
low = 0
high = 50
[[features]]
name = "Light"
unit = "lux"
low = 0
high = 1000
[[features]]
name = "Sound"
unit = "dB"
low = 0
high = 100
[privacy]
{privacy}
[[models]]
name = "clusters"
algorithm = "{algorithm}"
{options}
[log]
address = "sqlite:federation.db"
[client]
folder = "clients"
label = true
publish_labels = {publish_labels}
publish_readings = 72
publish_s = 86400
batch_readings_max = 288
[server]
folder = "server"
# However slow the machine: a step that ends by the clock makes a snapshot of fewer updates.
step_s = 3600
pool_clients = 1
unusual_per_month = 0
snapshot_updates = 12
snapshot_s = {snapshot_s}
port = 0
"""


WITHOUT_NOISE: Final = 'mode = "off"'
WITH_NOISE: Final = """mode = "formal"
counts_epsilon = 4.0
times = "public"
window_readings = 100
window_s = 33000.0
"""
"""as `shoal init` writes it for a file of these rooms"""


def outage_begin(day: int) -> int:
    """The number of the first reading of an outage on this day."""
    return day * A_DAY + OUTAGE_HOUR * 3600 // STEP_S


def wander(rng: np.random.Generator, n: int, persistence: float = 0.9) -> NDArray[np.float64]:
    """(n,) a series around 0 with unit variance whose neighbours are alike."""
    steps = rng.normal(0.0, np.sqrt(1 - persistence**2), n)
    series = np.empty(n)
    level = 0.0
    for place in range(n):
        level = persistence * level + steps[place]
        series[place] = level
    return series


def office(days: int, seed: int, holidays: Container[int] = ()) -> NDArray[np.float64]:
    """(n, 3) readings of a room that people use from Monday to Friday, but on no holiday."""
    rng = np.random.default_rng([1, seed])
    n = days * A_DAY
    used = np.zeros(n, dtype=bool)
    for day in range(days):
        if day % 7 < 5 and day not in holidays:
            begin, end = rng.normal([8.5, 17.5], 0.4) * 3600 / STEP_S
            used[day * A_DAY + int(begin) : day * A_DAY + int(end)] = True
    temperature = np.where(used, 23.5, 20.0) + 0.5 * wander(rng, n)
    light = np.where(used, 500.0 + 60.0 * wander(rng, n), np.abs(4.0 * wander(rng, n)))
    sound = np.where(used, 50.0, 25.0) + 2.0 * wander(rng, n, 0.5)
    return np.column_stack([temperature, light, sound])


def server_room(days: int, seed: int = 0, outage_day: int | None = None) -> NDArray[np.float64]:
    """(n, 3) readings of a dark room with loud fans, with an outage on one day."""
    rng = np.random.default_rng([2, seed])
    n = days * A_DAY
    temperature = 21.0 + 0.4 * wander(rng, n)
    light = np.abs(4.0 * wander(rng, n))
    sound = 68.0 + 1.5 * wander(rng, n, 0.5)
    if outage_day is not None:
        begin = outage_begin(outage_day)
        outage = slice(begin, begin + OUTAGE_ROWS)
        temperature[outage] += np.minimum(16.0, np.linspace(2.0, 40.0, OUTAGE_ROWS))
        sound[outage] = 25.0 + 1.5 * rng.normal(size=OUTAGE_ROWS)
    return np.column_stack([temperature, light, sound])


def planted_rooms(days: int = DAYS) -> dict[str, NDArray[np.float64]]:
    """(n, 3) readings of each room in the first of these days, with all that happens in them."""
    office_readings = office(DAYS, 0, HOLIDAYS)
    begin = STUCK_DAY * A_DAY + STUCK_HOUR * 3600 // STEP_S
    office_readings[begin : begin + A_DAY, 2] = office_readings[begin, 2]
    meeting_readings = office(DAYS, 3, HOLIDAYS)
    meeting_readings[EXCHANGE_DAY * A_DAY :, 0] += EXCHANGED_BY
    readings = {
        OFFICE: office_readings,
        MEETING_ROOM: meeting_readings,
        SERVER_ROOM: server_room(DAYS, 0, OUTAGE_DAY),
    }
    return {room: of_room[: days * A_DAY] for room, of_room in readings.items()}


def write_room(config: Config, client: str, readings: NDArray[np.float64]) -> None:
    """Append the readings of a room to its own log, as a producer does: with their times beside
    them."""
    folder = config.client.folder / client
    folder.mkdir(parents=True, exist_ok=True)
    # The noise of counts is a function of the identity of the log, too.
    identity = client.encode().ljust(16, b".")
    with closing(
        SqliteLog(folder / "readings.db", durable=False, new_identity=lambda: identity)
    ) as log:
        log.ensure(READINGS, READINGS_SETTINGS)
        times = [START + number * STEP_S for number in range(len(readings))]
        noted = number_contents(range(len(times)), times)
        values = Reading.encode_many(times, readings)
        for value, content in zip(values, noted, strict=True):
            log.publish(READINGS, value, headers=(*Reading.headers(), (NUMBER, content)))
        log.flush()


def run_rooms(
    folder: Path,
    rooms: dict[str, NDArray[np.float64]],
    options: str = "",
    publish_labels: bool = False,
    *,
    noise: bool = False,
) -> Config:
    """Write a federation of these rooms, and run it to the end. `noise`: in mode formal, with the
    same noise in each run."""
    days = max(len(readings) for readings in rooms.values()) // A_DAY
    file = folder / "rooms.toml"
    text = FILE.format(
        options=options,
        privacy=WITH_NOISE if noise else WITHOUT_NOISE,
        algorithm="density_tree" if noise else "cluster_tree",
        publish_labels=str(publish_labels).lower(),
        snapshot_s=SNAPSHOT_S,
    )
    file.write_text(text, encoding="utf-8")
    config = load_config(file)
    for client, readings in rooms.items():
        write_room(config, client, readings)
    if noise:
        give_noise_keys(folder, list(rooms), federation="rooms")
    # After the readings: their times would be those of a sensor whose clock is ahead.
    clock = Clock(START + days * 86_400.0)
    with OneBox(config, list(rooms), clock) as box:
        box.run_until_idle()
        # The snapshot of the last updates is due by time alone.
        clock.now += SNAPSHOT_S
        box.run_until_idle()
    return config


def site_events(config: Config, client: str) -> list[SiteEvent]:
    """The site events of a client, in the order of their readings."""
    with closing(open_client_log(config, client)) as log:
        events = [SiteEvent.decode(record.value) for record in latest(log, SITE_EVENTS).values()]
    return sorted(events, key=lambda event: event.at or 0.0)
