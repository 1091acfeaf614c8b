"""The settings of sources of readings: a section of the federation file for each source that has settings.

A source is found by its name through the entry-point group `shoal.sources`; what one is, as a whole, is in
`producers.source_type`. Its section has the same name, so a source of another package brings its section with it.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

from shoal.config.base import Settings
from shoal.config.contract import Contract
from shoal.plugins import Plugins


class SourceSettings(Settings):
    """Base of a source's section: every field with a default and a description."""

    def check(self, contract: Contract) -> None:
        """Raises `SettingsError` for settings that do not fit the contract."""


class SourceWithSettings(Protocol):
    """What the settings need to know of a source; see `producers.source_type.SourceType`."""

    name: str
    settings: type[SourceSettings] | None


def _is_source(found: Any) -> TypeGuard[SourceWithSettings]:
    settings = getattr(found, "settings", None)
    has_settings = isinstance(settings, type) and issubclass(settings, SourceSettings)
    return (settings is None or has_settings) and callable(getattr(found, "run", None))


SOURCES = Plugins("shoal.sources", "source of readings", _is_source, "a producers.source_type.SourceType")


def source_sections() -> dict[str, type[SourceSettings]]:
    """section -> its settings, for every installed source that has a section. Raises `SettingsError`."""
    sources = (SOURCES.load(name) for name in SOURCES.names())
    return {source.name: source.settings for source in sources if source.settings is not None}
