"""What is told of rooms with planted truth: on site, by page, commands and in the federation.

An outage, a sensor that is stuck, one that is exchanged, and a holiday: each is told, and nothing
else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from shoal.cli.main import shoal
from shoal.config.settings import Config
from shoal.kernels.arrays import Floats
from shoal.onebox.federation import OneBox
from shoal.protocol.events import ClusterEventMessage, SiteEvent
from shoal.protocol.labels import Label
from shoal.protocol.topics import LABELS
from shoal.runtime.logs import open_client_log
from shoal.server_node.history.store import HISTORY_FILE, HistoryReader
from shoal.server_node.outputs.web import create_app, predict
from shoal.server_node.report.status import StatusBoard
from shoal.transports.base import latest
from tests.house.planted_rooms import (
    A_DAY,
    DAYS,
    EXCHANGE_DAY,
    EXCHANGED_BY,
    HOLIDAYS,
    MEETING_ROOM,
    OFFICE,
    OUTAGE_DAY,
    OUTAGE_HOUR,
    OUTAGE_ROWS,
    SERVER_ROOM,
    START,
    STEP_S,
    STUCK_DAY,
    STUCK_HOUR,
    outage_begin,
    planted_rooms,
    run_rooms,
    site_events,
)
from tests.house.small_federation import all_records
from tests.server_node.web_client import WebClient

DAY_S = 86_400
UPDATE_S = 6 * 3600
"""span of the 72 readings of an update"""
BEGIN = outage_begin(OUTAGE_DAY)
STREAK = 10
"""default of [client] novel_streak"""
STUCK_FROM = START + STUCK_DAY * DAY_S + STUCK_HOUR * 3600
EXCHANGED = START + EXCHANGE_DAY * DAY_S
USED_LIGHT = 250.0
"""lux above which an office is used"""
PRIVATE_DAYS = OUTAGE_DAY + 2
# The tree is cut less often than by default, which takes half of the time.
OPTIONS = "options = { rebuild_readings = 2000 }"


@dataclass(frozen=True)
class Rooms:
    """The federation after its last reading, and what it shows."""

    config: Config
    file: Path
    client: WebClient

    def get(self, path: str) -> Any:
        answer = self.client.get(path)
        assert answer.status_code == 200, path
        return answer.json()

    def printed(self, *arguments: str) -> str:
        ran = CliRunner().invoke(shoal, [*arguments, "--config", str(self.file)])
        assert ran.exception is None, ran.output
        return ran.stdout

    def cluster_at(self, **centre: float) -> dict[str, Any]:
        """The cluster whose centre is nearest to these values, among those that are on the page."""
        report = self.get("/v1/clusters?model=clusters")
        places = [feature["name"] for feature in report["features"]]

        def distance(cluster: dict[str, Any]) -> float:
            away = [cluster["centre"][places.index(name)] - centre[name] for name in centre]
            return float(np.abs(away).max())

        nearest: dict[str, Any] = min(report["clusters"], key=distance)
        return nearest


def run_and_open(
    folder: Path, readings: dict[str, Floats], options: str = "", *, noise: bool = False
) -> Iterator[Rooms]:
    """Run a federation of these rooms to its end, and show it."""
    config = run_rooms(folder, readings, options, publish_labels=True, noise=noise)
    with OneBox(config, list(readings)) as box:
        # As after a kill: what was learnt since the newest checkpoint is learnt again.
        box.run_until_idle()
        status = replace(box.server.status(), ended=True)
        history = HistoryReader(config.server.folder / HISTORY_FILE)
        registry = box.server.metrics.registry
        app = create_app(StatusBoard(status), registry, predict, history=history)
        yield Rooms(config, folder / "rooms.toml", WebClient(app))


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rooms]:
    yield from run_and_open(tmp_path_factory.mktemp("rooms"), planted_rooms(), OPTIONS)


@pytest.fixture(scope="module")
def private_rooms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rooms]:
    """The same rooms in mode formal, up to the day after the outage."""
    readings = planted_rooms(PRIVATE_DAYS)
    yield from run_and_open(tmp_path_factory.mktemp("private"), readings, noise=True)


def labels_of(config: Config, client: str) -> dict[int, Label]:
    """Number of a reading -> its label."""
    with closing(open_client_log(config, client)) as log:
        records = latest(log, LABELS)
    labels = {}
    for key, record in records.items():
        labels[int(key.decode().rsplit("/", 1)[1])] = Label.decode(record.value)
    return labels


def of_kind(events: list[SiteEvent], kind: str) -> SiteEvent:
    """The only event of this kind."""
    (event,) = (event for event in events if event.kind == kind)
    return event


def printed_line(event: dict[str, Any]) -> str:
    """The line of `shoal events list` of an event as the page has it."""
    line = f"{utc(event['at'])} clusters {event['text']}"
    if event["found_at"] == event["at"]:
        return line
    until = "" if event["until"] is None else f"until {utc(event['until'])}, "
    return f"{line} ({until}found {utc(event['found_at'])})"


def utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize("kind_of_rooms", ["rooms", "private_rooms"])
def test_the_outage_is_told_once_and_soon_and_nothing_else_of_its_room(
    kind_of_rooms: str, request: pytest.FixtureRequest
) -> None:
    rooms: Rooms = request.getfixturevalue(kind_of_rooms)
    events = site_events(rooms.config, SERVER_ROOM)
    assert sorted(event.kind for event in events) == [
        "new_here",
        "novel_streak",
        "novel_streak_ended",
    ]
    new_here = of_kind(events, "new_here")
    assert new_here.at == START + (BEGIN + STREAK - 1) * STEP_S
    assert new_here.outside is not None
    assert new_here.outside["Temperature"] == "above"
    assert new_here.outside["Sound"] == "below"
    # The first days may still wait for a label, as readings from before the first snapshot do.
    days = re.search(r"on 0 of (\d+) days before", new_here.text)
    assert days is not None
    assert OUTAGE_DAY - 4 <= int(days[1]) <= OUTAGE_DAY
    ended = of_kind(events, "novel_streak_ended")
    # Of the readings right after it one may be novel by chance, which makes the end a little later.
    assert 0 <= ended.readings - OUTAGE_ROWS <= 1
    late = (ended.at or 0.0) - START - (BEGIN + OUTAGE_ROWS + STREAK - 1) * STEP_S
    assert 0 <= late < STREAK * STEP_S


def test_every_reading_of_the_outage_is_novel_and_says_why(rooms: Rooms) -> None:
    labels = labels_of(rooms.config, SERVER_ROOM)
    outage = [labels[number] for number in range(BEGIN, BEGIN + OUTAGE_ROWS)]
    assert all(label.new_here and label.usual_in for label in outage)
    assert all(label.reasons for label in outage)
    others = [label for number, label in labels.items() if number - BEGIN not in range(OUTAGE_ROWS)]
    assert not any(label.new_here for label in others)
    assert sum(bool(label.usual_in) for label in others) < 0.003 * len(others)


def test_the_stuck_sensor_is_told_while_it_is_stuck_and_nothing_else_of_its_room(
    rooms: Rooms,
) -> None:
    events = site_events(rooms.config, OFFICE)
    stuck = of_kind(events, "stuck")
    assert stuck.feature == "Sound"
    # Sound is never twice the same by chance, so hours are enough.
    assert STUCK_FROM < (stuck.at or 0.0) <= STUCK_FROM + 3 * 3600
    assert stuck.readings == ((stuck.at or 0.0) - STUCK_FROM) / STEP_S + 1
    assert f"({stuck.readings} readings)" in stuck.text
    ended = of_kind(events, "stuck_ended")
    assert ended.at == STUCK_FROM + DAY_S
    assert ended.text == "Sound has another value again, after 24 hours (288 readings)"
    # At night, too, it shows the loudness of a day: what is novel, or new here, is the fault.
    for event in events:
        assert STUCK_FROM < (event.at or 0.0) < STUCK_FROM + DAY_S + STREAK * STEP_S, event.text
        # A novel reading may be a little beyond in another feature as well, by chance.
        assert event.outside is None or next(iter(event.outside)) == "Sound", event.text


def test_the_exchanged_sensor_is_told_with_its_day_and_shift_and_nothing_else_of_its_room(
    rooms: Rooms,
) -> None:
    events = site_events(rooms.config, MEETING_ROOM)
    shift = of_kind(events, "level_shift")
    said = re.fullmatch(
        r"Temperature within cluster \d+ is higher by ([\d.]+) °C \([\d.]+ standard deviations\)"
        r" since (\S+)",
        shift.text,
    )
    assert said is not None, shift.text
    assert float(said[1]) == pytest.approx(EXCHANGED_BY, abs=0.3)
    assert said[2] == utc(EXCHANGED)[:10]
    assert EXCHANGED + 10 * DAY_S <= (shift.at or 0.0) <= EXCHANGED + 13 * DAY_S
    # Nothing before it; and what is novel becomes usual within days.
    for event in events:
        if event is not shift:
            assert event.kind in {"novel_streak", "novel_streak_ended"}, event.text
            assert EXCHANGED < (event.at or 0.0) < EXCHANGED + 7 * DAY_S, event.text
            assert [*(event.outside or {}).items()][:1] == [("Temperature", "above")], event.text


def test_the_outage_is_in_the_federation_where_labels_are_published(rooms: Rooms) -> None:
    records = all_records(rooms.config.log.address, rooms.config.contract.labels_topic)
    published = [json.loads(record.value or b"{}") for record in records]
    told = [(event["kind"], event["client"]) for event in published if event.get("kind")]
    assert ("new_here", SERVER_ROOM) in told
    assert ("stuck", OFFICE) in told
    assert MEETING_ROOM not in {client for _, client in told}
    outage = [label for label in published if label.get("new_here") is True]
    assert sum(label["client"] == SERVER_ROOM for label in outage) == OUTAGE_ROWS


def check_counted(report: dict[str, Any], days: int) -> None:
    """That a report counts each planted reading once, over the days that they are of."""
    assert report["counted"]["readings"] == 3 * days * A_DAY
    assert report["counted"]["start"] == START
    assert report["counted"]["end"] == START + days * DAY_S


def test_shares_and_counts_of_the_page_are_the_truth(rooms: Rooms) -> None:
    readings = planted_rooms()
    n = sum(len(of_room) for of_room in readings.values())
    report = rooms.get("/v1/clusters?model=clusters")
    check_counted(report, DAYS)
    offices = np.concatenate([readings[OFFICE], readings[MEETING_ROOM]])
    used = rooms.cluster_at(Light=500.0)
    assert used["share"] == pytest.approx((offices[:, 1] > USED_LIGHT).sum() / n, abs=0.01)
    machines = rooms.cluster_at(Sound=68.0)
    assert machines["share"] == pytest.approx(1 / 3 - OUTAGE_ROWS / n, abs=0.01)
    assert machines["now_share"] == pytest.approx(1 / 3, abs=0.01)
    assert machines["fed_by_text"] == f"{SERVER_ROOM} 100 %"
    assert used["now_share"] == 0.0, "the last reading is of a night"
    night = [
        cluster
        for cluster in report["clusters"]
        if cluster["identity"] not in {used["identity"], machines["identity"]}
    ]
    share = sum(cluster["share"] for cluster in night)
    assert share == pytest.approx(((offices[:, 1] <= USED_LIGHT).sum() + OUTAGE_ROWS) / n, abs=0.01)


def test_events_of_the_federation_have_the_times_of_readings_and_are_the_same_everywhere(
    rooms: Rooms,
) -> None:
    [model] = rooms.get("/v1/status?model=clusters")["models"]
    events = model["clustering"]["events"]
    lines = rooms.printed("events", "list").splitlines()
    lasting = [event for event in events if not event["brief"]]
    assert lines == [printed_line(event) for event in lasting]
    records = all_records(rooms.config.log.address, rooms.config.contract.events_topic)
    published = [ClusterEventMessage.decode(record.value) for record in records]
    assert [
        (event.text, event.happened_at, event.last_reading_at, event.found_at)
        for event in published
    ] == [(event["text"], event["at"], event["until"], event["found_at"]) for event in events]
    for event in events:
        assert START <= event["at"] <= event["found_at"] < START + DAYS * DAY_S, (
            "times are those of readings"
        )


def test_a_cluster_that_is_new_has_the_time_of_its_first_readings(rooms: Rooms) -> None:
    [model] = rooms.get("/v1/status?model=clusters")["models"]
    births = [event for event in model["clustering"]["events"] if event["kind"] == "birth"]
    begun = [event for event in births if event["found_at"] < START + 3 * DAY_S]
    of_stuck = [event for event in births if event not in begun]
    assert min(event["at"] for event in begun) == START
    # An office is first used on the first morning; an update has the readings of six hours.
    used = rooms.cluster_at(Light=500.0)["identity"]
    for event in begun:
        if event["cluster"] == used:
            assert 0 < event["at"] - START <= 9 * 3600
    # The sound of a day in an office that is empty: from the evening of that day on.
    [stuck] = of_stuck
    evening = START + STUCK_DAY * DAY_S + 17.5 * 3600
    assert abs(stuck["at"] - evening) <= UPDATE_S
    assert stuck["found_at"] > stuck["at"]


def test_a_state_of_one_room_is_told_as_that_rooms(rooms: Rooms) -> None:
    [model] = rooms.get("/v1/status?model=clusters")["models"]
    machines = rooms.cluster_at(Sound=68.0)["identity"]
    of_room = re.compile(r"readings, nearly all of them of (\S+)$")
    told = {}
    for event in model["clustering"]["events"]:
        # "is new" and "has parted", and who it is of where it is of one.
        if event["kind"] in {"birth", "parted"}:
            words = of_room.search(event["text"])
            told[event["cluster"]] = None if words is None else words[1]
            day = (event["at"] - START) / DAY_S
            if STUCK_DAY < day < STUCK_DAY + 2:
                assert told[event["cluster"]] == OFFICE, event["text"]
    assert told[machines] == SERVER_ROOM
    # Two rooms are used by day.
    assert told[rooms.cluster_at(Light=500.0)["identity"]] is None


def test_every_event_of_the_federation_has_a_cause_in_the_truth(rooms: Rooms) -> None:
    [model] = rooms.get("/v1/status?model=clusters")["models"]
    used = rooms.cluster_at(Light=500.0)["identity"]
    causes = set()
    for event in model["clustering"]["events"]:
        day = (event["at"] - START) / DAY_S
        kind = event["kind"]
        if day < 3:
            assert kind == "birth", event["text"]
            causes.add("begin")
        elif STUCK_DAY < day < STUCK_DAY + 7:
            # A day of an empty office with the sound of a used one is a state that goes again.
            assert kind in {"birth", "quiet", "gone", "merged"}, event["text"]
            causes.add("stuck")
        elif EXCHANGE_DAY < day < EXCHANGE_DAY + 10:
            assert kind in {"parted", "unlike_others"}, event["text"]
            assert kind == "parted" or f"client {MEETING_ROOM} is" in event["text"]
            causes.add("exchanged")
        else:
            assert HOLIDAYS.start < day <= HOLIDAYS.stop + 2, event["text"]
            assert kind in {"quiet", "returned", "share_moved"}, event["text"]
            assert event["cluster"] == used, event["text"]
            causes.add("holiday")
    assert causes == {"begin", "stuck", "exchanged", "holiday"}


def anomalies(rooms: Rooms, first: float, end: float) -> tuple[dict[str, Any], str]:
    """What the page's API and the command say of a span: the same."""
    span = f"from={first:.0f}&to={end:.0f}"
    served = rooms.get(f"/v1/anomalies?model=clusters&{span}")
    arguments = ("anomalies", "--from", utc(first)[:-1], "--to", utc(end)[:-1])
    assert json.loads(rooms.printed(*arguments, "--json")) == served
    return served, rooms.printed(*arguments)


