"""The installed privacy modes, found by name through the entry-point group `shoal.privacy`.

An entry point names a subclass of `PrivacyMode`. A mode is imported when it is first asked for.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from shoal.plugins import Plugins
from shoal.privacy.base import PrivacyMode


def _is_mode(found: Any) -> TypeGuard[type[PrivacyMode]]:
    return isinstance(found, type) and issubclass(found, PrivacyMode)


_MODES = Plugins("shoal.privacy", "privacy mode", _is_mode, "a subclass of PrivacyMode")


def mode_names() -> tuple[str, ...]:
    """The names of all installed privacy modes in alphabetical order; imports none of them."""
    return _MODES.names()


def load_mode(name: str) -> type[PrivacyMode]:
    """The class of the privacy mode of this name. Raises `SettingsError`."""
    return _MODES.load(name)
