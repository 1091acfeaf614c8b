"""The sections of a federation file for single processes: [client], [server], [replica], [upstream]
and [events]."""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from shoal.config.base import (
    CLIENT_NAME_CHARS,
    DAY_S,
    NAME_FORMAT,
    NAME_PATTERN,
    FilePath,
    Settings,
    shown_client_name,
)
from shoal.config.limits import MIB, UPDATE_BYTES_MAX


def is_loopback(host: str) -> bool:
    """Whether this host name or address is this machine for itself, and by its form alone."""
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    # ::ffff:127.0.0.1 is this machine too, and Python before 3.13 does not say so.
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


class ClientSettings(Settings):
    """[client]: every client of this file."""

    folder: FilePath = Field(
        default=Path("data/clients"),
        description="one folder per client below it: readings, key, checkpoint",
    )
    publish_readings: int = Field(
        default=500,
        ge=1,
        le=10**9,
        description="publish after this many readings learnt, or after as many as an algorithm has "
        "room for in an update, if fewer: cluster_tree for 8 times its `points_max`",
    )
    publish_s: float = Field(
        default=10.0, gt=0, le=86400, description="or after this many seconds, if sooner"
    )
    batch_readings_max: int = Field(
        default=4000, ge=1, le=100_000, description="most readings learnt between two checkpoints"
    )
    label: bool = Field(
        default=False,
        description="label the client's own readings by the newest snapshot; the labels stay in "
        "its folder",
    )
    novelty_quantile: float = Field(
        default=0.999,
        gt=0,
        le=0.9999,
        description="count labelled readings of this novelty or more as novel; of a steady "
        "stream a share of about 1 minus this number is novel",
    )
    novel_streak: int = Field(
        default=10,
        ge=2,
        le=10**6,
        description="novel readings in a row that are a site event (`shoal events list --client "
        "NAME`); of a steady stream that has none, ten in a row do not happen by chance",
    )
    stuck_per_month: float = Field(
        default=0.5,
        ge=0,
        le=1000,
        description="false site events `stuck` to aim at in a month: a feature has one value far "
        "longer than ever before; 0: none are found",
    )
    drift_per_month: float = Field(
        default=0.5,
        ge=0,
        le=1000,
        description="the same of `drift` and `level_shift`: a feature moves within one cluster "
        "of this client, over weeks or in one step; 0: none are found",
    )
    new_here_per_month: float = Field(
        default=1.0,
        ge=0,
        le=30,
        description="false alarms in a month, on average, of the site event `new_here`: the client "
        "is in a cluster in which it has (almost) never been; the first is possible after 30 / e "
        "days divided by this number, 11 days at 1; 0: none, and below 0.1 as 0.1",
    )
    state_changed_windows: float = Field(
        default=2.0,
        ge=0,
        le=100,
        description="blocks of a states model, and five readings at least, for which a client "
        "must stay in another state before the site event `state_changed`",
    )
    unseen_change_share: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="report a change of state (`unseen_change`) where at most this share of the "
        "changes from there were as rare",
    )
    unusual_dwell_share: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="report a dwell in a state (`unusual_dwell`) where at most this share of "
        "dwells last as long",
    )
    publish_labels: bool = Field(
        default=False,
        description="publish the cluster, novelty and time of every labelled reading, the "
        "features outside their usual values, and events of states and of stuck features, but "
        "not its values, to the topic `<federation>.labels`; they are made from readings without "
        "noise, so no guarantee of [privacy] covers them",
    )
    window_rows: int = Field(
        default=2000,
        ge=1,
        le=10**7,
        description="for models in rounds: newest rows that are kept to answer from",
    )
    window_s: float = Field(
        default=0.0,
        ge=0,
        le=10**10,
        description="and none that is this many seconds older than the newest; 0: no limit",
    )
    ahead_s: float = Field(
        default=DAY_S,
        ge=0,
        le=10**12,
        description="seconds that the time of a reading may lie after its arrival in the "
        "readings log; beyond, the sensor's clock is wrong, and the reading is rejected (`time`)",
    )
    drop_repeats: bool = Field(
        default=False,
        description="reject a reading with the time of one of the 1000 before it (`repeat`): for "
        "a sensor that sends a message again; not for several sensors in one log. Where the "
        "privacy unit is a user: same user and time in one window",
    )
    readings_bytes_max: int = Field(
        default=1024**3,
        ge=1024,
        le=2**62,
        description="bytes of the newest readings that are kept, learnt or not; for the producer "
        "too",
    )
    accept_gap: bool = Field(
        default=False,
        description="continue, with a warning, when retention removed readings before they were "
        "learnt",
    )
    accept_unseen: bool = Field(
        default=False,
        description="start, with a warning, where the client may not read the updates topic and "
        "so cannot find out whether its folder is older than what it has published",
    )
    metrics_port: int = Field(
        default=0, ge=0, le=65535, description="serve /metrics and /livez on this port; 0: do not"
    )
    metrics_host: str = Field(
        default="127.0.0.1",
        description="address for it; beyond loopback, counts made from raw readings (rejected, "
        "novel) are left out",
    )
    metrics_on_site: bool = Field(
        default=False,
        description="`metrics_host` can be reached from the client's own site only: serve the "
        "counts made from raw readings there too",
    )
    epsilon_max: float = Field(
        default=0.0,
        ge=0,
        le=10**12,
        description="most epsilon that a person spends in all that the client publishes, by its "
        "ledger; 0: no limit",
    )
    person_readings: int = Field(
        default=0,
        ge=0,
        le=10**12,
        description="readings of one person that `epsilon_max` is for; 0: all readings of the "
        "client",
    )
    readings_per_day: float = Field(
        default=1440.0,
        gt=0,
        le=10**12,
        description="readings that one person or device gives in a day: `shoal check` says what "
        "they spend",
    )
    at_epsilon_max: Literal["pause", "refuse"] = Field(
        default="pause",
        description="at `epsilon_max`: `pause`: read nothing more, so that readings wait in "
        "their log; `refuse`: read on, and learn and count nothing more",
    )
    signing_key_file: FilePath | None = Field(
        default=None,
        description="sign updates with the key in this file; `{client}` is replaced by the "
        "client's name",
    )

    @model_validator(mode="after")
    def _has_labels_to_publish(self) -> Self:
        if self.publish_labels and not self.label:
            raise ValueError("publish_labels needs label = true")
        return self


HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9])?|\[[0-9a-f:.]+\]")
"""a host name as browsers send it, or an address of version 6 in brackets"""


class ServerSettings(Settings):
    """[server]: the server node and its page."""

    folder: FilePath = Field(
        default=Path("data/server"), description="folder of the server's checkpoint"
    )
    pool_clients: int = Field(
        default=2,
        ge=1,
        le=100_000,
        description="clients from which updates must have arrived before the first clustering",
    )
    pool_s: float = Field(
        default=60.0,
        gt=0,
        le=86400,
        description="or begin after this many seconds with those that have arrived",
    )
    unusual_per_month: float = Field(
        default=1.0,
        ge=0,
        le=100,
        description="false alarms a month and model that are accepted for shares of clusters "
        "that are unusual for the time of day; 0: none is raised",
    )
    unlike_per_month: float = Field(
        default=1.0,
        ge=0,
        le=30,
        description="false alarms a month and client that are accepted for clients whose shares "
        "of clusters differ from those of all others (`unlike_others`); 0: none is raised",
    )
    snapshot_updates: int = Field(
        default=20, ge=1, le=10**6, description="publish a snapshot after this many updates"
    )
    snapshot_s: float = Field(
        default=0.1,
        gt=0,
        le=86400,
        description="or after this many seconds, if there was any update; later, by 2 s at most, "
        "if snapshots of the model take long",
    )
    batch_updates_max: int = Field(
        default=200, ge=1, le=10_000, description="most updates absorbed between two checkpoints"
    )
    step_s: float = Field(
        default=1.0,
        gt=0,
        le=3600,
        description="a step ends with the update at which this many seconds have passed; the "
        "others wait for the next",
    )
    lease_renew_s: float = Field(
        default=5.0,
        gt=0,
        le=3600,
        description="renew the lease this often; a server that did not for four times as long "
        "may be replaced",
    )
    accept_gap: bool = Field(
        default=False,
        description="continue, with a warning, when retention removed updates before they were "
        "read",
    )
    host: str = Field(default="127.0.0.1", description="address of the page and the metrics")
    port: int = Field(
        default=8765,
        ge=0,
        le=65535,
        description="port of the page; 0: any free one, logged at start",
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="host names by which the page may be called, besides `host`, `localhost` and "
        "loopback addresses; requests under another name are refused. In the environment, with "
        "commas between them",
    )
    token_file: FilePath | None = Field(
        default=None,
        description="all requests but `/livez` need the token in this file (`Authorization: "
        "Bearer`); the page asks for it. `shoal keys token FILE` makes one",
    )
    certificate_file: FilePath | None = Field(
        default=None,
        description="serve the page over TLS with this certificate, and those up to its root (PEM)",
    )
    key_file: FilePath | None = Field(
        default=None, description="private key (PEM) of that certificate"
    )
    connections_max: int = Field(
        default=256,
        ge=16,
        le=100_000,
        description="connections to the page at once; beyond them those that have waited longest "
        "for a request are closed. At most 64 of them, and at most half, are event streams",
    )
    requests_per_s: float = Field(
        default=50.0,
        ge=0,
        le=10**6,
        description="requests that one address may send per second, and twice as many at once; "
        "0: no limit. Behind a proxy all requests come from its address",
    )
    request_s: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="seconds within which the header of a request must have arrived; three times "
        "as many for its body, and for a client to read on",
    )
    clients: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="the clients whose updates are processed, others are rejected; none: any. In "
        "the environment, with commas between them",
    )
    client_names: dict[str, str] = Field(
        default_factory=dict,
        description="client = name that its owner gave it, such as `Büro Süd`, which page, "
        "commands and events show in its place; `shoal init` writes those that files have and "
        "clients cannot, but none of people",
    )
    regions: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="the federations that are regions below this one; updates of regions that "
        "are not named are rejected. In the environment, with commas between them",
    )
    clients_max: int = Field(
        default=10_000,
        ge=1,
        le=10**6,
        description="most clients besides `regions`, where `clients` does not name them",
    )
    client_updates_per_s: float = Field(
        default=300.0,
        ge=0,
        le=10**6,
        description="records that a client may send per second, by the log's time, and 60 times "
        "as many at once; more are rejected. 0: no limit",
    )
    requests_taken_per_s: float = Field(
        default=10.0,
        ge=0,
        le=10**6,
        description="requests of one type (a name, a wake, a quarantine) for one model that are "
        "taken per second, by the log's time, and 60 times as many at once; more are rejected. "
        "0: no limit",
    )
    rejected_kept_per_s: float = Field(
        default=10.0,
        ge=0,
        le=10**6,
        description="messages rejected for one reason of which the server keeps copies and logs "
        "events, per second and partition, by the log's time, and 60 times as many at once; more "
        "are counted alone. 0: no limit",
    )
    client_bytes_max: int = Field(
        default=16 * MIB,
        ge=4096,
        le=UPDATE_BYTES_MAX,
        description="bytes of one answer that a model in rounds keeps",
    )
    answers_bytes_max: int = Field(
        default=256 * MIB,
        ge=4096,
        le=2**40,
        description="bytes of the answers of all clients that a model in rounds keeps; more are "
        "rejected",
    )
    signing_key_file: FilePath | None = Field(
        default=None,
        description="private key with which the server signs snapshots and leases, where [log] "
        "has `server_keys`, and its own requests (needs the extra `sign`)",
    )
    operator_keys: FilePath | None = Field(
        default=None,
        description="file with the public keys of operators: requests that are signed neither "
        "with one of them nor by the server are rejected",
    )
    operator_key_file: FilePath | None = Field(
        default=None,
        description="private key with which commands such as `shoal name` sign their requests "
        "(needs the extra `sign`)",
    )
    client_keys: FilePath | None = Field(
        default=None,
        description="folder with a NAME.key for each client; updates not signed with their "
        "client's key are rejected",
    )
    helper_key_file: FilePath | None = Field(
        default=None,
        description='with `mode = "masked"`: run a helper within the server, with the key in '
        "this file, besides those "
        "that other parties run",
    )

    @field_validator("clients", "regions")
    @classmethod
    def _are_client_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not re.fullmatch(NAME_PATTERN, name):
                raise ValueError(f"{name[:64]!r} is no name of a client or region: {NAME_FORMAT}")
        return names

    @field_validator("client_names")
    @classmethod
    def _are_shown_names(cls, names: dict[str, str]) -> dict[str, str]:
        cls._are_client_names(tuple(names))
        for client, name in names.items():
            if name != shown_client_name(name) or not name:
                raise ValueError(
                    f"the name of {client} is 1 to {CLIENT_NAME_CHARS} printable characters"
                )
        return names

    @field_validator("allowed_hosts")
    @classmethod
    def _are_host_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not HOST_NAME.fullmatch(name):
                raise ValueError(
                    "each is a host name in lower case, without https:// and without a port"
                )
        return names

    @model_validator(mode="after")
    def _has_certificate_and_key(self) -> Self:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together; set both, or neither")
        return self


