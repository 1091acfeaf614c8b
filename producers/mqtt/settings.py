"""The section [mqtt] of a federation file: the broker, and how values become readings."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, model_validator

from shoal.config.base import FilePath
from shoal.config.contract import Contract
from shoal.config.extension_settings import SourceSettings
from shoal.config.settings import Config
from shoal.errors import SettingsError
from shoal.producers.messages import DATE_FORMAT_MEANS, PATH, TIMEZONE_MEANS, time_reader_of
from shoal.producers.quality import (
    BAD_QUALITY_MEANS,
    QUALITY_MEANS,
    bad_quality_of,
    quality_by_position,
)
from shoal.producers.values import (
    NA_VALUES_MEANS,
    NA_VALUES_OF_MEANS,
    MissingOfSource,
    missing_of,
    na_values_by_position,
)

PLACE = re.compile(r"(?P<topic>(?:[^#\0]*/)?#|[^#\0]+)(?:#(?P<field>[^#]+))?")
"""a topic, or a filter with wildcards, and a field: `a/b`, `a/+#field`, `a/#`, `a/##field`"""
NOT_OF_OTHERS = (
    'user_id and missing = "hold" exclude each other: a last value may be of another user'
)
LEVEL = re.compile(r"\{topic\.(\d+)(\+?)\}")
"""a level of a topic, or with `+` that one and all below it: names of devices may have a slash"""
PORT = 1883
TLS_PORT = 8883


def parse_place(place: str) -> tuple[str, str]:
    """The topic or filter of a place, and the field; empty for none.

    Raises `ValueError` for what is no place.
    """
    parts = PLACE.fullmatch(place)
    if parts is None or any("+" in level and level != "+" for level in parts["topic"].split("/")):
        raise ValueError("write topic or topic#field; the wildcards + and # stand for whole levels")
    return parts["topic"], parts["field"] or ""


class MqttSettings(SourceSettings):
    """[mqtt]: where `shoal producer --mqtt` gets sensor values, and how they become readings."""

    host: str = Field(default="localhost", min_length=1, description="the MQTT broker")
    port: int = Field(
        default=0, ge=0, le=65535, description="port of the broker; 0: 1883, with TLS 8883"
    )
    version: Literal["5", "3.1.1"] = Field(default="5", description="version of MQTT")
    tls: bool = Field(default=False, description="connect by TLS, and verify the broker")
    ca_file: FilePath | None = Field(
        default=None,
        description="certificates (PEM) of the authorities trusted with TLS; none: those of the"
        " system",
    )
    certificate_file: FilePath | None = Field(
        default=None, description="client certificate (PEM), if the broker asks for one"
    )
    key_file: FilePath | None = Field(
        default=None, description="private key (PEM) of that certificate"
    )
    user: str = Field(default="", description="user name")
    secret_file: FilePath | None = Field(
        default=None, description="file with the password, read at each connection"
    )
    client_id: str = Field(
        default="",
        max_length=128,
        description="of the session; none: `shoal-FEDERATION-CLIENT`, or `shoal-FEDERATION` for"
        " several clients; `{client}`: its name",
    )
    # 2**32 - 1 would be a session without an end (MQTT 5, 3.1.2.11.2), for which a broker collects
    # messages for ever.
    session_s: int = Field(
        default=604800,
        ge=1,
        le=2**32 - 2,
        description="seconds that the broker keeps messages while the producer is not connected"
        " (MQTT 5)",
    )
    topics: dict[str, str] = Field(
        default_factory=dict,
        description="feature = `topic` (plain numbers) or `topic#field` (JSON; `a.b`: b in a);"
        " `{client}`: its name; `+` and `#`: wildcards",
    )
    client: str = Field(
        default="",
        description="for several clients, what names the client of a message: `{topic.1}`, a level"
        " of its topic, counted from 0; `{topic.1+}`, that one with all below it; or a field"
        " (JSON); none: `--name`",
    )
    time: str = Field(
        default="", description="field (JSON) with the time of a message; none: the time it arrives"
    )
    user_id: str = Field(
        default="",
        description="field (JSON) with the person or device that a message is from, for `unit` of"
        " [privacy]; all features are then in one topic, and each message is a reading of its own",
    )
    tolerance_s: float = Field(
        default=1.0,
        ge=0,
        le=86400,
        description="seconds that the values of one reading may lie apart",
    )
    wait_s: float = Field(
        default=10.0, ge=0, le=86400, description="seconds that a reading waits for missing values"
    )
    missing: MissingOfSource = Field(
        default="",
        description="what then happens: the reading is dropped (`drop`), filled up with each"
        " sensor's last value (`hold`), or learnt for the values that it has (`learn`, which"
        " [privacy] must say too); none: as [privacy] says",
    )
    hold_s: float = Field(
        default=300.0,
        gt=0,
        le=10**9,
        description="`hold`: seconds after which a last value is too old",
    )
    timezone: str = Field(default="", description=TIMEZONE_MEANS)
    date_format: str = Field(default="", description=DATE_FORMAT_MEANS)
    na_values: tuple[str, ...] = Field(default=(), strict=False, description=NA_VALUES_MEANS)
    na_values_of: dict[str, list[str]] = Field(default_factory=dict, description=NA_VALUES_OF_MEANS)
    quality: dict[str, str] = Field(
        default_factory=dict,
        description=QUALITY_MEANS.format(column="field (JSON) of the same message"),
    )
    bad_quality: tuple[str, ...] = Field(default=(), strict=False, description=BAD_QUALITY_MEANS)
    ahead_s: float = Field(
        default=60.0,
        ge=0,
        le=10**9,
        description="seconds that a time may lie in the future; beyond, the sensor's clock is"
        " wrong",
    )
    silent_s: float = Field(
        default=60.0,
        ge=0,
        le=10**9,
        description="warn about a topic without a message for this many seconds; 0: never",
    )
    payload_bytes_max: int = Field(
        default=65536, ge=1, le=2**20, description="largest message that is read"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not self.tls and (self.ca_file or self.certificate_file or self.key_file):
            raise ValueError("ca_file, certificate_file and key_file are for TLS: set tls = true")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file go together")
        if bool(self.user) != (self.secret_file is not None):
            raise ValueError("user and secret_file go together")
        for feature, place in self.topics.items():
            try:
                topic, field = parse_place(place)
            except ValueError as wrong:
                raise ValueError(f"topics.{feature}: {wrong}") from None
            if self.client and "{client}" in topic:
                raise ValueError(f"topics.{feature}: with client, write + in place of {{client}}")
            if self.client_field and not field:
                raise ValueError(
                    f"topics.{feature}: a plain number names no client: write topic#field"
                )
            for level, _ in LEVEL.findall(self.client):
                self._check_level(topic, int(level))
            if self.time and not field:
                raise ValueError(
                    f"topics.{feature}: a plain number has no time: write topic#field, or leave out"
                    " time"
                )
        return self

    @model_validator(mode="after")
    def _keeps_users_apart(self) -> Self:
        rest = LEVEL.sub("", self.client)
        if self.client and ("{" in rest or (rest == self.client and not PATH.fullmatch(rest))):
            raise ValueError(
                "client: write {topic.1} for a level of the topic, or a field of the message"
            )
        if self.user_id:
            places = [parse_place(place) for place in self.topics.values()]
            if len({topic for topic, _ in places}) > 1 or not all(field for _, field in places):
                raise ValueError(
                    "user_id needs all features in fields of one topic: a reading is of one user"
                )
            if self.missing == "hold":
                raise ValueError(NOT_OF_OTHERS)
        return self

    @model_validator(mode="after")
    def _has_quality_in_fields(self) -> Self:
        for feature, field in self.quality.items():
            place = self.topics.get(feature, "#field")
            if not PATH.fullmatch(field) or "#" not in place.removesuffix("#"):
                raise ValueError(
                    f"quality.{feature}: write a field of the JSON messages of its topic, a.b for b"
                    " in a; a plain number has none"
                )
        return self

    def check(self, contract: Contract) -> None:
        """Check that there are no topics, or one for each feature. Raises `SettingsError`."""
        time_reader_of(self.timezone, self.date_format)
        na_values_by_position(self.na_values_of, contract, "mqtt")
        quality_by_position(self.quality, contract, "mqtt")
        bad_quality_of(self.bad_quality)
        if missing_of(self.missing, contract) == "hold" and self.user_id:
            raise SettingsError(f"[mqtt]: {NOT_OF_OTHERS}")
        features = [feature.name for feature in contract.features]
        if not self.topics:
            return
        odd = sorted(set(features) ^ set(self.topics))
        if odd:
            problem = "is no feature of this federation"
            if odd[0] in features:
                problem = "has no topic"
            raise SettingsError(
                f"[mqtt.topics]: {odd[0]!r} {problem}; there is one line for each feature:"
                f" {', '.join(features)}"
            )

    @property
    def client_field(self) -> str:
        """See `MessageSettings.client_field`."""
        if LEVEL.search(self.client):
            return ""
        return self.client

    def client_of_topic(self, topic: str) -> str:
        """What the levels of a topic call its client; empty where they do not."""
        levels = topic.split("/")

        def level(reference: re.Match[str]) -> str:
            number = int(reference[1])
            if reference[2]:
                return "/".join(levels[number:])
            if number < len(levels):
                return levels[number]
            return ""

        return LEVEL.sub(level, self.client).strip()

    @staticmethod
    def _check_level(topic: str, level: int) -> None:
        """Raises ValueError where that level of all topics of a filter is the same."""
        levels = topic.split("/")
        if levels[-1] == "#" and level >= len(levels) - 1:
            return
        if level >= len(levels) or levels[level] != "+":
            actual = repr(levels[level]) if level < len(levels) else "not there"
            raise ValueError(
                f"client: level {level} of {topic}, counted from 0, is {actual}: name a level that"
                " is +"
            )

    @property
    def address(self) -> str:
        """mqtt://host:port, with TLS mqtts://host:port."""
        scheme = "mqtts" if self.tls else "mqtt"
        return f"{scheme}://{self.host}:{self.port_or_default}"

    @property
    def port_or_default(self) -> int:
        """The port, or the one that brokers have."""
        return self.port or (TLS_PORT if self.tls else PORT)


def mqtt_settings(config: Config) -> MqttSettings:
    """[mqtt] of a federation file."""
    settings = config.source("mqtt")
    assert isinstance(settings, MqttSettings)
    return settings
