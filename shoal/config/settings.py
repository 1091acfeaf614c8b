"""Settings of single processes: where the log is, where a process keeps its state, how often it
publishes.

They are in the same TOML file as the contract, in [log], [client], [readings], [host], [server],
[replica] and the sections of sources and sinks, and are no part of its digest: every process may
have its own. Relative paths are relative to the file. Each setting has a default, a range and a
description; `shoal check --settings` prints them all, and a test compares the docs with them. What
differs from machine to machine can be set by environment variables: `SHOAL_<SECTION>_<SETTING>`
means the same as `setting = ...` in [section] of the file, and wins over it. The contract cannot be
set this way, as it is the same for all clients and servers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, get_origin

from pydantic import (
    BaseModel,
    Field,
    PrivateAttr,
    SerializeAsAny,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from shoal.config.base import (
    DAY_S,
    FilePath,
    Section,
    Settings,
    error_message,
    parse_table,
    read_toml,
    resolve_paths,
)
from shoal.config.contract import Contract, parse_contract
from shoal.config.extension_settings import (
    SINKS,
    SOURCES,
    SinkSettings,
    SourceSettings,
    resolve_address,
    servers_of_address,
    source_sections,
    with_transport,
)
from shoal.config.limits import MIB, RECORD_BYTES_MAX, UPDATE_RECORD_BYTES_MAX
from shoal.config.sections import (
    ClientSettings,
    EventSettings,
    ReplicaSettings,
    ServerSettings,
    UpstreamSettings,
)
from shoal.errors import SettingsError

if TYPE_CHECKING:
    from shoal.config.resolved import ResolvedContract

PREFIX = "SHOAL"
OPTIONS = {
    "client": {"CONFIG", "NAME", "UNTIL_IDLE", "JSON", "VERBOSE", "NO_WAIT"}
    | {"AFTER_RESTORE", "LOST_WINDOWS"},
    "events": {
        "FORWARD_CLIENT",
        "LIST_CLIENT",
        "LIST_CONFIG",
        "LIST_MODEL",
        "LIST_FOLLOW",
        "LIST_JSON",
    }
    | {"FORWARD_CONFIG", "FORWARD_UNTIL_IDLE", "FORWARD_JSON"},
    "host": {"CONFIG", "NAME", "CLIENTS_MAX", "UNTIL_IDLE", "NO_WAIT", "JSON", "VERBOSE"},
    "privacy": {"REPORT_CONFIG", "REPORT_NAME", "REPORT_READINGS", "REPORT_WINDOWS", "REPORT_JSON"}
    | {"AUDIT_CONFIG", "AUDIT_TRIALS", "AUDIT_KILLS", "AUDIT_SEED", "AUDIT_JSON"},
    "replica": {"CONFIG", "NAME", "JSON", "VERBOSE"},
    "server": {
        "CONFIG",
        "UNTIL_IDLE",
        "NO_PAGE",
        "REBUILD",
        "TAKE_OVER",
        "ACCEPT_CHANGES",
        "JSON",
        "VERBOSE",
    },
}
"""section -> options of the command of the same name: their variables have the same prefix but are
no settings"""
CONTRACT_TABLES = ("federation", "features", "privacy", "models")


def environment_settings(
    environment: Mapping[str, str], section: str, form: type[BaseModel]
) -> dict[str, Any]:
    """setting -> value, for the settings of `section` that are in the environment.

    An empty variable counts as unset, because compose files leave variables out that way. Raises
    `SettingsError`, naming the variable, if it is no setting or its value is out of range.
    """
    _reject_contract(environment)
    given: dict[str, Any] = {}
    prefix = variable_prefix(section)
    for variable in sorted(environment):
        name = variable.removeprefix(prefix)
        if name == variable or name in OPTIONS.get(section, ()) or not environment[variable]:
            continue
        if section == "events" and _sink_of(variable) is not None:
            continue
        if name.lower() not in form.model_fields or not name.isupper():
            raise SettingsError(
                f"{variable}: no setting of [{section}]; unset it or correct its spelling"
            )
        given[name.lower()] = _value(form, name.lower(), variable, environment[variable])
    return given


def variable_prefix(section: str) -> str:
    """Prefix of the variables of a section: SHOAL_LOG_ for [log], SHOAL_EVENTS_MQTT_ for
    [events.mqtt]."""
    return f"{PREFIX}_{section}_".replace(".", "_").upper()


def _sink_of(variable: str) -> str | None:
    """The installed sink whose section has this variable, if there is one."""
    # The longest first: a sink called `mail_list` has its variables to itself beside one called
    # `mail`.
    by_length = sorted(SINKS.names(), key=len, reverse=True)
    return next(
        (name for name in by_length if variable.startswith(variable_prefix(f"events.{name}"))), None
    )


def _reject_contract(environment: Mapping[str, str]) -> None:
    for variable in sorted(environment):
        prefix, _, rest = variable.partition("_")
        table, _, name = rest.partition("_")
        if (
            prefix == PREFIX
            and table.lower() in CONTRACT_TABLES
            and name not in OPTIONS.get(table.lower(), ())
        ):
            raise SettingsError(
                f"{variable}: the contract is set in the federation file only, as it is the same "
                "on every machine"
            )


def _value(form: type[BaseModel], name: str, variable: str, text: str) -> Any:
    """The text converted to the type of the setting: `5` is a number if the setting is one, `a,b` a
    list."""
    field = form.model_fields[name]
    if get_origin(field.annotation) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        kind: Any = Annotated[field.annotation, field]
        return TypeAdapter(kind).validate_strings(text)
    except ValidationError as error:
        # Without the input, which may be a secret.
        message = error_message(error.errors(include_url=False, include_input=False)[0])
        raise SettingsError(f"{variable}: {message}") from None


SECTIONS = (
    "federation",
    "features",
    "privacy",
    "models",
    "log",
    "client",
    "readings",
    "host",
    "server",
    "replica",
    "upstream",
    "events",
)
"""the fixed sections; each source may add one, and each sink one within [events]
(`shoal.config.extension_settings`)"""


class LogSettings(Settings):
    """[log]: where updates and snapshots travel. The transport that `address` names adds its own
    keys."""

    address: str = Field(
        default="sqlite:data/federation.db",
        description="`sqlite:PATH`, one file for all processes, or `kafka://host:port,host:port`",
    )
    server_keys: FilePath | None = Field(
        default=None,
        description="file with the public keys of the servers: snapshots, leases and ends of "
        "masked rounds that are not signed with one of them are left out",
    )
    partitions: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="of the updates topic; all updates of a model are in one partition, so that "
        "they have one order",
    )
    updates_retention_s: float = Field(
        default=7 * DAY_S,
        ge=0,
        le=10**10,
        description="seconds that updates are kept, and so the longest time a server may be "
        "down; 0: for ever",
    )
    updates_retention_bytes: int = Field(
        default=10 * 1024 * MIB,
        ge=0,
        le=2**62,
        description="bytes of the newest updates that are kept in each partition; 0: no limit",
    )
    events_retention_bytes: int = Field(
        default=64 * MIB,
        ge=1000,
        le=2**62,
        description="bytes of the newest cluster events that are kept",
    )
    labels_retention_bytes: int = Field(
        default=256 * MIB,
        ge=1000,
        le=2**62,
        description="bytes of the newest published labels that are kept, where clients have "
        "`publish_labels`",
    )
    rejected_retention_bytes: int = Field(
        default=256 * MIB,
        ge=1000,
        le=2**62,
        description="bytes of the newest rejected messages that are kept",
    )
    update_bytes_max: int = Field(
        default=UPDATE_RECORD_BYTES_MAX,
        ge=128 * 1024,
        le=RECORD_BYTES_MAX,
        description="largest record of updates, with key and headers; a larger update travels in "
        "chunks",
    )
    snapshot_bytes_max: int = Field(
        default=RECORD_BYTES_MAX,
        ge=128 * 1024,
        le=RECORD_BYTES_MAX,
        description="largest snapshot, with key and headers",
    )


def log_settings(**values: Any) -> LogSettings:
    """[log] with these values, including keys of the transport that `address` names. Raises
    `SettingsError`."""
    address = values.get("address", LogSettings.model_fields["address"].default)
    return parse_table(with_transport(LogSettings, address), values, "[log]")


CLIENT: Final = "{client}"
"""stands for the name of a client in settings"""


class ReadingsSettings(Settings):
    """[readings]: where a client's own readings are, if not in its folder. The transport adds its
    own keys."""

    address: str = Field(
        default="",
        description="`kafka://host:port` of a broker on the client's own site; none: in its folder",
    )
    folder: FilePath | None = Field(
        default=None,
        description="[client] `folder` of another federation whose clients of the same names "
        "share their readings, and the ledger of what was spent of them; none: those of this "
        "federation have their own",
    )
    topic: str = Field(
        default="",
        pattern=r"^([a-zA-Z0-9._-]*\{client\}[a-zA-Z0-9._-]*)?$",
        description="topic of the readings on the broker, with `{client}` for the name of the "
        "client, where two federations share them; none: `<federation>.{client}.readings`",
    )

    @model_validator(mode="after")
    def _on_servers(self) -> Self:
        if self.address and not servers_of_address(self.address):
            raise ValueError(
                "address must be kafka://host:port; leave it out for readings in the client's "
                "folder"
            )
        if self.topic and not self.address:
            raise ValueError("topic is for readings on a broker; set address, or leave it out")
        return self


class HostSettings(Settings):
    """[host]: the one log from which a host takes in the readings of all its clients, and how long
    it keeps silent ones open. The transport adds its own keys."""

    client: str = Field(
        default="",
        pattern=r'^(("[^"]+"|[^".]+)(\.("[^"]+"|[^".]+))*)?$',
        description="the readings of all clients come in one log of the site, and a client is "
        "named by `key`, the key of a record, or by a field of messages that are JSON objects, "
        "`a.b` for b in a; they are read by the rules of [kafka]. None: each client has a readings "
        "log of its own",
    )
    address: str = Field(
        default="sqlite:data/site.db",
        description="that log: `sqlite:PATH`, or `kafka://host:port` of a broker on the clients' "
        "own site",
    )
    topic: str = Field(
        default="readings",
        pattern=r"^[a-zA-Z0-9._-]{1,200}$",
        description="topic of the readings in that log",
    )
    hosts: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="hosts of the site that share the partitions of the topic, each with a folder "
        "of its own; it cannot be changed later",
    )
    number: int = Field(
        default=0,
        ge=0,
        description="number of this host among them, from 0: it reads the partitions whose number "
        "modulo `hosts` is this one",
    )
    group: str = Field(
        default="",
        pattern=r"^[a-zA-Z0-9._-]{0,200}$",
        description="consumer group of the site's broker, by which the hosts of a site share the "
        "partitions of the topic: a client moves with its partition to another host, by the "
        "topic `<topic>.clients`. None: clients stay on their host",
    )
    member: str = Field(
        default="",
        pattern=r"^[a-zA-Z0-9._-]{0,200}$",
        description="name of this host in the group, another one for each: started again within "
        "`session_s` it has its partitions again, and those of the others do not move meanwhile. "
        "None: a host that stops gives its partitions up at once",
    )
    session_s: float = Field(
        default=10.0,
        ge=6,
        le=1800,
        description="seconds after which the partitions of a host of a group that is gone go to the"
        " others",
    )
    noise_key_file: FilePath | None = Field(
        default=None,
        description="file with the 32 secret bytes of the site from which the hosts of a group "
        "derive the noise key of each client, the same on each host",
    )
    idle_days: float = Field(
        default=0.0,
        ge=0,
        le=10**5,
        description="days without a reading after which a client is put away: it takes no memory "
        "until its next one; 0: never",
    )

    @model_validator(mode="after")
    def _share_a_topic(self) -> Self:
        if self.number >= self.hosts:
            raise ValueError(f"number must be less than hosts, {self.hosts}")
        if self.hosts > 1 and not self.client:
            raise ValueError("hosts share the partitions of a topic: set client")
        return self

    @model_validator(mode="after")
    def _is_whole_group(self) -> Self:
        if not self.group:
            if self.member:
                raise ValueError("member names a host of a group: set group, or leave it out")
            return self
        if not self.client or not self.address.lower().startswith("kafka:"):
            raise ValueError(
                "the hosts of a group share the partitions of a topic on Kafka: set client, and an"
                " address kafka://HOST:PORT of the site's own broker"
            )
        if self.noise_key_file is None:
            raise ValueError(
                "the hosts of a group derive the clients' noise keys from one secret: name its file"
                " with noise_key_file, the same on each host (head -c 32 /dev/urandom makes one)"
            )
        if self.hosts > 1:
            raise ValueError("the group divides the partitions: leave out hosts and number")
        return self


class Config(Settings):
    """A whole file: the contract and the settings of the processes that read it."""

    contract: Contract
    log: SerializeAsAny[LogSettings] = Field(default_factory=LogSettings)
    client: ClientSettings = Field(default_factory=ClientSettings)
    readings: SerializeAsAny[ReadingsSettings] = Field(default_factory=ReadingsSettings)
    host: SerializeAsAny[HostSettings] = Field(default_factory=HostSettings)
    server: ServerSettings = Field(default_factory=ServerSettings)
    replica: ReplicaSettings = Field(default_factory=ReplicaSettings)
    upstream: UpstreamSettings = Field(default_factory=UpstreamSettings)
    events: EventSettings = Field(default_factory=EventSettings)
    sources: dict[str, SerializeAsAny[SourceSettings]] = Field(default_factory=dict)
    """source -> its section, for the sources that the file or the environment configures"""
    sinks: dict[str, SerializeAsAny[SinkSettings]] = Field(default_factory=dict)
    """sink -> its section, for the sinks that the file or the environment configures"""

    _resolved: ResolvedContract | None = PrivateAttr(default=None)

    @property
    def resolved(self) -> ResolvedContract:
        """The contract resolved, once for each contract. Raises `SettingsError` for a model that
        cannot be."""
        # A copy of a file's settings with another contract must not keep what followed from the
        # first one.
        if self._resolved is None or self._resolved.contract is not self.contract:
            from shoal.config.resolved import (  # noqa: PLC0415 - a producer needs no algorithm
                resolve,
            )

            self._resolved = resolve(self.contract)
        return self._resolved

    @property
    def readings_folder(self) -> Path:
        """The folder with a folder for each client that has its ledger, and its readings unless a
        broker has them."""
        return self.readings.folder or self.client.folder

    def as_json(self) -> dict[str, Any]:
        """Every section as JSON writes it.

        `model_dump` serializes a section only if it was checked, and `load_config` does not check
        those that the file leaves out; the section itself can be serialized in any case.
        """
        sections: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, dict):
                sections[name] = {key: part.model_dump(mode="json") for key, part in value.items()}
            else:
                sections[name] = value.model_dump(mode="json")
        return sections

    def source(self, name: str) -> SourceSettings:
        """The section of a source, with the defaults when there is none. Raises `SettingsError` for
        no such source."""
        if name in self.sources:
            return self.sources[name]
        form = SOURCES.load(name).settings
        if form is None:
            raise SettingsError(f"the source {name!r} has no settings")
        return form()


def load_config(path: Path) -> Config:
    """Read and check a federation file with its settings. Raises `SettingsError`."""
    tables = read_toml(path)
    _check_sections(tables, path)
    contract = parse_contract(tables, str(path))
    log = _addressed_section(LogSettings, tables, "log", path)
    client = _section(ClientSettings, tables, "client", path)
    readings = _addressed_section(ReadingsSettings, tables, "readings", path)
    host = _addressed_section(HostSettings, tables, "host", path)
    _check_separate("readings", readings.address, log, path)
    if host.client:
        _check_separate("host", host.address, log, path)
        _check_one_log(readings, path)
    own_events, sink_tables = _split_events(tables)
    # Each section is checked, so the whole is not checked again.
    return Config.model_construct(
        contract=contract,
        log=log,
        client=client,
        readings=readings,
        host=host,
        server=_section(ServerSettings, tables, "server", path),
        replica=_section(ReplicaSettings, tables, "replica", path),
        upstream=_section(UpstreamSettings, tables, "upstream", path),
        events=_section(EventSettings, {"events": own_events}, "events", path),
        sources=_source_settings(tables, contract, path),
        sinks=_sink_settings(sink_tables, path),
    )


def _check_sections(tables: Mapping[str, object], path: Path) -> None:
    """Raises `SettingsError` for a section that is none of the fixed ones and no source's."""
    unknown = []
    for name in sorted(set(tables) - set(SECTIONS)):
        # Only this source is imported: all of them take as long as all settings.
        if name not in SOURCES.names() or SOURCES.load(name).settings is None:
            unknown.append(name)
    if unknown:
        known = ", ".join((*SECTIONS, *source_sections()))
        raise SettingsError(f"{path}: unknown section [{unknown[0]}]; there are {known}")


