"""The section [mqtt] of a federation file: which sensors a client has, and how their values become readings."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from shoal.config.base import FilePath, Settings


class MqttSettings(Settings):
    """[mqtt]: where `shoal producer --mqtt` hears the sensors of a client, and how their values become readings."""

    host: str = Field(default="localhost", min_length=1, description="the MQTT broker")
    port: int = Field(default=0, ge=0, le=65535, description="of the broker; 0: 1883, with TLS 8883")
    version: Literal["5", "3.1.1"] = Field(default="5", description="of MQTT")
    tls: bool = Field(default=False, description="speak TLS, and check who answers")
    ca_file: FilePath | None = Field(
        default=None, description="certificates (PEM) of the authorities trusted with TLS; none: the system's"
    )
    certificate_file: FilePath | None = Field(default=None, description="own certificate (PEM), if the broker asks")
    key_file: FilePath | None = Field(default=None, description="private key (PEM) of that certificate")
    user: str = Field(default="", description="the name to log in with")
    secret_file: FilePath | None = Field(default=None, description="file with the password, read at each connection")
    client_id: str = Field(
        default="",
        max_length=128,
        description="of the session; none: `shoal-`federation`-`client; `{client}`: its name",
    )
    session_s: int = Field(
        default=604800, ge=1, le=2**32 - 2, description="the broker keeps what comes while we are away (MQTT 5)"
    )
    topics: dict[str, str] = Field(
        default_factory=dict,
        description="feature = `topic` (plain numbers) or `topic#field` (JSON; `a.b`: b in a); `{client}`: its name",
    )
    time: str = Field(default="", description="field (JSON) of a message with its time; none: when it arrives")
    tolerance_s: float = Field(
        default=1.0, ge=0, le=86400, description="values at most so far apart in time are one reading"
    )
    wait_s: float = Field(default=10.0, ge=0, le=86400, description="a reading waits so long for values that lack")
    missing: Literal["drop", "hold"] = Field(
        default="drop", description="then it is dropped, or filled up with each sensor's last value"
    )
    hold_s: float = Field(default=300.0, gt=0, le=10**9, description="`hold`: a last value is at most so old")
    ahead_s: float = Field(
        default=60.0, ge=0, le=10**9, description="a time further in the future is a fault of the sensor's clock"
    )
    silent_s: float = Field(
        default=60.0, ge=0, le=10**9, description="warn of a topic that said nothing for so long; 0: never"
    )
    payload_bytes_max: int = Field(default=65536, ge=1, le=2**20, description="largest message that is looked at")

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

    @property
    def address(self) -> str:
        """mqtt://host:port, with TLS mqtts://host:port."""
        return f"mqtt{'s' if self.tls else ''}://{self.host}:{self.port or (8883 if self.tls else 1883)}"
