"""[client]: the client nodes of a federation file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from shoal.config.base import DAY_S, FilePath, Settings


class ClientSettings(Settings):
    """[client]: every client of this file."""

    folder: FilePath = Field(
        default=Path("data/clients"), description="one folder per client below it: readings, key, checkpoint"
    )
    publish_readings: int = Field(default=500, ge=1, le=10**9, description="publish after this many readings learnt")
    publish_s: float = Field(default=10.0, gt=0, le=86400, description="or after this many seconds, if sooner")
    batch_readings_max: int = Field(
        default=1000, ge=1, le=100_000, description="most readings learnt between two checkpoints"
    )
    label: bool = Field(
        default=False,
        description="label the client's own readings by the newest snapshot; the labels stay in its folder",
    )
    novelty_quantile: float = Field(
        default=0.999,
        gt=0,
        le=0.9999,
        description="count labelled readings of this novelty or more as novel; of a steady stream about 1 minus it are",
    )
    publish_labels: bool = Field(
        default=False,
        description="publish the cluster, novelty and time of every labelled reading, but not its values, to the topic "
        "`<federation>.labels`; they are made from readings without noise, so no guarantee of [privacy] covers them",
    )
    window_rows: int = Field(
        default=2000, ge=1, le=10**7, description="for models in rounds: newest rows that are kept to answer from"
    )
    window_s: float = Field(
        default=0.0, ge=0, le=10**10, description="and none that is so many seconds older than the newest; 0: no limit"
    )
    ahead_s: float = Field(
        default=DAY_S,
        ge=0,
        le=10**12,
        description="seconds that the time of a reading may lie after its arrival in the readings log; beyond, the "
        "sensor's clock is wrong, and the reading is rejected (`time`)",
    )
    drop_repeats: bool = Field(
        default=False,
        description="reject a reading with the time of one of the 1000 before it (`repeat`): for a sensor that sends a "
        "message again; not for several sensors in one log",
    )
    readings_bytes_max: int = Field(
        default=1024**3,
        ge=1024,
        le=2**62,
        description="bytes of the newest readings that are kept, learnt or not; for the producer too",
    )
    accept_gap: bool = Field(
        default=False, description="continue, with a warning, when retention removed readings before they were learnt"
    )
    metrics_port: int = Field(
        default=0, ge=0, le=65535, description="serve /metrics and /livez on this port; 0: do not"
    )
    metrics_host: str = Field(
        default="127.0.0.1",
        description="address for it; beyond loopback, counts made from raw readings (rejected, novel) are left out",
    )
    metrics_on_site: bool = Field(
        default=False,
        description="`metrics_host` can be reached from the client's own site only: serve the counts made from raw "
        "readings there too",
    )
    epsilon_max: float = Field(
        default=0.0,
        ge=0,
        le=10**12,
        description="most epsilon that a person spends in all that the client publishes, by its ledger; 0: no limit",
    )
    person_readings: int = Field(
        default=0,
        ge=0,
        le=10**12,
        description="readings of one person that `epsilon_max` is for; 0: all readings of the client",
    )
    at_epsilon_max: Literal["pause", "refuse"] = Field(
        default="pause",
        description="at `epsilon_max`: `pause`: read nothing more, so that readings wait in their log; `refuse`: read "
        "on, and learn and count nothing more",
    )
    signing_key_file: FilePath | None = Field(
        default=None, description="sign updates with the key in this file; `{client}` is replaced by the client's name"
    )

    @model_validator(mode="after")
    def _has_labels_to_publish(self) -> Self:
        if self.publish_labels and not self.label:
            raise ValueError("publish_labels needs label = true")
        return self
