"""[upstream]: the federation that this one's server is a client of, as its region."""

from __future__ import annotations

from pydantic import Field

from shoal.config.base import FilePath, Settings


class UpstreamSettings(Settings):
    """[upstream]: what the server contributes to another federation, under the name of its own."""

    file: FilePath | None = Field(
        default=None,
        description="federation file of the upstream federation, as its clients have it; none: there is none",
    )
    publish_readings: int = Field(
        default=10_000, ge=1, le=10**9, description="contribute to a model after this many readings of all clients"
    )
    publish_s: float = Field(default=10.0, gt=0, le=86400, description="or after this many seconds, if sooner")
