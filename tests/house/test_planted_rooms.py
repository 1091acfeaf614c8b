"""What is told of rooms with planted truth: the outage of a server room, and nothing else."""

from __future__ import annotations

import json
import re
from contextlib import closing

import pytest

from shoal.config.settings import Config
from shoal.protocol.labels import Label
from shoal.protocol.topics import LABELS
from shoal.runtime.logs import open_client_log
from shoal.transports.base import latest
from tests.house.planted_rooms import (
    OUTAGE_ROWS,
    SERVER_ROOM,
    START,
    STEP_S,
    office,
    outage_begin,
    run_rooms,
    server_room,
    site_events,
)
from tests.house.small_federation import all_records

DAYS = 24
OUTAGE_DAY = 20
BEGIN = outage_begin(OUTAGE_DAY)
STREAK = 10
"""default of [client] novel_streak"""


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Config:
    readings = {"office": office(DAYS, 0), SERVER_ROOM: server_room(DAYS, 0, OUTAGE_DAY)}
    return run_rooms(tmp_path_factory.mktemp("rooms"), readings, publish_labels=True)


def labels_of(config: Config, client: str) -> dict[int, Label]:
    """Number of a reading -> its label."""
    with closing(open_client_log(config, client)) as log:
        records = latest(log, LABELS)
    labels = {}
    for key, record in records.items():
        labels[int(key.decode().rsplit("/", 1)[1])] = Label.decode(record.value)
    return labels


def test_the_outage_is_told_once_and_soon_and_nothing_else(rooms: Config) -> None:
    assert site_events(rooms, "office") == []
    events = site_events(rooms, SERVER_ROOM)
    assert sorted(event.kind for event in events) == [
        "new_here",
        "novel_streak",
        "novel_streak_ended",
    ]
    (new_here,) = (event for event in events if event.kind == "new_here")
    assert new_here.at == START + (BEGIN + STREAK - 1) * STEP_S
    assert new_here.outside == {"Temperature": "above", "Sound": "below"}
    # The first days may still wait for a label, as readings from before the first snapshot do.
    found = re.search(r"on 0 of (\d+) days before", new_here.text)
    assert found is not None
    assert OUTAGE_DAY - 4 <= int(found[1]) <= OUTAGE_DAY
    (ended,) = (event for event in events if event.kind == "novel_streak_ended")
    assert ended.outside == {"Temperature": "above", "Sound": "below"}
    # Of the readings right after it one may be novel by chance, which makes the end a little later.
    assert 0 <= ended.readings - OUTAGE_ROWS <= 1
    late = (ended.at or 0.0) - START - (BEGIN + OUTAGE_ROWS + STREAK - 1) * STEP_S
    assert 0 <= late < STREAK * STEP_S


def test_every_reading_of_the_outage_is_novel_and_says_why(rooms: Config) -> None:
    labels = labels_of(rooms, SERVER_ROOM)
    outage = [labels[number] for number in range(BEGIN, BEGIN + OUTAGE_ROWS)]
    assert all(label.new_here and label.usual_in for label in outage)
    assert all(label.reasons for label in outage)
    others = [label for number, label in labels.items() if number - BEGIN not in range(OUTAGE_ROWS)]
    assert not any(label.new_here for label in others)
    assert sum(bool(label.usual_in) for label in others) < 0.003 * len(others)


def test_the_outage_is_in_the_federation_where_labels_are_published(rooms: Config) -> None:
    records = all_records(rooms.log.address, rooms.contract.labels_topic)
    published = [json.loads(record.value or b"{}") for record in records]
    events = [event for event in published if event.get("kind")]
    assert [(event["kind"], event["client"]) for event in events] == [("new_here", SERVER_ROOM)]
    labels = [label for label in published if label.get("new_here") is True]
    assert len(labels) == OUTAGE_ROWS