def test_the_anomalies_of_the_day_of_the_outage_are_those_of_the_server_room(rooms: Rooms) -> None:
    day = START + OUTAGE_DAY * DAY_S
    served, printed = anomalies(rooms, day, day + DAY_S)
    assert {client["client"] for client in served["clients"]} == {SERVER_ROOM}
    assert served["clients"][0]["observed"] == pytest.approx(OUTAGE_ROWS / A_DAY, abs=0.01)
    assert served["clients"][0]["expected"] == 0.0
    line = next(line for line in printed.splitlines() if SERVER_ROOM in line)
    assert re.search(r" 1[23]\.\d %, expected 0\.0 %, chance below 0\.01 %", line), line
    for hour in served["hours"]:
        # An update has the readings of six hours, and spreads them over these.
        apart = (hour["start"] - day) / 3600 - OUTAGE_HOUR
        assert -6 <= apart <= 9


def test_the_anomalies_of_the_holiday_are_those_of_the_offices(rooms: Rooms) -> None:
    used = rooms.cluster_at(Light=500.0)["identity"]
    first = START + HOLIDAYS.start * DAY_S
    served, printed = anomalies(rooms, first, START + HOLIDAYS.stop * DAY_S)
    ranked = [(client["client"], client["cluster"]) for client in served["clients"]]
    assert set(ranked[:2]) == {(OFFICE, used), (MEETING_ROOM, used)}
    assert SERVER_ROOM not in {client for client, _ in ranked}
    readings = planted_rooms()
    for client in served["clients"][:2]:
        light = readings[client["client"]][: HOLIDAYS.start * A_DAY, 1]
        weekday = np.arange(len(light)) // A_DAY % 7 < 5
        usual = (light[weekday] > USED_LIGHT).mean()
        assert client["observed"] == 0.0
        assert client["expected"] == pytest.approx(usual, abs=0.02)
    assert served["states"][0]["cluster"] == used
    assert served["features"] == []
    assert f"{OFFICE}: cluster {used}" in printed


