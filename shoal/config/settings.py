"""Settings of single processes: where they find the log, where they keep their memory, how often they speak.

They stand in the same TOML file as the contract, under [log], [client], [readings], [server] and [mqtt], and are no
part of its digest: every process may have its own. Relative paths are relative to the file. Each setting has a
default, a range and a sentence; `shoal check` prints them all, and a test holds the docs against them.
A variable SHOAL_<SECTION>_<SETTING> in the environment wins over the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import Field, model_validator

from shoal.config.base import Folder, Settings
from shoal.config.contract import Contract, contract_of, read_toml, validated
from shoal.config.environment import settings_from
from shoal.config.limits import MIB, RECORD_BYTES_MAX, UPDATE_RECORD_BYTES_MAX
from shoal.config.mqtt_settings import MqttSettings
from shoal.errors import SettingsError

DAY_S = 86400.0
SECTIONS = ("federation", "features", "privacy", "models", "log", "client", "readings", "server", "mqtt")
FILES = ("ca_file", "certificate_file", "key_file", "secret_file")


Section = TypeVar("Section", bound=Settings)


class BrokerSettings(Settings):
    """How a log is reached. All but the address is for brokers."""

    address: str
    tls: bool = Field(default=False, description="Kafka: speak TLS, and check who answers")
    ca_file: Folder | None = Field(
        default=None, description="Kafka: certificates (PEM) of the authorities trusted with TLS; none: the system's"
    )
    certificate_file: Folder | None = Field(default=None, description="Kafka: own certificate (PEM), if brokers ask")
    key_file: Folder | None = Field(default=None, description="Kafka: private key (PEM) of that certificate")
    sasl: Literal["none", "plain", "scram-sha-256", "scram-sha-512", "oauthbearer"] = Field(
        default="none", description="Kafka: how to log in"
    )
    user: str = Field(default="", description="Kafka: the name to log in with (not for `oauthbearer`)")
    secret_file: Folder | None = Field(
        default=None, description="Kafka: file with the password, or with the bearer token, read at each connection"
    )
    replication: int = Field(
        default=0, ge=0, le=100, description="Kafka: copies of each topic; 0: as the brokers do by default"
    )
    compression: Literal["none", "gzip", "lz4"] = Field(
        default="none", description="Kafka: how records are packed before they travel; `lz4` needs `shoal[lz4]`"
    )

    @model_validator(mode="after")
    def _log_in_whole(self) -> Self:
        if self.sasl == "none" and (self.user or self.secret_file):
            raise ValueError("user and secret_file are for logging in: name the way, with sasl")
        if self.sasl != "none" and self.secret_file is None:
            raise ValueError(f'sasl = "{self.sasl}" needs a secret_file')
        if self.sasl not in ("none", "oauthbearer") and not self.user:
            raise ValueError(f'sasl = "{self.sasl}" needs a user')
        if self.sasl in ("plain", "oauthbearer") and not self.tls:
            raise ValueError(f'sasl = "{self.sasl}" sends the secret as it is, so it needs tls = true')
        if not self.tls and (self.ca_file or self.certificate_file or self.key_file):
            raise ValueError("ca_file, certificate_file and key_file are for TLS: set tls = true")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file go together")
        return self


class LogSettings(BrokerSettings):
    """[log]: where updates and snapshots travel."""

    address: str = Field(
        default="sqlite:data/federation.db",
        description="`sqlite:PATH`, one file for all processes, or `kafka://host:port,host:port`",
    )
    partitions: int = Field(
        default=1, ge=1, le=1000, description="of the updates; all updates of a model are in one of them, in one order"
    )
    updates_keep_s: float = Field(
        default=7 * DAY_S,
        ge=0,
        le=10**10,
        description="seconds that updates are kept, and a server may be away; 0: for ever",
    )
    updates_keep_bytes: int = Field(
        default=0, ge=0, le=2**62, description="and of each partition the newest with so many bytes together; 0: all"
    )
    rejected_keep_bytes: int = Field(
        default=256 * MIB, ge=1000, le=2**62, description="the newest rejected messages with so many bytes together"
    )
    update_bytes_max: int = Field(
        default=UPDATE_RECORD_BYTES_MAX,
        ge=128 * 1024,
        le=RECORD_BYTES_MAX,
        description="largest record of updates, with key and headers; a larger update travels in chunks",
    )
    snapshot_bytes_max: int = Field(
        default=RECORD_BYTES_MAX,
        ge=128 * 1024,
        le=RECORD_BYTES_MAX,
        description="largest snapshot, with key and headers",
    )


class ClientSettings(Settings):
    """[client]: every client of this file."""

    folder: Folder = Field(
        default=Path("data/clients"), description="one folder per client below it: readings, key, checkpoint"
    )
    publish_readings: int = Field(default=500, ge=1, le=10**9, description="publish after this many readings learnt")
    publish_s: float = Field(default=10.0, gt=0, le=86400, description="or after this many seconds, if sooner")
    batch_readings_max: int = Field(default=1000, ge=1, le=100_000, description="readings learnt between two saves")
    label: bool = Field(
        default=False, description="label the client's own readings by the newest snapshot, in its own folder"
    )
    window_rows: int = Field(
        default=2000, ge=1, le=10**7, description="newest rows kept to answer calls from, for models in rounds"
    )
    window_s: float = Field(
        default=0.0, ge=0, le=10**10, description="and none older than the newest by more seconds; 0: no limit"
    )
    readings_bytes_max: int = Field(
        default=1024**3,
        ge=1024,
        le=2**62,
        description="newest readings kept in the client's own log, learnt or waiting; read by the producer too",
    )
    accept_gap: bool = Field(
        default=False, description="go on, with a warning, when readings were removed before they were learnt"
    )
    metrics_port: int = Field(
        default=0, ge=0, le=65535, description="serve /metrics and /livez on this port; 0: do not"
    )
    metrics_host: str = Field(
        default="127.0.0.1", description="and here; its counts tell of readings, so not beyond the client's premises"
    )
    signing_key_file: Folder | None = Field(
        default=None, description="sign updates with the key in this file; `{client}` stands for the client's name"
    )


class ReadingsSettings(BrokerSettings):
    """[readings]: where a client's own readings are, if not in its folder."""

    address: str = Field(
        default="", description="`kafka://host:port` of a broker on the client's own premises; none: in its folder"
    )

    @model_validator(mode="after")
    def _on_brokers(self) -> Self:
        if self.address and not self.address.lower().startswith("kafka://"):
            raise ValueError("address must be kafka://host:port; leave it out for readings in the client's folder")
        return self


