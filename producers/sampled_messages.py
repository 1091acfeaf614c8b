"""Contents of the messages of a topic: some are looked at, and kept nowhere, to write a federation
file from.

The messages of a Kafka topic, or of MQTT topics, become columns as those of files: one for each
field, and one with the client, where a field or a level of the topic names it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from shoal.config.base import similar_name
from shoal.errors import InvalidData, SettingsError
from shoal.producers.columns import Column, Sample, Understood, is_named, understand
from shoal.producers.features import feature_names
from shoal.producers.federation_file import Plan
from shoal.producers.file_plan import is_private
from shoal.producers.files.parsing import number_of, seconds_of
from shoal.producers.files.times import TimeOptions
from shoal.producers.messages import quoted_path
from shoal.producers.mqtt.settings import MqttSettings, parse_place
from shoal.transports.base import Log
from shoal.transports.kafka import KAFKA
from shoal.transports.kafka.settings import KafkaSettings

MESSAGES_MAX = 4000
ENOUGH = 200
"""messages after which a Kafka topic is not waited for"""
DEPTH_MAX = 8
TIMES_SHARE = 0.95
WEEK_S = 604_800.0
CLIENT = "\0client"
"""name of the column of clients that a level of the topic names"""


class Sampled(NamedTuple):
    """One message that was looked at."""

    topic: str
    fields: Mapping[str, Any]
    """path -> cell; the path is empty where the message is a plain number"""
    arrival: float
    """seconds since 1970"""


class Stream(NamedTuple):
    """The messages as columns, and how a producer reads them."""

    names: Sequence[str]
    rows: Sequence[Sequence[Any]]
    places: Mapping[str, str]
    """name of a column -> what the section says of it: a field, or a topic with a field"""
    client: str
    """column of clients, if it is known; empty: find it"""
    settings: Mapping[str, Any]
    """further settings of the section"""
    interval_s: float | None
    """usual seconds between two messages of one client and kind"""


def plan_of_kafka(address: str, topic: str, options: Mapping[str, Any]) -> Plan:
    """What a federation file for a topic is written from. Raises `InvalidData` (none), and as the
    log does."""
    place = address if address.lower().startswith("kafka://") else f"kafka://{address}"
    with closing(KAFKA.open(place.partition(":")[2], KafkaSettings())) as log:
        messages = _from_kafka(log, topic, options["seconds"])
    if not messages:
        raise InvalidData(
            f"topic {topic!r} has no JSON objects to look at; wait longer with --seconds"
        )
    at = time_path(messages)
    names = [name for name in _paths(messages) if name != at]
    rows = [[message.fields.get(name) for name in names] for message in messages]
    settings = {"address": place, "topic": topic, "time": at}
    stream = Stream(names, rows, {name: name for name in names}, "", settings, None)
    return _plan("kafka", topic, stream, messages, options)


def plan_of_mqtt(broker: str, topic_filter: str, options: Mapping[str, Any]) -> Plan:
    """What a federation file for MQTT topics is written from. Raises `InvalidData`, and as the
    connection does."""
    host, _, port = broker.removeprefix("mqtt://").partition(":")
    if port and not port.isdigit():
        raise SettingsError(f"--mqtt {broker}: write HOST or HOST:PORT")
    settings: dict[str, Any] = {"host": host, "port": int(port or 0)}
    messages = _from_mqtt(MqttSettings(**settings, session_s=1), topic_filter, options["seconds"])
    if not messages:
        raise InvalidData(
            f"no message of {topic_filter} came in {options['seconds']:g} s that is JSON or a number"
        )
    return _plan("mqtt", host, _stream_of_topics(messages, settings), messages, options)


def _from_kafka(log: Log, topic: str, seconds: float) -> list[Sampled]:
    """The newest messages of a topic; waits only while there are few."""
    bounds = log.bounds(topic)
    each = MESSAGES_MAX // len(bounds)
    at = {partition: max(first, end - each) for partition, (first, end) in bounds.items()}
    until = time.monotonic() + seconds
    found = list[Sampled]()
    while len(found) < MESSAGES_MAX:
        records, after = log.read(topic, at, 500, 0.25)
        for record in records:
            if (fields := _fields_of(record.value or b"")) is not None and "" not in fields:
                found.append(Sampled("", fields, record.timestamp_ms / 1000))
        if after == at and (len(found) >= ENOUGH or time.monotonic() >= until):
            break
        at = after
    return found[:MESSAGES_MAX]


def _from_mqtt(settings: MqttSettings, topic_filter: str, seconds: float) -> list[Sampled]:
    """The messages that arrive in this time. The session at the broker ends with the connection."""
    from shoal.producers.mqtt.connection import Connection  # noqa: PLC0415 - MQTT is an extra

    try:
        parse_place(topic_filter)
    except ValueError as wrong:
        raise SettingsError(f"--topic {topic_filter}: {wrong}") from None
    until = time.monotonic() + seconds
    found = list[Sampled]()
    client_id = f"shoal-init-{secrets.token_hex(6)}"
    with closing(Connection(settings, client_id, [topic_filter], with_retained=True)) as connection:
        while len(found) < MESSAGES_MAX and (left := until - time.monotonic()) > 0:
            received = connection.receive(left)
            for message in received:
                if (fields := _fields_of(message.payload)) is not None:
                    found.append(Sampled(message.topic, fields, time.time()))
            connection.acknowledge(received)
    return found


def _fields_of(payload: bytes) -> dict[str, Any] | None:
    """path -> cell of a JSON object, or of a plain number; None for anything else."""
    try:
        text = payload.decode()
        if isinstance(number_of(text), float):
            return {"": text}
        # Nested a thousand times, JSON of a few bytes ends the recursion of the parser.
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    fields: dict[str, Any] = {}
    _flatten(found, (), fields)
    return fields


def _flatten(found: Mapping[str, Any], above: tuple[str, ...], fields: dict[str, Any]) -> None:
    for name, cell in found.items():
        path = (*above, name)
        if isinstance(cell, dict) and len(path) < DEPTH_MAX:
            _flatten(cell, path, fields)
        elif isinstance(cell, str | int | float | None) and name and '"' not in name:
            fields[quoted_path(path)] = cell


def _paths(messages: Sequence[Sampled]) -> list[str]:
    return list(dict.fromkeys(path for message in messages for path in message.fields))


DATES_MIN = 10
"""different dates in a field that is the time of a message by them and not by its name"""


def time_path(messages: Sequence[Sampled]) -> str:
    """The field with the time of a message, a time in nearly all: one that is named so, else one of
    dates.

    Empty for none.
    """
    paths = [path for path in _paths(messages) if path]
    # A field that is named as a time before one that only looks like it; each in the order of the
    # messages.
    for path in sorted(paths, key=lambda path: not is_named("time", path)):
        cells = [message.fields[path] for message in messages if path in message.fields]
        if not is_named("time", path):
            # A number of another name may be anything, and a date that hardly changes is that of a
            # version.
            cells = [
                cell
                for cell in cells
                if isinstance(cell, str) and not isinstance(number_of(cell), float)
            ]
            if len(set(cells)) < min(DATES_MIN, len(messages) / 2):
                continue
        # A small number is a duration or a counter.
        times = [found for cell in cells if (found := seconds_of(cell)) is not None and found > 1e9]
        if len(times) >= TIMES_SHARE * len(messages):
            return path
    return ""


def _stream_of_topics(messages: Sequence[Sampled], settings: Mapping[str, Any]) -> Stream:
    """Columns of the fields of each kind of topic; the first level that differs names the client."""
    topics = [message.topic.split("/") for message in messages]
    if len(set(map(len, topics))) > 1:
        raise SettingsError(
            "these topics have different numbers of levels; give a --topic for those of one kind"
        )
    varying = [
        place for place, level in enumerate(zip(*topics, strict=True)) if len(set(level)) > 1
    ]
    # The last level of plain numbers names the feature.
    plain = any("" in message.fields for message in messages)
    level = next(iter(varying if not plain else varying[:-1]), None)
    at = "" if plain else time_path(messages)
    cells: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    places: dict[str, str] = {}
    for message, levels in zip(messages, topics, strict=True):
        client = "" if level is None else levels[level]
        kind = "/".join("+" if place == level else name for place, name in enumerate(levels))
        for path, cell in message.fields.items():
            if path and path == at:
                continue
            name = ".".join(
                [*(levels[place] for place in varying if place != level), *filter(None, [path])]
            )
            name = name or levels[-1]
            places[name] = f"{kind}#{path}" if path else kind
            cells[client][name].append(cell)
            times[client, name].append(
                seconds_of(message.fields[at]) or message.arrival if at else message.arrival
            )
    names = list(places)
    rows = [
        [client, *row]
        for client, own in cells.items()
        for row in zip_longest(*(own.get(name, []) for name in names))
    ]
    gaps = [gap for own in times.values() for gap in np.diff(sorted(own)).tolist() if gap > 0]
    interval = float(np.median(gaps)) if gaps else None
    found = {**settings, "time": at}
    if level is not None:
        found["client"] = f"{{topic.{level}}}"
    if interval is not None:
        found |= {
            "tolerance_s": _rounded(0.4 * interval),
            "wait_s": _rounded(max(10.0, 3 * interval)),
        }
        found["silent_s"] = _rounded(max(60.0, 5 * interval))
    return Stream(
        [CLIENT, *names], rows, places, CLIENT if level is not None else "", found, interval
    )


def _rounded(seconds: float) -> float:
    return float(f"{min(seconds, 86400.0):.2g}")


def _plan(
    kind: str, origin: str, stream: Stream, messages: Sequence[Sampled], options: Mapping[str, Any]
) -> Plan:
    """The plan: columns named by the last part of their paths where that is enough."""
    named = options["client_column"] or stream.client or None
    if named is not None and named not in stream.names:
        raise SettingsError(
            f"--client-column {named}: no such field; there are {', '.join(stream.names[:12])}"
        )
    na = tuple(options["na_values"])
    sample = Sample(stream.names, stream.rows, len(stream.rows), number_of, origin)
    found = understand(sample, TimeOptions(), (), named, na)
    ends = Counter(_end(column.name) for column in found.of("feature"))
    short = {
        one.name: _end(one.name) if ends[_end(one.name)] == 1 else one.name for one in found.columns
    }
    names = feature_names(short[one.name] for one in found.of("feature"))
    columns = []
    places = {}
    for column in found.columns:
        if column.name == CLIENT:
            continue
        name = names.get(short[column.name], short[column.name])
        columns.append(replace(column, name=name))
        if column.kind == "feature":
            places[name] = stream.places[column.name]
    if not places:
        raise InvalidData(
            f"{origin}: no field of changing numbers was found, so there is nothing to cluster"
        )
    settings = dict(stream.settings)
    client = next((column.name for column in found.of("client") if column.name != CLIENT), "")
    if client and "client" not in settings:
        settings["client"] = stream.places[client].rpartition("#")[2] if kind == "mqtt" else client
    interval = stream.interval_s or _interval(messages, client, str(settings["time"]))
    if kind == "kafka":
        # A field that is called as its feature needs no line.
        settings["fields"] = {
            name: path for name, path in places.items() if path != quoted_path([name])
        }
    else:
        settings["topics"] = places
    understood = Understood(
        tuple(columns), found.rows, found.clients, interval, found.na_values, found.missing
    )
    readings = int(len(found.clients or [""]) * WEEK_S / interval) if interval else len(messages)
    said = [f"{len(messages):,} messages of {origin} were looked at, and none is kept"]
    said += (
        [f"one message of a client every {interval:.3g} s: about {readings:,} readings a week"]
        if interval
        else []
    )
    at = str(settings["time"])
    said.append(
        f"the time of a message is that in its field {at}"
        if at
        else "the time of a message is its arrival"
    )
    name = options["name"] or similar_name(origin) or "federation"
    return Plan(
        name, understood, is_private(options["private"]), readings, settings, tuple(said), kind
    )


def _end(path: str) -> str:
    """The last part of a path."""
    return path[:-1].rpartition('"')[2] if path.endswith('"') else path.rpartition(".")[2]


def _interval(messages: Sequence[Sampled], client: str, at: str) -> float | None:
    """The usual seconds between two messages of a client."""
    times: dict[Any, list[float]] = defaultdict(list)
    for message in messages:
        own = seconds_of(message.fields.get(at)) if at else message.arrival
        if own is not None:
            times[message.fields.get(client)].append(own)
    gaps = [gap for own in times.values() for gap in np.diff(sorted(own)).tolist() if gap > 0]
    return float(np.median(gaps)) if gaps else None


def plan_of_sheet(columns: Sequence[Column], name: str, options: Mapping[str, Any]) -> Plan:
    """What a federation file is written from where a sheet lists the features, and no data are
    there yet."""
    understood = Understood(tuple(columns), 0)
    name = options["name"] or similar_name(name) or "federation"
    return Plan(name, understood, is_private(options["private"]), 0, {})