def test_the_exchanged_sensor_is_an_anomaly_of_its_feature(rooms: Rooms) -> None:
    served, _ = anomalies(rooms, EXCHANGED, EXCHANGED + 3 * DAY_S)
    assert {feature["feature"] for feature in served["features"]} == {"Temperature"}
    assert SERVER_ROOM not in {client["client"] for client in served["clients"]}
    for feature in served["features"]:
        # Half of the readings of a state that two rooms share are of the new sensor.
        assert 0 < feature["observed"] - feature["expected"] <= EXCHANGED_BY + 0.2


def test_nothing_is_an_anomaly_of_a_day_on_which_nothing_happened(rooms: Rooms) -> None:
    day = START + (OUTAGE_DAY - 2) * DAY_S - 4 * DAY_S
    served, printed = anomalies(rooms, day, day + DAY_S)
    for kind in ("clients", "features", "states", "hours"):
        assert served[kind] == []
    assert "Nothing has a chance below 1 %" in printed


def quantiles(values: Floats) -> Floats:
    """A tenth, half and nine tenths of the values of each feature lie below: (3, d)."""
    found: Floats = np.quantile(values, [0.1, 0.5, 0.9], axis=0)
    return found


def test_descriptions_are_those_of_the_readings(rooms: Rooms) -> None:
    readings = planted_rooms()
    offices = np.concatenate([readings[OFFICE], readings[MEETING_ROOM]])
    dark = offices[:, 1] <= USED_LIGHT
    outage = slice(BEGIN, BEGIN + OUTAGE_ROWS)
    usual_machines = np.delete(readings[SERVER_ROOM], outage, axis=0)
    used = rooms.cluster_at(Light=500.0)
    machines = rooms.cluster_at(Sound=68.0)
    # Within a fiftieth of what each sensor can show.
    near = np.array([1.0, 20.0, 2.0])
    for cluster, own in [(used, offices[~dark]), (machines, usual_machines)]:
        spread = [[part["low"], part["middle"], part["high"]] for part in cluster["spread"]]
        assert (np.abs(np.array(spread).T - quantiles(own)) <= near).all(), cluster["text"]
        assert (np.abs(np.array(cluster["centre"]) - own.mean(axis=0)) <= near).all()
        assert cluster["at_bounds"] == {}
    said = re.match(r"Light high: (\d+)-(\d+) lux, elsewhere (\d+)-(\d+);", used["text"])
    assert said is not None, used["text"]
    others = np.concatenate([offices[dark], usual_machines])[:, 1]
    truth = [*quantiles(offices[~dark])[[0, 2], 1], *np.quantile(others, [0.1, 0.9])]
    assert [float(end) for end in said.groups()] == pytest.approx(truth, abs=20.0)
    assert used["text"].endswith("most of its readings fall by day")
    assert machines["text"].startswith("Sound high: 66-70 dB, elsewhere ")
    # Of half an hour in which both are used: two of three rooms.
    trend = re.fullmatch(r"(\d+) to (\d+) % in 24 hours", used["trend_text"])
    assert trend is not None, used["trend_text"]
    assert int(trend[1]) == 0
    assert int(trend[2]) == pytest.approx(100 * 2 / 3, abs=6)


