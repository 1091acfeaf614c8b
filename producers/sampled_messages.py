"""Contents of the messages of a topic, from which a federation file is written; kept nowhere.

The messages of a Kafka topic, or of MQTT topics, become columns as those of files: one for each
field, and one with the client, where a field or a level of the topic names it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from shoal.config.base import similar_name
from shoal.errors import InvalidData, SettingsError
from shoal.producers.column_types import Column, Sample, Understood
from shoal.producers.columns import understand
from shoal.producers.features import feature_names
from shoal.producers.federation_file import Plan
from shoal.producers.file_plan import (
    check_person_is_no_client,
    left_out_of,
    people_of,
    user_column_of,
)
from shoal.producers.files.parsing import number_of
from shoal.producers.files.times import TimeOptions, TimeReader
from shoal.producers.message_times import (
    Sampled,
    date_format_of,
    paths_of,
    sentences_on_zone,
    time_path,
)
from shoal.producers.messages import has_schema_header, quoted_path, time_reader_of
from shoal.producers.mqtt.settings import MqttSettings, parse_place
from shoal.producers.subjects import NO_PEOPLE, People, Subjects, subjects_of
from shoal.transports.base import Log
from shoal.transports.kafka import KAFKA
from shoal.transports.kafka.settings import KafkaSettings

MESSAGES_MAX = 4000
ENOUGH = 200
"""messages after which a Kafka topic is not waited for"""
# Publishers choose how deep objects are nested, and `_flatten` calls itself for each.
DEPTH_MAX = 8
UNREAD_MAX = 12
"""most fields that are listed as not read"""
OF_A_LIST = "a list"
OF_A_SCHEMA = (
    "in the form of a schema registry (Avro, Protobuf or JSON behind a zero byte and the number of"
    " a schema)"
)
TOO_DEEP = f"an object at depth {DEPTH_MAX}"
RECIPE = (
    "a message has to be one object with a field for each quantity; docs/reference/doors.md has the"
    " command that makes such messages of lists"
)
SPARKPLUG_TOPICS = "spBv1.0/"
"""how topics of Sparkplug B begin (specification 3.0, section 4.1)"""
OF_SPARKPLUG = "Sparkplug B (protobuf)"
WEEK_S = 604_800.0
CLIENT = "\0client"
"""name of the column of clients that a level of the topic names"""


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
    """What a federation file for a topic is written from.

    Raises `InvalidData` where there are no messages, and as the log does.
    """
    place = address
    if not address.lower().startswith("kafka://"):
        place = f"kafka://{address}"
    with closing(KAFKA.open(place.partition(":")[2], KafkaSettings())) as log:
        unread: dict[str, str] = {}
        messages = _from_kafka(log, topic, options["seconds"], unread)
    if not messages:
        _refuse_unread(topic, unread)
        raise InvalidData(f"topic {topic!r} has no messages to look at; wait longer with --seconds")
    options = _with_form(options, messages)
    at = time_path(messages, _reader(options))
    names = [name for name in paths_of(messages) if name != at]
    rows = [[message.fields.get(name) for name in names] for message in messages]
    settings = {"address": place, "topic": topic, "time": at, **_written_form(options)}
    stream = Stream(names, rows, {name: name for name in names}, "", settings, None)
    return _plan("kafka", topic, stream, messages, options, unread)


def plan_of_mqtt(broker: str, topic_filter: str, options: Mapping[str, Any]) -> Plan:
    """What a federation file for MQTT topics is written from.

    Raises `InvalidData`, and as the connection does.
    """
    host, _, port = broker.removeprefix("mqtt://").partition(":")
    if port and not port.isdigit():
        raise SettingsError(f"--mqtt {broker}: write HOST or HOST:PORT")
    settings: dict[str, Any] = {"host": host, "port": int(port or 0), **_written_form(options)}
    unread: dict[str, str] = {}
    # The broker would otherwise queue messages for a session that is never resumed.
    connection = MqttSettings(**settings, session_s=1)
    messages = _from_mqtt(connection, topic_filter, options["seconds"], unread)
    if not messages:
        _refuse_unread(topic_filter, unread)
        raise InvalidData(
            f"no message of {topic_filter} came in {options['seconds']:g} s; wait longer with"
            " --seconds"
        )
    options = _with_form(options, messages)
    stream = _stream_of_topics(messages, settings | _written_form(options), _reader(options))
    return _plan("mqtt", topic_filter, stream, messages, options, unread)


def _refuse_unread(origin: str, unread: Mapping[str, str]) -> None:
    """Raise `InvalidData` where there are messages and none is read: it says what they are."""
    what = unread.get("")
    if what == OF_SPARKPLUG:
        raise InvalidData(
            f"the messages of {origin} are {what}, which is not read: docs/how-to/telegraf.md has"
            " the recipe that makes JSON of it"
        )
    if what == OF_A_LIST:
        raise InvalidData(f"the messages of {origin} are lists, which are not read: {RECIPE}")
    if what is not None:
        raise InvalidData(
            f"the messages of {origin} are not read, the first of them is {what}: {RECIPE}"
        )


def _sentences_on_unread(unread: Mapping[str, str]) -> list[str]:
    """The fields that no column was made of, with the reason."""
    sentences = []
    for path, what in list(unread.items())[:UNREAD_MAX]:
        subject = f"field {path}" if path else "some messages"
        sentences.append(f"not read: {subject}, {what}")
    if len(unread) > UNREAD_MAX:
        sentences.append(f"not read: {len(unread) - UNREAD_MAX} more fields")
    if OF_A_LIST in unread.values():
        sentences.append(f"lists are not read: {RECIPE}")
    return sentences


def _reader(options: Mapping[str, Any]) -> TimeReader:
    """The reader of times, by the options of the command line. Raises `SettingsError`."""
    return time_reader_of(options["timezone"] or "", options["date_format"] or "")


def _with_form(options: Mapping[str, Any], messages: Sequence[Sampled]) -> dict[str, Any]:
    """The options with the form of the times of these messages. Raises `SettingsError`."""
    found = date_format_of(messages, options["timezone"] or "", options["date_format"] or "")
    return {**options, "date_format": found}


def _written_form(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options on the form of messages as settings of a section."""
    return {"timezone": options["timezone"] or "", "date_format": options["date_format"] or ""}


