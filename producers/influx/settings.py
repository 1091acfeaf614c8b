"""The section [influx] of a federation file: where points in line protocol are received, and what
they hold."""

from __future__ import annotations

import ipaddress
from typing import Self

from pydantic import Field, model_validator

from shoal.config.base import FilePath
from shoal.config.contract import Contract
from shoal.config.extension_settings import SourceSettings
from shoal.config.settings import Config
from shoal.errors import SettingsError
from shoal.producers.messages import PATH
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


class InfluxSettings(SourceSettings):
    """[influx]: where `shoal producer --influx` receives points of InfluxDB's line protocol."""

    listen: str = Field(
        default="",
        description="address and port of the write endpoint, as `127.0.0.1:8086`; one that other"
        " machines reach needs `token_file`",
    )
    token_file: FilePath | None = Field(
        default=None,
        description="file with the token that a write must have, as the header `Authorization:"
        " Token ...`",
    )
    fields: dict[str, str] = Field(
        default_factory=dict,
        description="feature = field, or `measurement.field` where fields of several measurements"
        " have one name; none: the field of its name",
    )
    client: str = Field(
        default="",
        description="tag with the client that a point is from, as `host`; none: all are of the"
        " client `--name`",
    )
    user_id: str = Field(
        default="", description="tag with the person or device, for `unit` of [privacy]"
    )
    missing: MissingOfSource = Field(default="", description=MISSING_MEANS)
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
    body_bytes_max: int = Field(
        default=2**24, ge=1024, le=2**28, description="largest write, decompressed"
    )

    @model_validator(mode="after")
    def _is_guarded(self) -> Self:
        if self.listen:
            host, _ = host_and_port(self.listen)
            if not is_loopback(host) and self.token_file is None:
                raise ValueError(
                    f"listen: {host} is reached by other machines, which could write readings: set"
                    " token_file, or listen on 127.0.0.1"
                )
        for name, path in {**self.fields, **self.quality}.items():
            if not PATH.fullmatch(path):
                raise ValueError(f"{name}: {path!r} is no name of a field")
        return self

    def check(self, contract: Contract) -> None:
        """Check that fields are of features. Raises `SettingsError`."""
        na_values_by_position(self.na_values_of, contract, "influx")
        quality_by_position(self.quality, contract, "influx")
        bad_quality_of(self.bad_quality)
        missing_of(self.missing, contract)
        names = [feature.name for feature in contract.features]
        odd = sorted(set(self.fields) - set(names))
        if odd:
            raise SettingsError(
                f"[influx.fields]: {odd[0]!r} is no feature of this federation: {', '.join(names)}"
            )

    # What `MessageSettings` has besides: a point has one form of time.

    @property
    def time(self) -> str:
        """Field of the time."""
        return "time"

    @property
    def timezone(self) -> str:
        """None: times are in UTC."""
        return ""

    @property
    def date_format(self) -> str:
        """None: times are epochs."""
        return ""

    @property
    def payload_bytes_max(self) -> int:
        """Longest point."""
        return self.body_bytes_max

    @property
    def client_field(self) -> str:
        """See `MessageSettings.client_field`."""
        return self.client


def host_and_port(listen: str) -> tuple[str, int]:
    """An address such as 127.0.0.1:8086 or [::1]:8086. Raises `ValueError`."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"listen: {listen!r}; write address:port, as 127.0.0.1:8086")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def influx_settings(config: Config) -> InfluxSettings:
    """[influx] of a federation file. Raises `SettingsError` where it names no address."""
    settings = config.source("influx")
    assert isinstance(settings, InfluxSettings)
    if not settings.listen:
        raise SettingsError(
            'set listen = "127.0.0.1:8086", or another address, in [influx] of the federation file'
        )
    return settings
