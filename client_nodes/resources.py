"""What a client needs of its own to run; `client_nodes.bootstrap` opens it."""

from __future__ import annotations

from typing import NamedTuple

from shoal.runtime.checkpoint import Checkpoint
from shoal.transports.base import Log


class ClientResources(NamedTuple):
    """What a client has of its own; nothing of it leaves the place."""

    readings: Log
    """raw readings, and what is kept about each of them"""
    checkpoint: Checkpoint
    key: bytes | None
    """the noise key; none is needed where no noise is added"""
    signing_key: bytes | None = None
    """what updates are signed with; None: they are not"""