def _from_kafka(log: Log, topic: str, seconds: float, unread: dict[str, str]) -> list[Sampled]:
    """The newest messages of a topic; waits only while there are few. `unread` gets the fields
    that are not read, and what they are."""
    from shoal.transports.kafka.consumer import check_codec  # noqa: PLC0415 - Kafka is an extra

    bounds = log.bounds(topic)
    # Of every partition: with keys, all messages of a client are in one of them.
    of_partition = MESSAGES_MAX // len(bounds)
    at = {partition: max(first, end - of_partition) for partition, (first, end) in bounds.items()}
    until = time.monotonic() + seconds
    messages: list[Sampled] = []
    while len(messages) < MESSAGES_MAX:
        records, after = log.read(topic, at, 500, 0.25)
        for record in records:
            check_codec(record)
            fields = _fields_of(record.value or b"", unread)
            # A plain number names no feature, as all messages are of one topic.
            if fields is not None and "" not in fields:
                messages.append(Sampled("", fields, record.timestamp_ms / 1000))
        if after == at and (len(messages) >= ENOUGH or time.monotonic() >= until):
            break
        at = after
    return messages[:MESSAGES_MAX]


def _from_mqtt(
    settings: MqttSettings, topic_filter: str, seconds: float, unread: dict[str, str]
) -> list[Sampled]:
    """The messages that arrive in this time. `unread` gets the fields that are not read.

    The session at the broker ends with the connection.
    """
    from shoal.producers.mqtt.connection import Connection  # noqa: PLC0415 - MQTT is an extra

    try:
        parse_place(topic_filter)
    except ValueError as wrong:
        raise SettingsError(f"--topic {topic_filter}: {wrong}") from None
    until = time.monotonic() + seconds
    messages: list[Sampled] = []
    # A broker closes the older of two connections with one client_id: the producer that runs must
    # not lose its own.
    client_id = f"shoal-init-{secrets.token_hex(6)}"
    # With what is retained: of a sensor that sends rarely nothing else may come.
    with closing(Connection(settings, client_id, [topic_filter], with_retained=True)) as connection:
        while len(messages) < MESSAGES_MAX:
            left = until - time.monotonic()
            if left <= 0:
                break
            received = connection.receive(left)
            for message in received:
                fields = _fields_of(message.payload, unread, message.topic)
                if fields is not None:
                    messages.append(Sampled(message.topic, fields, time.time()))
            # A broker of MQTT 5 sends no more than `UNACKNOWLEDGED_MAX` messages without it.
            connection.acknowledge(received)
    return messages