class ReplicaSettings(Settings):
    """[replica]: replicas that share the regions of a Kafka cluster. The same in the files of all
    regions."""

    folder: FilePath = Field(
        default=Path("data/replicas"),
        description="a folder for each replica below it, with a copy of the state of its "
        "regions; it may be lost",
    )
    group: str = Field(
        default="shoal-replicas",
        pattern=f"^{NAME_PATTERN}$",
        description="Kafka's consumer group of the replicas, and part of the names of the topics "
        "with their state",
    )
    commit_s: float = Field(
        default=1.0,
        gt=0,
        le=60,
        description="seconds between two transactions; each has the state, what was published, "
        "and how far was read",
    )
    session_s: float = Field(
        default=6.0,
        ge=1,
        le=300,
        description="a replica that was silent for so long has its regions taken over; at least "
        "what the brokers allow (`group.min.session.timeout.ms`, 6 s by default)",
    )
    metrics_port: int = Field(
        default=0, ge=0, le=65535, description="port of /metrics and /livez of a replica; 0: none"
    )
    metrics_host: str = Field(
        default="127.0.0.1", description="address that they are served at; there is no login"
    )


class UpstreamSettings(Settings):
    """[upstream]: what the server contributes to another federation, under the name of its own."""

    file: FilePath | None = Field(
        default=None,
        description="federation file of the upstream federation, as its clients have it; none: "
        "there is none",
    )
    publish_readings: int = Field(
        default=10_000,
        ge=1,
        le=10**9,
        description="contribute to a model after this many readings of all clients",
    )
    publish_s: float = Field(
        default=10.0, gt=0, le=86400, description="or after this many seconds, if sooner"
    )


class EventSettings(Settings):
    """[events]: what the forwarder of cluster events keeps and selects. Each sink has a section
    [events.NAME]."""

    folder: FilePath = Field(
        default=Path("data/events"), description="where the forwarder keeps its position"
    )
    rules: FilePath | None = Field(
        default=None,
        description="TOML file of `[[rule]]` tables: forward only matching events; none: all of "
        "them",
    )
