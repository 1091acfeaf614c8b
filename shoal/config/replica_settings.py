"""The section [replica] of a federation file: `shoal replica`, which serves regions together with others like it."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from shoal.config.base import NAME_PATTERN, FilePath, Settings


class ReplicaSettings(Settings):
    """[replica]: replicas that share the regions of a Kafka cluster. The same in the files of all regions."""

    folder: FilePath = Field(
        default=Path("data/replicas"),
        description="a folder for each replica below it, with a copy of the state of its regions; it may be lost",
    )
    group: str = Field(
        default="shoal-replicas",
        pattern=f"^{NAME_PATTERN}$",
        description="Kafka's consumer group of the replicas, and part of the names of the topics with their state",
    )
    commit_s: float = Field(
        default=1.0,
        gt=0,
        le=60,
        description="seconds between two transactions; each has the state, what was published, and how far was read",
    )
    session_s: float = Field(
        default=6.0,
        ge=1,
        le=300,
        description="a replica that was silent for so long has its regions taken over; at least what the brokers "
        "allow (`group.min.session.timeout.ms`, 6 by default)",
    )