class ServerSettings(Settings):
    """[server]"""

    folder: Folder = Field(default=Path("data/server"), description="where the server keeps its checkpoint")
    pool_clients: int = Field(
        default=2, ge=1, le=100_000, description="distinct clients to hear before the first clustering"
    )
    pool_s: float = Field(default=60.0, gt=0, le=86400, description="or begin with those heard after this many seconds")
    snapshot_updates: int = Field(default=20, ge=1, le=10**6, description="publish a snapshot every so many updates")
    snapshot_s: float = Field(default=2.0, gt=0, le=86400, description="or after this many seconds, if any came")
    batch_updates_max: int = Field(default=200, ge=1, le=10_000, description="updates absorbed between two saves")
    lease_renew_s: float = Field(
        default=5.0,
        gt=0,
        le=3600,
        description="say this often in the log that this server answers; one silent four times as long may be replaced",
    )
    accept_gap: bool = Field(
        default=False, description="go on, with a warning, when updates were removed before they were read"
    )
    host: str = Field(default="127.0.0.1", description="where the page and the metrics are served")
    port: int = Field(default=8765, ge=0, le=65535, description="0: any free port, named at start")
    client_keys: Folder | None = Field(
        default=None, description="folder with a NAME.key per client: updates not signed with it are set aside"
    )


class Config(Settings):
    """A whole file: the contract and the settings of the processes that read it."""

    contract: Contract
    log: LogSettings = LogSettings()
    client: ClientSettings = ClientSettings()
    readings: ReadingsSettings = ReadingsSettings()
    server: ServerSettings = ServerSettings()
    mqtt: MqttSettings = MqttSettings()


