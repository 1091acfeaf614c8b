"""The check that every mechanism's saved state passes before it is trusted."""

from __future__ import annotations

from typing import Any

from shoal.errors import InvalidState


def check_state(state: dict[str, Any], version: int, mode: str, fingerprint: str) -> None:
    """Raises `InvalidState` unless the state is of this version, mode, and noise.

    Another fingerprint means another key, client, source or terms. Readings already published would be
    published again with fresh noise, and what protected them could be averaged away.
    """
    if not isinstance(state, dict) or state.get("version") != version:
        raise InvalidState(f"saved privacy state is not of version {version}; use the shoal that wrote it")
    if state.get("mode") != mode:
        raise InvalidState(f"saved privacy state is of another mode than {mode!r}; start with a new readings log")
    if state.get("fingerprint") != fingerprint:
        raise InvalidState(
            "saved privacy state belongs to another noise key, client name, readings log or privacy terms. Bring back "
            "the ones it was made with, or start as a new client: reading the same log with other noise would "
            "weaken what was promised"
        )