def _split_events(tables: Mapping[str, object]) -> tuple[object, dict[str, object]]:
    """[events] without the sections within it, and those sections by name."""
    written = tables.get("events", {})
    if not isinstance(written, dict):
        return written, {}
    own: dict[str, object] = {}
    sinks: dict[str, object] = {}
    for name, value in written.items():
        # Tables of unknown names too: they are misspelt sinks, and are refused as such.
        is_sink = isinstance(value, dict) or name in SINKS.names()
        (sinks if is_sink else own)[name] = value
    return own, sinks


def _sink_settings(written: Mapping[str, object], path: Path) -> dict[str, SinkSettings]:
    """The sections of sinks that the file or the environment has; a sink that neither names is not
    imported."""
    # Their names are looked up only where one is used: that takes the metadata of all packages.
    unknown = sorted(set(written) - set(SINKS.names())) if written else []
    if unknown:
        known = ", ".join(f"[events.{name}]" for name in SINKS.names())
        raise SettingsError(f"{path}: unknown section [events.{unknown[0]}]; there are {known}")
    prefix = variable_prefix("events")
    chosen = set(written)
    for variable, value in os.environ.items():
        if value and variable.startswith(prefix):
            sink = _sink_of(variable)
            if sink is not None:
                chosen.add(sink)
    settings = {}
    for name in sorted(chosen):
        section = f"events.{name}"
        tables = {section: written.get(name, {})}
        settings[name] = _section(SINKS.load(name).settings, tables, section, path)
    return settings


