"""Signs what servers publish in the snapshots topic, and leaves out what is not signed when it is read.

Servers and clients hold one secret, the file `[log] server_key_file`. A process that can write to the log and lacks it
can forge neither a snapshot nor a lease nor any other record of a server; every process that has it, a client too, can.
A signature (HMAC-SHA-256) covers the topic, the record's key, the type and version of the message, and its value. An
old record that is published once more has a valid signature: versions and generations tell that it is old. A process
that can write can still hide a snapshot, because the topic is compacted and keeps the newest record of a key, until the
next one comes.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from shoal.config.settings import Config
from shoal.protocol.signatures import read_keys
from shoal.runtime.checkpoint import OutboxRecord
from shoal.telemetry.events import log_event
from shoal.transports import open_log
from shoal.transports.base import Headers, Log, Positions, Record, TopicSettings

HEADER: Final = "server_signature"
_SIGNED_HEADERS: Final = ("type", "v")


class SignedTopic:
    """A log one of whose topics is signed; a `Log`."""

    def __init__(self, log: Log, topic: str, keys: Sequence[bytes]) -> None:
        """Signs with the first of `keys`, and accepts what is signed with any of them."""
        self._log, self._topic, self._keys = log, topic, list(keys)

    def ensure(self, topic: str, settings: TopicSettings | None = None) -> None:
        self._log.ensure(topic, settings)

    def identity(self, topic: str) -> bytes:
        return self._log.identity(topic)

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        if topic == self._topic:
            headers += _signed(self._keys[0], topic, key, headers, value)
        self._log.publish(topic, value, key, headers, partition)

    def flush(self, timeout_s: float = 30.0) -> None:
        self._log.flush(timeout_s)

    def read(
        self, topic: str, at: Positions, limit: int = 500, timeout_s: float = 0.0
    ) -> tuple[Sequence[Record], Positions]:
        """As `Log.read`, without records of the signed topic that are not signed; none at all means the end."""
        records, after = self._log.read(topic, at, limit, timeout_s)
        if topic != self._topic:
            return records, after
        while records:
            signed = [record for record in records if self._is_signed(record)]
            if len(signed) < len(records):
                log_event("unsigned_records", logging.WARNING, topic=topic, records=len(records) - len(signed))
            if signed:
                return signed, after
            records, after = self._log.read(topic, after, limit, 0.0)
        return records, after

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        return self._log.bounds(topic)

    def show_progress(self, reader: str, topic: str, at: Positions) -> None:
        self._log.show_progress(reader, topic, at)

    def close(self) -> None:
        self._log.close()

    def _is_signed(self, record: Record) -> bool:
        given = dict(record.headers).get(HEADER, b"")
        return any(
            hmac.compare_digest(given, _signature(key, record.topic, record.key, record.headers, record.value))
            for key in self._keys
        )


def open_federation_log(config: Config) -> Log:
    """The federation's log, whose snapshots topic is signed where `[log] server_key_file` names a key.

    Raises `SettingsError` for a key that cannot be read, and as `open_log` does.
    """
    log = open_log(config.log)
    file: Path | None = config.log.server_key_file
    if file is None:
        return log
    try:
        return SignedTopic(log, config.contract.snapshots_topic, read_keys(file))
    except BaseException:
        log.close()
        raise


def snapshot_signer(config: Config) -> Callable[[OutboxRecord], Headers]:
    """A function that gives the header to add to a record: the signature that `open_federation_log` would add, if any.

    For writers to the topic that do not go through a `Log`. Raises `SettingsError` for a key that cannot be read.
    """
    file, topic = config.log.server_key_file, config.contract.snapshots_topic
    if file is None:
        return lambda _: ()
    key = read_keys(file)[0]
    return lambda one: _signed(key, topic, one.key, one.headers, one.value) if one.topic == topic else ()


def _signed(key: bytes, topic: str, record_key: bytes | None, headers: Headers, value: bytes | None) -> Headers:
    return ((HEADER, _signature(key, topic, record_key, headers, value)),)


def _signature(key: bytes, topic: str, record_key: bytes | None, headers: Headers, value: bytes | None) -> bytes:
    parts = [
        topic.encode(),
        record_key or b"",
        *(dict(headers).get(name, b"") for name in _SIGNED_HEADERS),
        value or b"",
    ]
    mac = hmac.new(key, b"shoal server signature 1\0" + bytes([record_key is None, value is None]), "sha256")
    for part in parts:
        mac.update(len(part).to_bytes(8, "little") + part)
    return mac.digest()
