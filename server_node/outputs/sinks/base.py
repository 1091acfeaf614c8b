"""Sinks of cluster events: what every sink is, and all sinks of a federation file.

A sink is found by the name of its section [events.NAME], through the entry-point group
`shoal.sinks`. Its file has its settings, its delivery, and the `SinkType` that the entry point
names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from shoal.config.extension_settings import SINKS, SinkSettings
from shoal.errors import SettingsError

TIMEOUT_S = 10.0
"""seconds for which a sink waits for its receiver before it is tried again later

A sink that is away holds up the others while it is waited for, so the wait is short."""


class Sink(Protocol):
    """Somewhere to deliver to.

    Delivery is at least once: after an outage the same alert may arrive twice.
    """

    def deliver(self, alert: Mapping[str, Any], event: str, model: str) -> bool:
        """Deliver one alert of a kind of `event`; False if the receiver rejects it for good.

        Raises `LogUnavailable`: try again later.
        """
        ...

    def close(self) -> None:
        """Release the connection; closing twice is harmless."""
        ...


class SinkType(ABC):
    """One kind of sink: an object that the entry-point group `shoal.sinks` names."""

    name: str
    """name of its section in [events] and of its entry point"""
    settings: type[SinkSettings]
    """section of the sink; a required setting has no default"""

    @abstractmethod
    def open(self, settings: Any, federation: str) -> Sink:
        """Open the sink of a federation; `settings` is an instance of `self.settings`.

        It connects when it delivers. Raises `SettingsError` for settings that cannot be, and
        `MissingExtra`.
        """


def _load_sink_type(name: str) -> SinkType:
    sink_type = SINKS.load(name)
    if not isinstance(sink_type, SinkType):
        raise SettingsError(
            f"sink of events {name!r} is not a shoal.server_node.outputs.sinks.base.SinkType"
        )
    return sink_type


class Sinks:
    """All sinks of a federation file, closed at the end of the context."""

    def __init__(self, sections: Mapping[str, SinkSettings], federation: str) -> None:
        """`sections`: sink -> its section, as in `Config.sinks`.

        Raises `SettingsError` if there is none.
        """
        if not sections:
            known = ", ".join(f"[events.{name}]" for name in SINKS.names())
            raise SettingsError(
                f"nowhere to forward events to: write a section of a sink; there are {known}"
            )
        self._sinks: dict[str, Sink] = {}
        for name, settings in sections.items():
            self._sinks[name] = _load_sink_type(name).open(settings, federation)

    def items(self) -> list[tuple[str, Sink]]:
        """name -> sink."""
        return list(self._sinks.items())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for sink in self._sinks.values():
            sink.close()