def _source_settings(
    tables: Mapping[str, object], contract: Contract, path: Path
) -> dict[str, SourceSettings]:
    """The sections of sources that the file or the environment has; a source that neither names is
    not imported."""
    settings = {}
    for name in SOURCES.names():
        if name not in tables and not _is_in_environment(name):
            continue
        form = SOURCES.load(name).settings
        if form is None:
            continue
        settings[name] = _section(form, tables, name, path)
        try:
            settings[name].check(contract)
        except SettingsError as wrong:
            raise SettingsError(f"{path}: {wrong}") from None
    return settings


def _is_in_environment(section: str) -> bool:
    """Whether any variable of the environment sets something of a section."""
    prefix = variable_prefix(section)
    return any(value and name.startswith(prefix) for name, value in os.environ.items())


def _section(form: type[Section], tables: Mapping[str, object], name: str, path: Path) -> Section:
    """The settings of one section: from the environment, else from the file, else the defaults;
    paths resolved."""
    written = tables.get(name, {})
    if not isinstance(written, dict):
        raise SettingsError(f"{path}: [{name}] is not a table")
    from_environment = environment_settings(os.environ, name, form)
    if not written and not from_environment:
        # Defaults need no check, and what checks a section takes memory and time to make: half a
        # megabyte in a client for sections that it has no use for.
        return resolve_paths(form.model_construct(), path)
    source = f"{path}: [{name}]"
    if from_environment:
        source += f" and {variable_prefix(name)}..."
    return resolve_paths(parse_table(form, {**written, **from_environment}, source), path)