def _fields_of(payload: bytes, unread: dict[str, str], topic: str = "") -> dict[str, Any] | None:
    """path -> cell of a JSON object, or of a plain number; None for anything else.

    `unread` gets path -> what it is for the fields that are no cells; "" is the whole message.
    `topic`: of MQTT.
    """
    if topic.startswith(SPARKPLUG_TOPICS):
        unread.setdefault("", OF_SPARKPLUG)
        return None
    try:
        # Some systems write a byte order mark first, which the parser of JSON refuses.
        text = payload.decode("utf-8-sig")
        if isinstance(number_of(text), float):
            return {"": text}
        # Nested a thousand times, JSON of a few bytes ends the recursion of the parser.
        value = json.loads(text)
    except (ValueError, RecursionError):
        unread.setdefault("", _form_of(payload))
        return None
    if isinstance(value, list):
        unread[""] = OF_A_LIST
    elif not isinstance(value, dict):
        unread.setdefault("", "a text in quotes, which may hold JSON" if value else "JSON null")
    if not isinstance(value, dict):
        return None
    fields: dict[str, Any] = {}
    _flatten(value, (), fields, unread)
    return fields


def _form_of(payload: bytes) -> str:
    """What a message is that is no JSON, for people."""
    if not payload:
        return "empty"
    if has_schema_header(payload):
        return OF_A_SCHEMA
    try:
        payload.decode()
    except UnicodeDecodeError:
        return "binary: no UTF-8 text"
    return "a text that is no JSON"


def _flatten(
    value: Mapping[str, Any],
    above: tuple[str, ...],
    fields: dict[str, Any],
    unread: dict[str, str],
) -> None:
    for name, cell in value.items():
        path = (*above, name)
        if isinstance(cell, dict) and len(path) < DEPTH_MAX:
            _flatten(cell, path, fields, unread)
        elif isinstance(cell, str | int | float | None) and name and '"' not in name:
            fields[quoted_path(path)] = cell
        elif not name or '"' in name:
            unread[f"{quoted_path(above)}.{name}"] = "a name that no path can have"
        elif isinstance(cell, list | dict):
            unread[quoted_path(path)] = OF_A_LIST if isinstance(cell, list) else TOO_DEEP


def _stream_of_topics(
    messages: Sequence[Sampled], settings: Mapping[str, Any], read: TimeReader
) -> Stream:
    """Columns of the fields of each kind of topic; the first level that differs is the client."""
    topics = [message.topic.split("/") for message in messages]
    if len(set(map(len, topics))) > 1:
        return _stream_of_devices(messages, settings, read)
    varying = []
    for place, level in enumerate(zip(*topics, strict=True)):
        if len(set(level)) > 1:
            varying.append(place)
    # The last level of plain numbers names the feature.
    are_plain = any("" in message.fields for message in messages)
    may_be_client = varying[:-1] if are_plain else varying
    client_level = may_be_client[0] if may_be_client else None
    at = "" if are_plain else time_path(messages, read)
    fields = _TopicFields(varying, client_level, at, read)
    for message, levels in zip(messages, topics, strict=True):
        fields.add(message, levels)
    found = {**settings, "time": at}
    if client_level is None:
        return _stream_of_fields(fields, found, "")
    found["client"] = f"{{topic.{client_level}}}"
    return _stream_of_fields(fields, found, CLIENT)


