"""[server]: the server node, and who may read its page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from shoal.config.base import NAME_FORMAT, NAME_PATTERN, FilePath, Settings
from shoal.config.limits import MIB, UPDATE_BYTES_MAX

HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9])?|\[[0-9a-f:.]+\]")
"""a host name as browsers send it, or an address of version 6 in brackets"""


class ServerSettings(Settings):
    """[server]: the server node and its page."""

    folder: FilePath = Field(default=Path("data/server"), description="folder of the server's checkpoint")
    pool_clients: int = Field(
        default=2,
        ge=1,
        le=100_000,
        description="clients from which updates must have arrived before the first clustering",
    )
    pool_s: float = Field(
        default=60.0, gt=0, le=86400, description="or begin after this many seconds with those that have arrived"
    )
    snapshot_updates: int = Field(default=20, ge=1, le=10**6, description="publish a snapshot after this many updates")
    snapshot_s: float = Field(
        default=0.1,
        gt=0,
        le=86400,
        description="or after this many seconds, if there was any update; later, by 2 s at most, if snapshots of the "
        "model take long",
    )
    batch_updates_max: int = Field(
        default=200, ge=1, le=10_000, description="most updates absorbed between two checkpoints"
    )
    step_s: float = Field(
        default=1.0,
        gt=0,
        le=3600,
        description="a step ends with the update at which so many seconds have passed; the others wait for the next",
    )
    lease_renew_s: float = Field(
        default=5.0,
        gt=0,
        le=3600,
        description="renew the lease this often; a server that did not for four times as long may be replaced",
    )
    accept_gap: bool = Field(
        default=False, description="continue, with a warning, when retention removed updates before they were read"
    )
    host: str = Field(default="127.0.0.1", description="address of the page and the metrics")
    port: int = Field(default=8765, ge=0, le=65535, description="port of the page; 0: any free one, logged at start")
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="host names by which the page may be called, besides `host`, `localhost` and loopback addresses; "
        "requests under another name are refused. In the environment, with commas between them",
    )
    token_file: FilePath | None = Field(
        default=None,
        description="all requests but `/livez` need the token in this file (`Authorization: Bearer`); the page asks "
        "for it. `shoal keys token FILE` makes one",
    )
    certificate_file: FilePath | None = Field(
        default=None, description="serve the page over TLS with this certificate, and those up to its root (PEM)"
    )
    key_file: FilePath | None = Field(default=None, description="private key (PEM) of that certificate")
    connections_max: int = Field(
        default=256,
        ge=16,
        le=100_000,
        description="connections to the page at once; beyond them those that have waited longest for a request are "
        "closed. At most 64 of them, and at most half, are event streams",
    )
    requests_per_s: float = Field(
        default=50.0,
        ge=0,
        le=10**6,
        description="requests that one address may send per second, and twice as many at once; 0: no limit. Behind a "
        "proxy all requests come from its address",
    )
    request_s: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="seconds within which the header of a request must have arrived; three times as many for its body, "
        "and for a client to read on",
    )
    clients: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="the clients whose updates are processed, others are rejected; none: any. In the environment, with "
        "commas between them",
    )
    clients_max: int = Field(
        default=10_000, ge=1, le=10**6, description="most clients, where `clients` does not name them"
    )
    client_updates_per_s: float = Field(
        default=300.0,
        ge=0,
        le=10**6,
        description="records that a client may send per second, by the log's time, and 60 times as many at once; more "
        "are rejected. 0: no limit",
    )
    client_bytes_max: int = Field(
        default=16 * MIB, ge=4096, le=UPDATE_BYTES_MAX, description="bytes of one answer that a model in rounds keeps"
    )
    answers_bytes_max: int = Field(
        default=256 * MIB,
        ge=4096,
        le=2**40,
        description="bytes of the answers of all clients that a model in rounds keeps; more are rejected",
    )
    client_keys: FilePath | None = Field(
        default=None,
        description="folder with a NAME.key for each client; updates not signed with their client's key are rejected",
    )

    @field_validator("clients")
    @classmethod
    def _are_client_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not re.fullmatch(NAME_PATTERN, name):
                raise ValueError(f"{name[:64]!r} is no name of a client: {NAME_FORMAT}")
        return names

    @field_validator("allowed_hosts")
    @classmethod
    def _are_host_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not HOST_NAME.fullmatch(name):
                raise ValueError("each is a host name in lower case, without https:// and without a port")
        return names

    @model_validator(mode="after")
    def _has_certificate_and_key(self) -> Self:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together; set both, or neither")
        return self