def _addressed_section(
    form: type[Section], tables: Mapping[str, object], name: str, path: Path
) -> Section:
    """The section as `_section` reads it, with the keys of the transport that the section's address
    names."""
    written = tables.get(name, {})
    address: object = os.environ.get(f"SHOAL_{name.upper()}_ADDRESS")
    if not address and isinstance(written, dict):
        address = written.get("address")
    if not address:
        address = form.model_fields["address"].default
    # An address of another type is an error of the section, which says so.
    if not address or not isinstance(address, str):
        return _section(form, tables, name, path)
    try:
        combined = with_transport(form, address)
        resolved = resolve_address(address, path)
    except SettingsError as unknown:
        raise SettingsError(f"{path}: [{name}]: {unknown}") from None
    return _section(combined, tables, name, path).model_copy(update={"address": resolved})


def _check_separate(section: str, address: str, log: LogSettings, path: Path) -> None:
    """Raises `SettingsError` when raw readings would go to the federation's own servers.

    `address`: where the section has the readings; empty for a client's folder.
    """
    shared = None
    if address:
        shared = servers_of_address(address) & servers_of_address(log.address)
    if shared:
        raise SettingsError(
            f"{path}: [{section}] and [log] both name {min(shared)}: raw readings would leave the "
            "client's site; use a broker that is the client's alone"
        )


def _check_one_log(readings: ReadingsSettings, path: Path) -> None:
    """Raises `SettingsError` where [readings] says that the readings are elsewhere."""
    if readings.address or readings.folder:
        raise SettingsError(
            f"{path}: with client in [host] the readings of all clients come from the log of"
            " [host]: leave out address and folder of [readings]"
        )
