"""The section [kafka] of a federation file: a topic of JSON, Avro or Protobuf messages, and what
they hold."""

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
    MISSING_MEANS,
    NA_VALUES_MEANS,
    NA_VALUES_OF_MEANS,
    MissingOfSource,
    missing_of,
    na_values_by_position,
)
from shoal.transports.kafka.settings import BrokerAccess


class KafkaSourceSettings(SourceSettings, BrokerAccess):
    """[kafka]: the topic that `shoal producer --kafka` reads, whose messages are readings."""

    address: str = Field(default="", description="the brokers, `kafka://host:port,host:port`")
    topic: str = Field(
        default="",
        description="the topic: each message is a JSON object, or of a schema registry, and a"
        " reading",
    )
    schema_registry: str = Field(
        default="",
        pattern=r"^(https?://\S+)?$",
        description="the registry, `http://host:port`, that has the schemas of messages in Avro,"
        " Protobuf or JSON behind the number of their schema (extra `registry`); other messages"
        " are JSON",
    )
    registry_user: str = Field(default="", description="login at the registry; none: no login")
    registry_secret_file: FilePath | None = Field(
        default=None, description="file with the password of that login"
    )
    registry_ca_file: FilePath | None = Field(
        default=None,
        description="file with the certificates (PEM) of the authorities of the registry",
    )
    fields: dict[str, str] = Field(
        default_factory=dict,
        description='feature = field (`a.b`: b in a; `a."b.c"`: a name with a point); none: the'
        " field of its name",
    )
    time: str = Field(
        default="", description="field with the time of a message; none: the time of the record"
    )
    client: str = Field(
        default="",
        description="field with the client that a message is from; none: all are of the client"
        " `--name`",
    )
    clients_max: int = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="most clients of one process, where messages name them; messages of others are"
        " left out (`crowded`)",
    )
    group: str = Field(
        default="",
        max_length=255,
        pattern=r"^[A-Za-z0-9._-]*$",
        description="consumer group in which several processes on one machine, with one folder,"
        " share the partitions; none: one process reads all",
    )
    user_id: str = Field(
        default="",
        description="field with the person or device that a message is from, for `unit` of"
        " [privacy]",
    )
    start: Literal["first", "newest"] = Field(
        default="first",
        description="where the first start begins: at the first record that is kept, or at what is"
        " new",
    )
    missing: MissingOfSource = Field(default="", description=MISSING_MEANS)
    accept_gap: bool = Field(
        default=False,
        description="continue, with a warning, when retention removed records before they were"
        " read",
    )
    timezone: str = Field(default="", description=TIMEZONE_MEANS)
    date_format: str = Field(default="", description=DATE_FORMAT_MEANS)
    na_values: tuple[str, ...] = Field(default=(), strict=False, description=NA_VALUES_MEANS)
    na_values_of: dict[str, list[str]] = Field(default_factory=dict, description=NA_VALUES_OF_MEANS)
    quality: dict[str, str] = Field(
        default_factory=dict, description=QUALITY_MEANS.format(column="field")
    )
    bad_quality: tuple[str, ...] = Field(default=(), strict=False, description=BAD_QUALITY_MEANS)
    ahead_s: float = Field(
        default=60.0,
        ge=0,
        le=10**9,
        description="seconds that a time may lie in the future; beyond, the sensor's clock is"
        " wrong",
    )
    payload_bytes_max: int = Field(
        default=65536, ge=1, le=2**20, description="largest message that is read"
    )

    @model_validator(mode="after")
    def _names_fields(self) -> Self:
        # The scheme of an address may be written in either case (RFC 3986, 3.1).
        if self.address and not re.match("(?i)kafka://", self.address):
            raise ValueError("address: write kafka://host:port")
        if (self.registry_user == "") != (self.registry_secret_file is None):
            raise ValueError("registry_user and registry_secret_file go together")
        if self.registry_user and not self.schema_registry.startswith("https://"):
            raise ValueError("registry_user sends a password: write schema_registry with https://")
        paths = {f"fields.{name}": path for name, path in self.fields.items()}
        paths |= {f"quality.{name}": path for name, path in self.quality.items()}
        optional = {"time": self.time, "client": self.client, "user_id": self.user_id}
        for name, path in optional.items():
            if path:
                paths[name] = path
        for name, path in paths.items():
            if not PATH.fullmatch(path):
                raise ValueError(
                    f"{name}: write a field, a.b for b in a, and quote a name that has a point:"
                    ' a."b.c"'
                )
        return self

    def check(self, contract: Contract) -> None:
        """Check that fields are of features, and what becomes of missing ones.

        Raises `SettingsError`.
        """
        time_reader_of(self.timezone, self.date_format)
        na_values_by_position(self.na_values_of, contract, "kafka")
        quality_by_position(self.quality, contract, "kafka")
        bad_quality_of(self.bad_quality)
        if missing_of(self.missing, contract) == "hold" and self.user_id:
            raise SettingsError(
                '[kafka]: user_id and missing = "hold" exclude each other: a last value may be of'
                " another user"
            )
        features = [feature.name for feature in contract.features]
        odd = sorted(set(self.fields) - set(features))
        if odd:
            raise SettingsError(
                f"[kafka.fields]: {odd[0]!r} is no feature of this federation:"
                f" {', '.join(features)}"
            )

    @property
    def client_field(self) -> str:
        """See `MessageSettings.client_field`."""
        return self.client


def kafka_settings(config: Config) -> KafkaSourceSettings:
    """[kafka] of a federation file. Raises `SettingsError` where it names no topic."""
    settings = config.source("kafka")
    assert isinstance(settings, KafkaSourceSettings)
    if not settings.address or not settings.topic:
        raise SettingsError(
            "--kafka needs address and topic in the section [kafka] of the federation file"
        )
    return settings
