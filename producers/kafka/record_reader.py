"""Reads the messages of a topic, JSON objects, as readings of clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from shoal.config.extension_settings import ReadMessage
from shoal.config.settings import Config
from shoal.errors import SettingsError
from shoal.producers.kafka.settings import KafkaSourceSettings
from shoal.producers.messages import (
    DecodeMessage,
    MessageSettings,
    ParsedPayload,
    TopicField,
    parse_payload,
    quoted_path,
    values_with_gaps,
)
from shoal.producers.source import SourceReading
from shoal.producers.values import Gaps, MissingOfSource, missing_of
from shoal.protocol.readings import NUMBER, USER_ID, Reading, codes_of, number_contents
from shoal.transports.base import Record


class RecordSettings(MessageSettings, Protocol):
    """The settings that records are read by."""

    @property
    def fields(self) -> Mapping[str, str]: ...

    @property
    def quality(self) -> Mapping[str, str]: ...

    @property
    def na_values_of(self) -> Mapping[str, Sequence[str]]: ...

    @property
    def missing(self) -> MissingOfSource: ...


class RecordReader:
    """Reads records by the rules of [kafka] or [influx]: fields, time, missing values."""

    def __init__(
        self,
        config: Config,
        settings: RecordSettings,
        faults: Counter[str],
        decode: DecodeMessage | None = None,
    ) -> None:
        """`faults` counts the readings that are filled or learnt with gaps; `decode`: see
        `parse_payload`."""
        contract = config.contract
        self._decode = decode
        self._settings = settings
        self._width = contract.width
        self._faults = faults
        codes = codes_of(contract)
        self._wanted = []
        for place, feature in enumerate(contract.features):
            path = settings.fields.get(feature.name) or quoted_path([feature.name])
            quality = settings.quality.get(feature.name, "")
            no_values = tuple(settings.na_values_of.get(feature.name, ()))
            self._wanted.append(TopicField(place, path, codes.get(place), quality, no_values))
        missing = missing_of(settings.missing, contract)
        self.gaps = Gaps(missing, contract.learns_gaps, faults)

    def parse(self, record: Record, now: float) -> ParsedPayload:
        """The values in a record, `now` in seconds since 1970; without values and with faults where
        it is of no use.

        Raises `MissingCodec`, and what `decode` raises.
        """
        if record.value is None and record.headers:
            # Records of an embedded log are read without the library of Kafka.
            from shoal.transports.kafka.consumer import (  # noqa: PLC0415 - of Kafka alone
                check_codec,
            )

            check_codec(record)
        # With a time of its own a message is compared with the clock now, so that one from the
        # future is found.
        arrival = now if self._settings.time else record.timestamp_ms / 1000
        payload = record.value or b""
        # Kafka has -1 for the time of a record without one.
        parsed = parse_payload(
            payload, self._wanted, self._settings, max(arrival, 0.0), self._decode
        )
        if parsed.values is None or not self._is_usable(parsed.faults):
            return parsed._replace(values=None, faults=parsed.faults or ["incomplete"])
        # A message that is of use all the same is not rejected, and its bad values are counted.
        if "bad_quality" in parsed.faults:
            self._faults["bad_quality"] += parsed.faults.count("bad_quality")
        return parsed

    def reading(self, client: str, parsed: ParsedPayload) -> SourceReading | None:
        """The reading of this client; None where it lacks a value that it needs."""
        assert parsed.values is not None
        row = values_with_gaps(parsed.values.values, self._width)
        (values,) = self.gaps.treat([client], row[None])
        if np.isnan(values).any():
            if not self.gaps.learns:
                return None
            self._faults["with_gaps"] += 1
        return SourceReading(client, parsed.values.time, values, user=parsed.user)

    def _is_usable(self, faults: Sequence[str]) -> bool:
        """Whether a message with these faults makes a reading: one without, or one whose missing
        values are filled or learnt as gaps."""
        if not faults:
            return True
        return self.gaps.treats and set(faults) <= {"missing", "undeclared", "bad_quality"}


def decoder_of(settings: KafkaSourceSettings) -> DecodeMessage | None:
    """Reads messages by the schema registry of the settings; None where they name none."""
    if not settings.schema_registry:
        return None
    # Loaded only where a registry is used.
    from shoal.producers.kafka.schema_registry import (  # noqa: PLC0415 - of the extra registry
        SchemaRegistry,
    )

    return SchemaRegistry(settings).fields


def message_reader(
    config: Config, settings: KafkaSourceSettings, field: str
) -> Callable[[Record, float], ReadMessage]:
    """A function that reads a record at a time (seconds since 1970) as a message of the client that
    its `field` names; with an empty `field` the message names none.

    Raises `SettingsError` where missing values are to be filled with the last ones: these are not
    kept.
    """
    if missing_of(settings.missing, config.contract) == "hold":
        raise SettingsError(
            '[host] reads each message by itself, and missing = "hold" fills it from those before:'
            " choose another value for missing in [kafka]"
        )
    own = settings.model_copy(update={"client": field})
    reader = RecordReader(config, own, Counter(), decoder_of(settings))

    def read(record: Record, now: float) -> ReadMessage:
        parsed = reader.parse(record, now)
        if parsed.values is None:
            return ReadMessage(parsed.client, parsed.faults[0])
        reading = reader.reading(parsed.client, parsed)
        if reading is None:
            return ReadMessage(parsed.client, "missing")
        [number] = number_contents([record.offset], [reading.time])
        headers = (*Reading.headers(), (NUMBER, number))
        if settings.user_id:
            headers = (*headers, (USER_ID, (reading.user or "").encode()))
        return ReadMessage(
            parsed.client, "", headers, Reading(reading.time, reading.values).encode()
        )

    return read