def test_cycles_are_those_of_the_readings(rooms: Rooms) -> None:
    printed = rooms.printed("history", "cycles").splitlines()
    served = rooms.get("/v1/clusters?model=clusters")["cycles"]
    assert printed[1 : 1 + len(served)] == [cycle["text"] for cycle in served]
    every = np.stack(list(planted_rooms().values()))
    means = every.reshape(3, DAYS, 4, A_DAY // 4, 3).mean(axis=(0, 1, 3))
    for cycle in served:
        assert cycle["period"] == "day"
        place = ["Temperature", "Light", "Sound"].index(cycle["feature"])
        near = [0.5, 20.0, 1.0][place]
        assert cycle["profile"] == pytest.approx(means[:, place].tolist(), abs=near)
        said = re.search(r"highest 12:00 to 18:00 \(([\d.]+) \S+\)", cycle["text"])
        assert said is not None, cycle["text"]
        assert float(said[1]) == pytest.approx(means[2, place], abs=near)
    assert "Light" in {cycle["feature"] for cycle in served}


def test_changes_between_weeks_are_those_of_the_sensors(rooms: Rooms) -> None:
    first = START + (STUCK_DAY - 1) * DAY_S
    weeks = [utc(first + week * 7 * DAY_S)[:10] for week in range(3)]
    later = ("--from", utc(EXCHANGED)[:10], "--to", utc(EXCHANGED + 7 * DAY_S)[:10])
    printed = rooms.printed("changes", *later, "--before-from", weeks[0], "--before-to", weeks[1])
    lines = printed.splitlines()
    new = lines[lines.index("New") + 1]
    assert new.endswith(f"from {MEETING_ROOM} 100 %")
    gone = re.search(r"no readings fall to it; it had ([\d.]+) %", lines[lines.index("Gone") + 1])
    assert gone is not None, printed
    # In the office that is empty, with the sound of a used one.
    office = planted_rooms()[OFFICE]
    begin = STUCK_DAY * A_DAY + STUCK_HOUR * 3600 // STEP_S
    stuck = (office[begin : begin + A_DAY, 1] <= USED_LIGHT).sum() / (3 * 7 * A_DAY)
    assert float(gone[1]) == pytest.approx(100 * stuck, abs=0.5)


def test_the_page_names_the_client_of_the_exchanged_sensor_since_it_differs(rooms: Rooms) -> None:
    report = rooms.get("/v1/clusters?model=clusters")
    [unlike] = report["unlike"]
    assert unlike["client"] == MEETING_ROOM
    # From the day on which its readings have a cluster of their own.
    assert EXCHANGED <= unlike["since"] <= EXCHANGED + 5 * DAY_S
    usual = report["usual"]
    # A Thursday, beside the working days of four weeks.
    assert (usual["weekend"], usual["like_days"], usual["new"]) == (False, 20, 0)
    assert report["alarm"] is False


@pytest.mark.parametrize("client", [OFFICE, MEETING_ROOM, SERVER_ROOM])
def test_the_terminal_lists_the_events_of_a_site_as_they_are(rooms: Rooms, client: str) -> None:
    printed = rooms.printed("events", "list", "--client", client).splitlines()
    told = [
        " ".join(filter(None, (utc(event.at or 0.0), event.model, event.text)))
        for event in site_events(rooms.config, client)
    ]
    assert sorted(printed) == sorted(told)


def test_private_events_of_the_federation_have_times_of_readings_and_true_clients(
    private_rooms: Rooms,
) -> None:
    rooms = private_rooms
    [model] = rooms.get("/v1/status?model=clusters")["models"]
    events = model["clustering"]["events"]
    lines = rooms.printed("events", "list").splitlines()
    assert lines == [printed_line(event) for event in events if not event["brief"]]
    begun = {event["cluster"] for event in events if event["kind"] in {"birth", "parted"}}
    used = rooms.cluster_at(Light=500.0)["identity"]
    machines = rooms.cluster_at(Sound=68.0)["identity"]
    assert {used, machines} <= begun
    for event in events:
        assert START <= event["at"] <= START + PRIVATE_DAYS * DAY_S, "times are those of readings"
        named = re.search(r"nearly all of them of (\S+)$", event["text"])
        if named is not None:
            assert (event["cluster"], named[1]) == (machines, SERVER_ROOM), event["text"]


def test_private_shares_are_the_truth_within_some_points(private_rooms: Rooms) -> None:
    rooms = private_rooms
    readings = planted_rooms(PRIVATE_DAYS)
    report = rooms.get("/v1/clusters?model=clusters")
    n = sum(len(of_room) for of_room in readings.values())
    check_counted(report, PRIVATE_DAYS)
    offices = np.concatenate([readings[OFFICE], readings[MEETING_ROOM]])
    used = rooms.cluster_at(Light=500.0)
    # In the first days, before clusters are found, no share is known.
    assert used["share"] == pytest.approx((offices[:, 1] > USED_LIGHT).sum() / n, abs=0.03)
    machines = rooms.cluster_at(Sound=68.0)
    assert machines["share"] == pytest.approx(1 / 3 - OUTAGE_ROWS / n, abs=0.03)
    assert machines["fed_by"][0]["client"] == SERVER_ROOM
    near = [1.0, 20.0, 2.0]
    middle = offices[offices[:, 1] > USED_LIGHT].mean(axis=0)
    assert (np.abs(np.array(used["centre"]) - middle) <= near).all()


def test_private_anomalies_of_the_day_of_the_outage_are_those_of_the_server_room(
    private_rooms: Rooms,
) -> None:
    day = START + OUTAGE_DAY * DAY_S
    served, printed = anomalies(private_rooms, day, day + DAY_S)
    assert served["clients"]
    assert {client["client"] for client in served["clients"]} == {SERVER_ROOM}
    # Fewer windows than readings, and noise in each: within two thirds of the outage.
    night = next(client for client in served["clients"] if client["observed"] < 0.5)
    assert night["observed"] == pytest.approx(OUTAGE_ROWS / A_DAY, abs=OUTAGE_ROWS / A_DAY / 1.5)
    assert night["expected"] < 0.03
    # The days before the clusters were found show every room where all of them were.
    assert served["apart"]
    for state in served["apart"]:
        assert START < state["since"] < START + 7 * DAY_S
        assert 0 < state["earlier"] < len(served["earlier"])
        assert f"since {utc(state['since'])[:10]}" in printed


def test_no_private_anomaly_is_listed_of_a_day_on_which_nothing_happened(
    private_rooms: Rooms,
) -> None:
    for day in range(1, OUTAGE_DAY):
        first = START + day * DAY_S
        served, printed = anomalies(private_rooms, first, first + DAY_S)
        for kind in ("clients", "features", "states", "hours"):
            assert served[kind] == [], printed


def test_what_windows_of_many_hours_hide_is_said(private_rooms: Rooms) -> None:
    printed = private_rooms.printed("history", "cycles")
    assert "nothing is known of cycles" in printed
    assert "[privacy] window_readings" in printed
    # 100 readings, one in 5 minutes.
    assert "The day is not looked at: the readings of an update span 8 hours" in printed
    served = private_rooms.get("/v1/cycles?model=clusters")
    assert served["cycles"] == []
    assert served["hidden"] == [{"period": "day", "update_s": 8 * 3600}]