def load_config(path: Path) -> Config:
    """Read and check a federation file with its settings. Raises `SettingsError`."""
    tables = read_toml(path)
    unknown = sorted(set(tables) - set(SECTIONS))
    if unknown:
        raise SettingsError(f"{path}: unknown section [{unknown[0]}]; there are {', '.join(SECTIONS)}")
    contract = contract_of(tables, str(path))
    log = _section(LogSettings, tables, "log", path)
    client = _section(ClientSettings, tables, "client", path)
    readings = _section(ReadingsSettings, tables, "readings", path)
    server = _section(ServerSettings, tables, "server", path)
    mqtt = _section(MqttSettings, tables, "mqtt", path)
    _check_topics(mqtt, contract, f"{path}: [mqtt.topics]")
    return Config(
        contract=contract,
        log=log.model_copy(update={"address": _address_beside(log.address, path)} | _all_beside(log, FILES, path)),
        client=client.model_copy(update=_all_beside(client, ("folder", "signing_key_file"), path)),
        readings=_readings_beside(readings, log, path),
        server=server.model_copy(update=_all_beside(server, ("folder", "client_keys"), path)),
        mqtt=mqtt.model_copy(update=_all_beside(mqtt, FILES, path)),
    )


def _check_topics(mqtt: MqttSettings, contract: Contract, source: str) -> None:
    """Either no topics, or one for each feature."""
    features = [feature.name for feature in contract.features]
    if mqtt.topics and (odd := sorted(set(features) ^ set(mqtt.topics))):
        known = "has no topic" if odd[0] in features else "is no feature of this federation"
        raise SettingsError(f"{source}: {odd[0]!r} {known}; there is one line for each feature: {', '.join(features)}")


def _section(form: type[Section], tables: Mapping[str, object], name: str, path: Path) -> Section:
    """The settings of one section: from the environment, else from the file, else the defaults."""
    written = tables.get(name, {})
    if not isinstance(written, dict):
        raise SettingsError(f"{path}: [{name}] is not a table")
    given = settings_from(os.environ, name, form)
    beside = f" and SHOAL_{name.upper()}_..." if given else ""
    return validated(form, {**written, **given}, f"{path}: [{name}]{beside}")


def _beside(place: Path, path: Path) -> Path:
    """A relative place is meant relative to the federation file, wherever the process was started."""
    try:
        return path.parent / place.expanduser()
    except RuntimeError as homeless:
        raise SettingsError(f"{path}: {place}: {homeless}; write the whole path") from None


def _readings_beside(readings: ReadingsSettings, log: LogSettings, path: Path) -> ReadingsSettings:
    """Raises `SettingsError` when raw readings would go to the federation's brokers."""
    shared = sorted(_hosts(readings.address) & _hosts(log.address))
    if shared:
        raise SettingsError(
            f"{path}: [readings] and [log] both name {shared[0]}: raw readings would leave the premises; "
            "use a broker that is the client's alone"
        )
    return readings.model_copy(update=_all_beside(readings, FILES, path))


def _hosts(address: str) -> set[str]:
    """The brokers an address names, each by one of its names: this machine has several for itself."""
    scheme, _, servers = address.lower().partition("://")
    named = re.sub(r"(^|,)(127\.0\.0\.1|\[::1\])(?=:)", r"\1localhost", servers.rstrip("/"))
    return set(named.split(",")) if scheme == "kafka" else set()


def _all_beside(section: Settings, names: tuple[str, ...], path: Path) -> dict[str, Path]:
    """Those of these settings that name a place, beside the file."""
    named = {name: getattr(section, name) for name in names}
    return {name: _beside(place, path) for name, place in named.items() if place is not None}


def _address_beside(address: str, path: Path) -> str:
    """The address with its file, if it is one, beside the federation file."""
    scheme, colon, place = address.partition(":")
    if scheme.lower() == "sqlite" and colon:
        return f"sqlite:{_beside(Path(place), path)}"
    return str(_beside(Path(address), path)) if address.endswith(".db") else address
