"""The section [mqtt] of a federation file: the broker, the topics of the sensors, and how values become readings."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from shoal.config.base import FilePath
from shoal.config.contract import Contract
from shoal.config.extension_settings import SourceSettings
from shoal.config.settings import Config
from shoal.errors import SettingsError


class MqttSettings(SourceSettings):
    """[mqtt]: where `shoal producer --mqtt` receives a client's sensor values, and how they become readings."""

    host: str = Field(default="localhost", min_length=1, description="the MQTT broker")
    port: int = Field(default=0, ge=0, le=65535, description="port of the broker; 0: 1883, with TLS 8883")
    version: Literal["5", "3.1.1"] = Field(default="5", description="version of MQTT")
    tls: bool = Field(default=False, description="connect by TLS, and verify the broker")
    ca_file: FilePath | None = Field(
        default=None, description="certificates (PEM) of the authorities trusted with TLS; none: those of the system"
    )
    certificate_file: FilePath | None = Field(
        default=None, description="client certificate (PEM), if the broker asks for one"
    )
    key_file: FilePath | None = Field(default=None, description="private key (PEM) of that certificate")
    user: str = Field(default="", description="user name")
    secret_file: FilePath | None = Field(default=None, description="file with the password, read at each connection")
    client_id: str = Field(
        default="",
        max_length=128,
        description="of the session; none: `shoal-`federation`-`client; `{client}`: its name",
    )
    session_s: int = Field(
        default=604800,
        ge=1,
        le=2**32 - 2,
        description="seconds that the broker keeps messages while the producer is not connected (MQTT 5)",
    )
    topics: dict[str, str] = Field(
        default_factory=dict,
        description="feature = `topic` (plain numbers) or `topic#field` (JSON; `a.b`: b in a); `{client}`: its name",
    )
    time: str = Field(default="", description="field (JSON) with the time of a message; none: the time it arrives")
    user_id: str = Field(
        default="",
        description="field (JSON) with the person or device that a message is from, for `unit` of [privacy]; all "
        "features are then in one topic, and each message is a reading of its own",
    )
    tolerance_s: float = Field(
        default=1.0, ge=0, le=86400, description="seconds that the values of one reading may lie apart"
    )
    wait_s: float = Field(default=10.0, ge=0, le=86400, description="seconds that a reading waits for missing values")
    missing: Literal["drop", "hold"] = Field(
        default="drop",
        description="what then happens: the reading is dropped, or filled up with each sensor's last value",
    )
    hold_s: float = Field(
        default=300.0, gt=0, le=10**9, description="`hold`: seconds after which a last value is too old"
    )
    ahead_s: float = Field(
        default=60.0,
        ge=0,
        le=10**9,
        description="seconds that a time may lie in the future; beyond, the sensor's clock is wrong",
    )
    silent_s: float = Field(
        default=60.0, ge=0, le=10**9, description="warn about a topic without a message for this many seconds; 0: never"
    )
    payload_bytes_max: int = Field(default=65536, ge=1, le=2**20, description="largest message that is read")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not self.tls and (self.ca_file or self.certificate_file or self.key_file):
            raise ValueError("ca_file, certificate_file and key_file are for TLS: set tls = true")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file go together")
        if bool(self.user) != (self.secret_file is not None):
            raise ValueError("user and secret_file go together")
        for feature, place in self.topics.items():
            topic, parted, field = place.partition("#")
            if not topic or set(topic) & set("+\0") or "#" in field or (parted and not field):
                raise ValueError(f"topics.{feature}: write topic or topic#field, without wildcards")
            if self.time and not field:
                raise ValueError(f"topics.{feature}: a plain number has no time: write topic#field, or leave out time")
        return self

    @model_validator(mode="after")
    def _keeps_users_apart(self) -> Self:
        if self.user_id:
            places = [place.partition("#") for place in self.topics.values()]
            if len({topic for topic, _, _ in places}) > 1 or not all(field for _, _, field in places):
                raise ValueError("user_id needs all features in fields of one topic: a reading is of one user")
            if self.missing == "hold":
                raise ValueError('user_id and missing = "hold" exclude each other: a last value may be of another user')
        return self

    def check(self, contract: Contract) -> None:
        """Check that there are no topics, or one for each feature. Raises `SettingsError`."""
        features = [feature.name for feature in contract.features]
        if self.topics and (odd := sorted(set(features) ^ set(self.topics))):
            known = "has no topic" if odd[0] in features else "is no feature of this federation"
            raise SettingsError(
                f"[mqtt.topics]: {odd[0]!r} {known}; there is one line for each feature: {', '.join(features)}"
            )

    @property
    def client_field(self) -> str:
        """See `MessageSettings.client_field`."""
        return ""

    @property
    def address(self) -> str:
        """mqtt://host:port, with TLS mqtts://host:port."""
        return f"mqtt{'s' if self.tls else ''}://{self.host}:{self.port or (8883 if self.tls else 1883)}"


def mqtt_settings(config: Config) -> MqttSettings:
    """[mqtt] of a federation file."""
    settings = config.source("mqtt")
    assert isinstance(settings, MqttSettings)
    return settings
