"""The state of a helper of masked counts, which is made together with its key.

What a helper has unmasked is in its state alone. With a key and without this state it would unmask
windows a second time with other noise if their messages are published to it again, so such a key is
refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shoal.errors import InvalidState, SettingsError
from shoal.runtime.checkpoint import Checkpoint

HELPER_STATE: Final = "helper.db"
"""the file in a helper's folder"""


def helper_state_owner(public: bytes) -> str:
    """The owner of the state of the helper with this public key."""
    return f"helper with the key {public.hex()[:16]}"


def check_no_helper_state(folder: Path) -> None:
    """Raises `SettingsError` where the folder has the state of a helper."""
    if (folder / HELPER_STATE).exists():
        raise SettingsError(
            f"{folder} has the state of another helper: give each helper a folder of its own, with "
            "--folder"
        )


def make_helper_state(folder: Path, public: bytes) -> None:
    """Make the state of a new helper, which has unmasked nothing. Raises `SettingsError`."""
    check_no_helper_state(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"folder {folder} cannot be made: {error.strerror}; name another one"
        ) from None
    Checkpoint(folder / HELPER_STATE, helper_state_owner(public)).close()


def open_helper_state(folder: Path, public: bytes) -> Checkpoint:
    """Open the state of a helper. Raises `InvalidState` where there is none, and as `Checkpoint`
    does."""
    file = folder / HELPER_STATE
    if not file.exists():
        raise InvalidState(
            f"{file} is missing, in which the helper keeps what it has unmasked: without it, it "
            "could unmask a window twice with other noise. Name the folder that `shoal keys "
            "helper` has made with the key; if it is lost, the key is of no use any more: make a "
            "new one, which is a new contract"
        )
    return Checkpoint(file, helper_state_owner(public))