def _stream_of_devices(
    messages: Sequence[Sampled], settings: Mapping[str, Any], read: TimeReader
) -> Stream:
    """Columns of the fields of topics that differ in their number of levels.

    What is below the levels that all have in common names the client: a device whose name may have
    slashes. Raises `SettingsError` for plain numbers, of which a topic has to name the feature.
    """
    if any("" in message.fields for message in messages):
        raise SettingsError(
            "these topics have different numbers of levels, and plain numbers as messages; give a"
            " --topic for those of one kind"
        )
    topics = [message.topic.split("/") for message in messages]
    prefix = []
    for levels in zip(*topics, strict=False):
        if len(set(levels)) > 1:
            break
        prefix.append(levels[0])
    # One level at least is left for the client.
    prefix = prefix[: min(map(len, topics)) - 1]
    all_below = "/".join([*prefix, "#"])
    at = time_path(messages, read)
    fields = _TopicFields((), None, at, read)
    for message, levels_of_topic in zip(messages, topics, strict=True):
        device = "/".join(levels_of_topic[len(prefix) :])
        fields.add_of(device, all_below, (), message)
    client = f"{{topic.{len(prefix)}+}}"
    return _stream_of_fields(fields, {**settings, "time": at, "client": client}, CLIENT)


def _stream_of_fields(
    fields: _TopicFields, settings: Mapping[str, Any], client_column: str
) -> Stream:
    interval = _usual_gap(fields.times.values())
    found = {**settings}
    if interval is not None:
        # Less than half of the interval, so that two messages of one field are never one reading.
        found["tolerance_s"] = _rounded(0.4 * interval)
        found["wait_s"] = _rounded(max(10.0, 3 * interval))
        found["silent_s"] = _rounded(max(60.0, 5 * interval))
    columns = [CLIENT, *fields.places]
    return Stream(columns, fields.rows(), fields.places, client_column, found, interval)


class _TopicFields:
    """The cells of sampled messages by client and field, and where each field is."""

    def __init__(
        self, varying: Sequence[int], client_level: int | None, at: str, read: TimeReader
    ) -> None:
        """`varying`: levels in which topics differ; `client_level`: the one that names the client;
        `at`: path of the field with the time, empty for the arrival; `read` reads its times."""
        self._read = read
        self._varying = varying
        self._client_level = client_level
        self._at = at
        self._cells: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        self.times: dict[tuple[str, str], list[float]] = defaultdict(list)
        """times at which each client's field was sent, in seconds since 1970"""
        self.places: dict[str, str] = {}
        """topic and path of each field, as `[mqtt.topics]` has them"""

    def add(self, message: Sampled, levels: Sequence[str]) -> None:
        client = ""
        kind_levels = list(levels)
        if self._client_level is not None:
            client = levels[self._client_level]
            kind_levels[self._client_level] = "+"
        named_by = [levels[place] for place in self._varying if place != self._client_level]
        self.add_of(client, "/".join(kind_levels), named_by, message)

    def add_of(
        self, client: str, topic_filter: str, named_by: Sequence[str], message: Sampled
    ) -> None:
        """Add a message of this client, whose topic the filter matches. `named_by`: the levels that
        are a part of the names of its fields."""
        moment = message.arrival
        if self._at:
            moment = self._read([message.fields.get(self._at)]) or message.arrival
        for path, cell in message.fields.items():
            if path and path == self._at:
                continue
            # A payload that is a number has the empty path: its topic alone names it.
            parts = list(named_by)
            place = topic_filter
            if path:
                parts.append(path)
                place = f"{topic_filter}#{path}"
            name = ".".join(parts) or message.topic.rpartition("/")[2]
            self.places[name] = place
            self._cells[client][name].append(cell)
            self.times[client, name].append(moment)

    def rows(self) -> list[list[Any]]:
        """Client and cells of each row, in the order of `places`.

        The fields of a topic come one by one: what is beside each other need not belong together,
        but bounds and kinds of columns need no more.
        """
        rows = []
        for client, own in self._cells.items():
            columns = [own.get(name, []) for name in self.places]
            for row in zip_longest(*columns):
                rows.append([client, *row])
        return rows


def _usual_gap(series: Iterable[Sequence[float]]) -> float | None:
    """The median of the gaps between successive times; None where there is none."""
    gaps = []
    for times in series:
        differences = np.diff(sorted(times))
        gaps += differences[differences > 0].tolist()
    if not gaps:
        return None
    return float(np.median(gaps))


def _rounded(seconds: float) -> float:
    # Two digits: gaps of a sample vary more, and people read the file.
    return float(f"{min(seconds, 86400.0):.2g}")


