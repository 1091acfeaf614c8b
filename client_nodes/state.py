"""Whose checkpoint a client's saved state is: checked before anything of it is used."""

from __future__ import annotations

from typing import Any

from shoal.config.contract import Contract
from shoal.errors import InvalidState

STATE_VERSION = 4


def check_state(state: dict[str, Any], contract: Contract, readings_log: bytes) -> None:
    """Raises `InvalidState` for a state of another version, contract or readings log (its 16 bytes of identity)."""
    if state.get("version") != STATE_VERSION:
        raise InvalidState("the client's checkpoint is of another version of shoal; run that version")
    if state["contract"] != contract.digest:
        raise InvalidState(
            "the client's checkpoint was made under another contract; restore the old federation file, "
            "or start under a new client name"
        )
    if state["readings_log"] != readings_log:
        raise InvalidState(
            "the readings log was created anew since the checkpoint was stored, so its positions mean nothing; "
            "restore the readings log, or start under a new client name"
        )
