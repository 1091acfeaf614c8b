"""Reads messages in the form of a schema registry: Avro, Protobuf or JSON behind its number.

The form is the wire format of Confluent: a zero byte, the number of the schema in 4 bytes (big
endian), and the message as Avro, Protobuf or JSON. The schema is asked for once, by the HTTP API
that Confluent's registry documents (`GET /schemas/ids/{id}`) and others have too.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import http.client
import io
import json
import logging
import math
import ssl
import struct
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from shoal.errors import LogUnavailable, MissingExtra, SettingsError
from shoal.files import read_password
from shoal.producers.messages import SCHEMA_HEADER_BYTES
from shoal.telemetry.events import log_event

TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 8 * 2**20
"""largest answer of a registry that is read"""
SCHEMAS_MAX: Final = 1000
"""schemas that are kept: a writer of the topic can name numbers without end"""
UNKNOWN_FOR_S: Final = 60.0
"""seconds for which a number that the registry does not know is not asked for again: a schema may
come to it later than the first message"""
REFERENCES_MAX: Final = 100
"""most schemas that one schema refers to"""
SERIALIZED: Final = "?format=serialized"
"""asks for a Protobuf schema as its descriptor and not as text"""
VARINT_BYTES_MAX: Final = 5
WELL_KNOWN: Final = "google/protobuf/"
"""folder of the types that every installation of Protobuf has"""
_NOT_HERE: Final = (404, 422)
_NO_RIGHT: Final = (401, 403)
_FLAWS: Final = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
"""what the libraries raise for a message that is not as its schema says, and for a schema that is
none, beside errors of their own, which are made a ValueError"""
_Decode = Callable[[bytes], Any]
"""what is behind the header -> the fields"""


class RegistrySettings(Protocol):
    """How a registry is reached."""

    @property
    def schema_registry(self) -> str: ...

    @property
    def registry_user(self) -> str: ...

    @property
    def registry_secret_file(self) -> Path | None: ...

    @property
    def registry_ca_file(self) -> Path | None: ...


class Reference(NamedTuple):
    """A schema that another one refers to."""

    name: str
    """the name that the other one has for it"""
    text: str


class SchemaRegistry:
    """Decodes messages by the schemas of a registry, each of which is asked for once."""

    def __init__(
        self, settings: RegistrySettings, steady: Callable[[], float] = time.monotonic
    ) -> None:
        """`steady`: a clock that never goes back, seconds. Asks the registry nothing yet."""
        self._address = settings.schema_registry.rstrip("/")
        self._settings = settings
        self._steady = steady
        self._decoders: dict[int, _Decode] = {}
        """number of a schema -> how its messages are decoded; the one used last is the last"""
        self._unknown: dict[int, float] = {}
        """number that the registry does not know -> when it was asked, by `steady`"""

    def fields(self, payload: bytes) -> tuple[Any, str]:
        """The fields of a message with a header, and why it has none: `unknown_schema`,
        `not_of_schema` or "".

        Raises `LogUnavailable` where the registry is away, `SettingsError` where it refuses, and
        `MissingExtra`.
        """
        number = int.from_bytes(payload[1:SCHEMA_HEADER_BYTES], "big")
        decode = self._decoder(number)
        if decode is None:
            return None, "unknown_schema"
        try:
            return decode(payload[SCHEMA_HEADER_BYTES:]), ""
        except _FLAWS:
            return None, "not_of_schema"

    def _decoder(self, number: int) -> _Decode | None:
        decode = self._decoders.pop(number, None)
        if decode is None:
            asked_at = self._unknown.get(number, -math.inf)
            if self._steady() < asked_at + UNKNOWN_FOR_S:
                return None
            decode = self._asked(number)
        if decode is None:
            self._unknown[number] = self._steady()
            _keep_newest(self._unknown)
            return None
        self._unknown.pop(number, None)
        self._decoders[number] = decode
        _keep_newest(self._decoders)
        return decode

    def _asked(self, number: int) -> _Decode | None:
        """How messages of this schema are decoded; None for one that the registry does not
        know."""
        schema = self._get(f"/schemas/ids/{number}")
        if schema is None:
            return None
        try:
            return self._made(number, schema)
        except _FLAWS as wrong:
            log_event("schema_unreadable", logging.WARNING, schema=number, error=str(wrong))
            return None

    def _made(self, number: int, schema: Mapping[str, Any]) -> _Decode | None:
        # A registry leaves the type out where it is Avro.
        kind = schema.get("schemaType", "AVRO")
        if kind == "JSON":
            return json.loads
        if kind == "AVRO":
            references = self._references(schema, "")
            return avro_decoder(str(schema.get("schema")), [found.text for found in references])
        if kind == "PROTOBUF":
            serialized = self._get(f"/schemas/ids/{number}{SERIALIZED}") or {}
            references = self._references(schema, SERIALIZED)
            return protobuf_decoder(str(serialized.get("schema")), references, self._address)
        return None

    def _references(self, schema: Mapping[str, Any], form: str) -> list[Reference]:
        """All that a schema refers to, those that others refer to first."""
        found: dict[str, Reference] = {}
        self._add_references(schema, form, found)
        return list(found.values())

    def _add_references(
        self, schema: Mapping[str, Any], form: str, found: dict[str, Reference]
    ) -> None:
        for reference in schema.get("references") or ():
            name = str(reference["name"])
            if name in found:
                continue
            if len(found) >= REFERENCES_MAX:
                raise SettingsError(
                    f"[kafka] schema_registry {self._address}: a schema refers to more than"
                    f" {REFERENCES_MAX} others"
                )
            subject = urllib.parse.quote(str(reference["subject"]), safe="")
            path = f"/subjects/{subject}/versions/{int(reference['version'])}"
            whole = self._get(path) or {}
            self._add_references(whole, form, found)
            text = whole.get("schema")
            if form:
                text = (self._get(f"{path}{form}") or {}).get("schema")
            found[name] = Reference(name, str(text))

    def _get(self, path: str) -> dict[str, Any] | None:
        """The JSON object that the registry has there; None where it has nothing."""
        where = f"[kafka] schema_registry {self._address}"
        request = urllib.request.Request(f"{self._address}{path}")
        request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
        settings = self._settings
        if settings.registry_user and settings.registry_secret_file is not None:
            secret = read_password(settings.registry_secret_file, "kafka")
            login = base64.b64encode(f"{settings.registry_user}:{secret}".encode()).decode()
            request.add_header("Authorization", f"Basic {login}")
        context = None
        if settings.registry_ca_file is not None:
            context = ssl.create_default_context(cafile=str(settings.registry_ca_file))
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
                content = answer.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as refused:
            if refused.code in _NOT_HERE:
                return None
            if refused.code in _NO_RIGHT:
                raise SettingsError(
                    f"{where}: it refuses the login ({refused.code}): check registry_user and"
                    " registry_secret_file"
                ) from None
            raise LogUnavailable(f"{where}: it answers with status {refused.code}") from None
        except (OSError, http.client.HTTPException) as away:
            raise LogUnavailable(f"{where}: not reached ({away}); is it running?") from None
        if len(content) > ANSWER_BYTES_MAX:
            raise SettingsError(f"{where}: an answer is larger than {ANSWER_BYTES_MAX} bytes")
        try:
            found = json.loads(content)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise SettingsError(f"{where}: {path} is no JSON object; is it a schema registry?")
        return found


def avro_decoder(schema: str, references: Iterable[str]) -> _Decode:
    """Decodes messages of an Avro schema, which may name types of `references`. Raises
    `MissingExtra`."""
    fastavro = _library("fastavro", "Avro")
    named: dict[str, Any] = {}
    parsed: Any = None
    try:
        for text in [*references, schema]:
            parsed = fastavro.parse_schema(json.loads(text), named_schemas=named)
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as wrong:
        raise ValueError(str(wrong)) from None

    def decode(content: bytes) -> Any:
        return _plain(fastavro.schemaless_reader(io.BytesIO(content), parsed, None))

    return decode


def protobuf_decoder(schema: str, references: Iterable[Reference], address: str) -> _Decode:
    """Decodes messages of a Protobuf schema, given as its serialized descriptor in base64. Raises
    `MissingExtra`, and `SettingsError` for one that is no such descriptor."""
    descriptor_pb2 = _library("google.protobuf.descriptor_pb2", "Protobuf")
    pools = _library("google.protobuf.descriptor_pool", "Protobuf")
    factory = _library("google.protobuf.message_factory", "Protobuf")
    as_json = _library("google.protobuf.json_format", "Protobuf")
    errors = _library("google.protobuf.message", "Protobuf")
    pool = pools.DescriptorPool()
    files = []
    for name, text in [*references, Reference("", schema)]:
        file = descriptor_pb2.FileDescriptorProto()
        try:
            file.ParseFromString(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError, errors.Error):
            raise SettingsError(
                f"[kafka] schema_registry {address}: it does not give Protobuf schemas as"
                " descriptors (?format=serialized), which is how they are read"
            ) from None
        # Others import it by the name of the reference.
        file.name = name or file.name or "message.proto"
        files.append(file)
    known = {file.name for file in files}
    for file in files:
        for dependency in file.dependency:
            if dependency not in known and dependency.startswith(WELL_KNOWN):
                known.add(dependency)
                _add_well_known(pool, dependency)
        pool.Add(file)
    whole = pool.FindFileByName(files[-1].name)
    messages = list(whole.message_types_by_name.values())

    def decode(content: bytes) -> Any:
        indexes, start = _message_indexes(content)
        descriptor = messages[indexes[0]]
        for index in indexes[1:]:
            descriptor = descriptor.nested_types[index]
        message = factory.GetMessageClass(descriptor)()
        try:
            message.ParseFromString(content[start:])
            # A number that is 0 is not sent, and is there all the same.
            return as_json.MessageToDict(
                message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
        except (errors.Error, as_json.Error) as wrong:
            raise ValueError(str(wrong)) from None

    return decode


def _message_indexes(content: bytes) -> tuple[list[int], int]:
    """Which message of its file a message is, from the outermost type inwards; and where it begins.

    Numbers of variable length, zigzag; a single 0 is the first type. Raises ValueError.
    """
    number, start = _varint(content, 0)
    if number == 0:
        return [0], start
    if not 0 < number <= REFERENCES_MAX:
        raise ValueError("no such number of types")
    indexes = []
    for _ in range(number):
        index, start = _varint(content, start)
        if index < 0:
            raise ValueError("a type before the first")
        indexes.append(index)
    return indexes, start


def _varint(content: bytes, start: int) -> tuple[int, int]:
    """The number at a place, and the place behind it. Raises ValueError."""
    coded = 0
    for place in range(VARINT_BYTES_MAX):
        if start + place >= len(content):
            break
        byte = content[start + place]
        coded |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (coded >> 1) ^ -(coded & 1), start + place + 1
    raise ValueError("not a number of variable length")


def _add_well_known(pool: Any, file: str) -> None:
    """Add a file of Protobuf's own types, and those that it imports, to a pool."""
    module = import_module(file.removesuffix(".proto").replace("/", ".") + "_pb2")
    descriptor = module.DESCRIPTOR
    for dependency in descriptor.dependencies:
        _add_well_known(pool, dependency.name)
    pool.AddSerializedFile(descriptor.serialized_pb)


def _plain(cell: Any) -> Any:
    """A value of Avro as JSON would have it: times as text."""
    if isinstance(cell, dict):
        return {name: _plain(inner) for name, inner in cell.items()}
    if isinstance(cell, datetime.datetime | datetime.date):
        return cell.isoformat()
    return cell


def _library(module: str, form: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name not in ("fastavro", "google", "google.protobuf"):
            raise
        raise MissingExtra(f"A topic of messages in {form}", "registry") from None


def _keep_newest(kept: dict[int, Any]) -> None:
    while len(kept) > SCHEMAS_MAX:
        del kept[next(iter(kept))]