def _plan(
    kind: str,
    origin: str,
    stream: Stream,
    messages: Sequence[Sampled],
    options: Mapping[str, Any],
    unread: Mapping[str, str],
) -> Plan:
    """The plan: columns named by the last part of their paths where that is enough."""
    named = options["client_column"] or stream.client or None
    if named is not None and named not in stream.names:
        raise SettingsError(
            f"--client-column {named}: no such field; there are {', '.join(stream.names[:12])}"
        )
    subjects = subjects_of(options)
    check_person_is_no_client(subjects, options)
    person = subjects.person_column
    if person and person not in stream.names:
        raise SettingsError(
            f"--person-column {person}: no such field; there are {', '.join(stream.names[:12])}"
        )
    na = tuple(options["na_values"])
    sample = Sample(stream.names, stream.rows, len(stream.rows), where=origin, noun="message")
    found = understand(sample, TimeOptions(), (), named, na, person, options["bad_quality"])
    at = str(stream.settings["time"])
    columns, places = _named_columns(found, stream.places, at)
    if not places:
        raise InvalidData(
            f"{origin}: no field of changing numbers was found, so there is nothing to cluster"
            f"{left_out_of(found)}{''.join(f'; {text}' for text in _sentences_on_unread(unread))}"
        )
    settings = dict(stream.settings)
    client = ""
    for column in found.of("client"):
        if column.name != CLIENT:
            client = column.name
            break
    if client and "client" not in settings:
        settings["client"] = client
        if kind == "mqtt":
            settings["client"] = stream.places[client].rpartition("#")[2]
    settings |= {
        "na_values": list(na or found.na_values),
        "na_values_of": _own_codes(found, places, stream.places),
        "bad_quality": list(found.bad_quality),
        "quality": _quality_fields(found, places, stream.places, kind),
    }
    interval = stream.interval_s or _interval(messages, client, at, _reader(options))
    if kind == "kafka":
        # A field that is called as its feature needs no line.
        settings["fields"] = {
            name: path for name, path in places.items() if path != quoted_path([name])
        }
    else:
        settings["topics"] = places
    senders = _senders(found, sample)
    understood = replace(found, columns=columns, clients=senders, interval_s=interval)
    readings, sentences = _expected_readings(len(messages), origin, len(senders), interval)
    sentences.append(_sentence_on_time(at))
    sentences += _sentences_on_unread(unread)
    sentences += sentences_on_zone(messages, at, _reader(options))
    name = options["name"] or similar_name(origin) or "federation"
    people = people_of(sample, subjects, named or client, interval)
    settings["user_id"] = _user_field(kind, subjects, client, stream, places)
    return Plan(name, understood, subjects, readings, settings, tuple(sentences), kind, people)


def _senders(understood: Understood, sample: Sample) -> tuple[str, ...]:
    """The clients that send a value of some feature. A bridge beside them has messages of its own,
    such as whether it is there, and nothing to cluster."""
    column = next(iter(understood.of("client")), None)
    if column is None:
        return understood.clients
    names = list(sample.names)
    place = names.index(column.name)
    features = [names.index(feature.name) for feature in understood.of("feature")]
    senders = set()
    for row in sample.rows:
        # 0 is a value.
        if any(row[feature] not in {None, ""} for feature in features):
            senders.add(row[place])
    return tuple(client for client in understood.clients if client in senders)


def _user_field(
    kind: str,
    subjects: Subjects,
    client: str,
    stream: Stream,
    features: Mapping[str, str],
) -> str:
    """The field of a message with its user id; empty where none is needed, or none is there.

    `client`: column of clients that a field names; `features`: the place of each feature. Raises
    `SettingsError` where messages have not what a user id needs.
    """
    column = user_column_of(subjects, client)
    if not column or kind != "mqtt":
        return column
    _, _, field = stream.places[column].rpartition("#")
    topics = {place.partition("#")[0] for place in features.values()}
    if "#" not in stream.places[column] or len(topics) > 1:
        raise SettingsError(
            f"{column}: a user id has to be a field of the messages that have all features, so"
            " that each message is a reading of one person"
        )
    return field


