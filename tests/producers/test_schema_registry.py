"""Messages in the form of a schema registry: Avro, Protobuf and JSON, against the HTTP API that
Confluent documents for registries, on loopback."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from shoal.config.settings import load_config
from shoal.errors import LogUnavailable
from shoal.producers.kafka.ingest import KafkaCounts
from shoal.producers.kafka.record_reader import message_reader
from shoal.producers.kafka.schema_registry import SchemaRegistry
from shoal.producers.kafka.settings import KafkaSourceSettings
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS, readings_settings
from shoal.runtime.logs import open_readings
from shoal.transports.base import Record, TopicSettings
from shoal.transports.sqlite.log import SqliteLog
from tests.producers.test_gaps_of_topics import FILE, opened

SECOND_US = 10**6
AIR: dict[str, Any] = {
    "type": "record",
    "name": "Air",
    "fields": [{"name": "warm", "type": ["null", "double"]}, {"name": "damp", "type": "float"}],
}
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "air", "type": "Air"},
    ],
}
Registry = dict[str, dict[str, Any]]


@pytest.fixture
def registry() -> Iterator[tuple[str, Registry, list[str]]]:
    """The address of a registry, what it has by path, and the paths that were asked for."""
    answers: Registry = {}
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            answer = answers.get(self.path)
            content = json.dumps(answer or {"error_code": 40403}).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing on the terminal."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", answers, asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def behind_header(number: int, content: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + content


def avro_message(warm: float | None, damp: float, second: int) -> bytes:
    named: dict[str, Any] = {}
    fastavro.parse_schema(AIR, named_schemas=named)
    content = io.BytesIO()
    reading = {"t": second * SECOND_US, "air": {"warm": warm, "damp": damp}}
    fastavro.schemaless_writer(content, fastavro.parse_schema(AVRO, named_schemas=named), reading)
    return content.getvalue()


def add_avro(answers: Registry, number: int) -> None:
    reference = {"name": "Air", "subject": "the air", "version": 3}
    answers[f"/schemas/ids/{number}"] = {"schema": json.dumps(AVRO), "references": [reference]}
    answers["/subjects/the%20air/versions/3"] = {"schema": json.dumps(AIR)}


def protobuf_files() -> tuple[descriptor_pb2.FileDescriptorProto, ...]:
    """A file of the message `Air`, and one of `Other` and `Site`, which has `Site.Reading` in
    it."""
    air = descriptor_pb2.FileDescriptorProto(name="air.proto", package="p", syntax="proto3")
    message = air.message_type.add(name="Air")
    message.field.add(name="warm", number=1, type=1, label=1)
    message.field.add(name="damp", number=2, type=2, label=1)
    site = descriptor_pb2.FileDescriptorProto(name="site.proto", package="p", syntax="proto3")
    site.dependency.extend(["air.proto", "google/protobuf/timestamp.proto"])
    site.message_type.add(name="Other")
    reading = site.message_type.add(name="Site").nested_type.add(name="Reading")
    reading.field.add(name="air", number=1, type=11, label=1, type_name=".p.Air")
    at = ".google.protobuf.Timestamp"
    reading.field.add(name="t", number=2, type=11, label=1, type_name=at)
    return air, site


def protobuf_message(warm: float, damp: float, second: int) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    for file in protobuf_files():
        pool.Add(file)
    reading: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Site.Reading"))()
    reading.air.warm = warm
    reading.air.damp = damp
    reading.t.seconds = second
    # Two types deep: the second of the file, then the first in it; lengths and indexes zigzag.
    return b"\x04\x02\x00" + bytes(reading.SerializeToString())


def add_protobuf(answers: Registry, number: int) -> None:
    air, site = protobuf_files()
    references = [{"name": "air.proto", "subject": "air", "version": 1}]
    texts = {"/subjects/air/versions/1": air, f"/schemas/ids/{number}": site}
    for path, file in texts.items():
        answers[path] = {"schemaType": "PROTOBUF", "schema": "syntax ..."}
        coded = base64.b64encode(file.SerializeToString()).decode()
        answers[f"{path}?format=serialized"] = {"schemaType": "PROTOBUF", "schema": coded}
    answers[f"/schemas/ids/{number}"]["references"] = references


def store(folder: Path, messages: Sequence[bytes]) -> None:
    """Write messages to the topic."""
    with closing(SqliteLog(folder / "devices.db", durable=False)) as log:
        log.ensure("devices", TopicSettings())
        for message in messages:
            log.publish("devices", message)
        log.flush()


def readings_of(file: Path) -> list[Reading]:
    """What the readings log of the client has."""
    config = load_config(file)
    with closing(open_readings(config, "hall", config.client.folder)) as readings:
        readings.ensure(READINGS, readings_settings(config.client))
        records, _ = readings.read(READINGS, {0: 0})
    return [Reading.decode(record.value, record.headers) for record in records]


def test_messages_of_a_registry_become_readings_as_those_of_json_do(
    registry: tuple[str, Registry, list[str]], tmp_path: Path
) -> None:
    address, answers, asked = registry
    add_avro(answers, 7)
    add_protobuf(answers, 258)
    answers["/schemas/ids/9"] = {"schemaType": "JSON", "schema": "{}"}
    answers["/schemas/ids/10"] = {"schema": '{"type": "no type"}'}
    air = {"warm": 5.0, "damp": 60.0}
    json_text = json.dumps({"air": air, "t": 1_700_000_005}).encode()
    messages = [
        behind_header(7, avro_message(1.5, 20.0, 1_700_000_001)),
        # Values that are 0 are not sent.
        behind_header(258, protobuf_message(0.0, 30.0, 1_700_000_002)),
        behind_header(9, json_text),
        json_text,
        behind_header(7, avro_message(None, 20.0, 1_700_000_006)),
        behind_header(7, b"\xff"),
        behind_header(258, b"\x05\x00"),
        behind_header(11, b"{}"),
        behind_header(11, b"{}"),
        behind_header(10, b"{}"),
    ]
    fields = f'schema_registry = "{address}/"\n[kafka.fields]\nwarm = "air.warm"\ndamp = "air.damp"'
    file = tmp_path / "plant.toml"
    file.write_text(FILE.format(privacy="", kafka=fields, folder=tmp_path), encoding="utf-8")
    store(tmp_path, messages)
    counts = KafkaCounts()
    with opened(tmp_path, counts) as ingest:
        while ingest.step():
            pass
    readings = readings_of(file)
    assert [(reading.time, *reading.values) for reading in readings] == [
        (1_700_000_001.0, 1.5, 20.0),
        (1_700_000_002.0, 0.0, 30.0),
        (1_700_000_005.0, 5.0, 60.0),
        (1_700_000_005.0, 5.0, 60.0),
    ]
    assert counts.faults == {"missing": 1, "not_of_schema": 2, "unknown_schema": 3}
    assert len(asked) == len(set(asked)), "each schema is asked for once"


def test_a_registry_that_is_away_costs_no_message(tmp_path: Path) -> None:
    # Port 9 of loopback, which nothing serves.
    fields = 'schema_registry = "http://127.0.0.1:9"'
    file = tmp_path / "plant.toml"
    file.write_text(FILE.format(privacy="", kafka=fields, folder=tmp_path), encoding="utf-8")
    store(tmp_path, [behind_header(7, b"x")])
    counts = KafkaCounts()
    with opened(tmp_path, counts) as ingest:
        with pytest.raises(LogUnavailable, match=r"schema_registry .*: not reached"):
            ingest.step()
        assert ingest.positions == {0: 0}, "the position is kept"
    assert not counts.faults


def test_a_schema_that_comes_after_its_messages_is_asked_for_again(
    registry: tuple[str, Registry, list[str]],
) -> None:
    address, answers, _ = registry
    now = [0.0]
    schemas = SchemaRegistry(KafkaSourceSettings(schema_registry=address), lambda: now[0])
    message = behind_header(3, b'{"warm": 1}')
    assert schemas.fields(message) == (None, "unknown_schema")
    answers["/schemas/ids/3"] = {"schemaType": "JSON", "schema": "{}"}
    assert schemas.fields(message) == (None, "unknown_schema")
    now[0] = 60.0
    assert schemas.fields(message) == ({"warm": 1}, "")


def test_a_host_reads_messages_of_a_registry(
    registry: tuple[str, Registry, list[str]], tmp_path: Path
) -> None:
    address, answers, _ = registry
    answers["/schemas/ids/1"] = {"schemaType": "JSON", "schema": "{}"}
    file = tmp_path / "plant.toml"
    registry_line = f'schema_registry = "{address}"'
    text = FILE.format(privacy="", kafka=registry_line, folder=tmp_path)
    file.write_text(text, encoding="utf-8")
    config = load_config(file)
    settings = config.source("kafka")
    assert isinstance(settings, KafkaSourceSettings)
    content = json.dumps({"warm": 1.5, "damp": 20.0, "t": 1_700_000_001, "device": "hall"})
    record = Record("devices", 0, 4, 0, None, behind_header(1, content.encode()), ())
    message = message_reader(config, settings, "device")(record, 1.8e9)
    assert (message.client, message.fault) == ("hall", "")
    reading = Reading.decode(message.value, message.headers)
    assert (reading.time, *reading.values) == (1_700_000_001.0, 1.5, 20.0)
