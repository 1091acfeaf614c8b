"""The files and keys that a client runs on; `client_nodes.bootstrap` opens them."""

from __future__ import annotations

from typing import NamedTuple

from shoal.privacy.ledger import Ledger
from shoal.runtime.checkpoint import Checkpoint
from shoal.transports.base import Log


class ClientResources(NamedTuple):
    """What belongs to one client alone; none of it leaves its site."""

    readings: Log
    """the client's own log: raw readings, rejected ones, labels"""
    checkpoint: Checkpoint
    noise_key: bytes | None
    """None in privacy mode `off`, which adds no noise"""
    signing_key: bytes | None = None
    """None: updates are not signed"""
    noise_key_is_new: bool = False
    """made at this start, so that nothing can be published with it yet"""
    ledger: Ledger | None = None
    """None in a mode without a guarantee"""