def _named_columns(
    understood: Understood, places: Mapping[str, str], at: str
) -> tuple[tuple[Column, ...], dict[str, str]]:
    """The columns but the client that a topic names, each by its short name; and the place of each
    feature by that name. `at`: the field with the time of a message; empty for none."""
    short = _short_names(understood)
    names = feature_names(short[column.name] for column in understood.of("feature"))
    columns = []
    feature_places = {}
    for column in understood.columns:
        if column.name == CLIENT:
            continue
        name = names.get(short[column.name], short[column.name])
        named = replace(column, name=name)
        if column.kind == "time":
            # The time of a message is no column any more.
            reason = (
                "another time" if at else "a date without a time of day, or not in each message"
            )
            named = replace(named, kind="left out", reason=reason)
        columns.append(named)
        if column.kind == "feature":
            feature_places[name] = places[column.name]
    return tuple(columns), feature_places


def _own_codes(
    understood: Understood, places: Mapping[str, str], all_places: Mapping[str, str]
) -> dict[str, list[str]]:
    """feature -> what means "no value" for it alone; see `_quality_fields`."""
    columns = {place: column for column, place in all_places.items()}
    codes = {
        feature: understood.na_values_of.get(columns[place]) for feature, place in places.items()
    }
    return {feature: list(own) for feature, own in codes.items() if own}


def _quality_fields(
    understood: Understood, places: Mapping[str, str], all_places: Mapping[str, str], kind: str
) -> dict[str, str]:
    """feature -> the field with the quality of its values, in the same message.

    `places`: feature -> its place; `all_places`: column -> its place.
    """
    columns = {place: column for column, place in all_places.items()}
    fields = {}
    for feature, place in places.items():
        column = understood.quality.get(columns[place])
        if column is None:
            continue
        field = all_places[column]
        if kind == "mqtt":
            topic, _, field = field.rpartition("#")
            # A message of another topic comes at another time.
            if topic != place.rpartition("#")[0]:
                continue
        fields[feature] = field
    return fields


def _expected_readings(
    messages: int, origin: str, clients: int, interval: float | None
) -> tuple[int, list[str]]:
    """The readings of a week at this interval (seconds), or those of the sample where there is
    none; and what was looked at, in sentences."""
    sentences = [f"{messages:,} messages of {origin} were looked at, and none is kept"]
    if not interval:
        return messages, sentences
    readings = int(max(1, clients) * WEEK_S / interval)
    sentences.append(
        f"one message of a client every {interval:.3g} s: about {readings:,} readings a week"
    )
    return readings, sentences


def _sentence_on_time(at: str) -> str:
    if at:
        return f"the time of a message is that in its field {at}"
    return "the time of a message is its arrival"


def _short_names(understood: Understood) -> dict[str, str]:
    """path of a column -> its last part, or the path itself where features share that part."""
    ends = Counter(_end(column.name) for column in understood.of("feature"))
    short = {}
    for column in understood.columns:
        end = _end(column.name)
        short[column.name] = end if ends[end] == 1 else column.name
    return short


def _end(path: str) -> str:
    """The last part of a path."""
    if path.endswith('"'):
        return path[:-1].rpartition('"')[2]
    return path.rpartition(".")[2]


def _interval(messages: Sequence[Sampled], client: str, at: str, read: TimeReader) -> float | None:
    """The usual seconds between two messages of a client."""
    times: dict[Any, list[float]] = defaultdict(list)
    for message in messages:
        seconds: float | None = message.arrival
        if at:
            seconds = read([message.fields.get(at)])
        if seconds is not None:
            times[message.fields.get(client)].append(seconds)
    return _usual_gap(times.values())


def plan_of_sheet(columns: Sequence[Column], name: str, options: Mapping[str, Any]) -> Plan:
    """What a federation file is written from where a sheet lists the features, without data."""
    understood = Understood(tuple(columns), 0)
    name = options["name"] or similar_name(name) or "federation"
    subjects = subjects_of(options)
    check_person_is_no_client(subjects, options)
    client = options["client_column"] or ""
    settings = {
        "split": f"column:{client}" if client else "",
        "user_column": user_column_of(subjects, client),
    }
    people = People(1.0) if subjects.kind == "client" else NO_PEOPLE
    return Plan(name, understood, subjects, 0, settings, people=people)
