"""Extension points: what installed packages offer under an entry-point group.

A plug-in is found by name, and imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Generic, TypeGuard, TypeVar

from shoal.errors import SettingsError

P = TypeVar("P")


# Read once in a process: it opens a file of each installed package, whatever the group.
_all_points = cache(entry_points)


def points_of(group: str) -> EntryPoints:
    """The entry points of a group that the installed packages have."""
    return _all_points().select(group=group)


class Plugins(Generic[P]):
    """The plug-ins of one kind.

    What an entry point leads to has an attribute `name`, the entry point's own name. The entry
    points are read once; a plug-in is imported when it is first asked for, so that a process loads
    only those it runs, and a broken one stops no other."""

    def __init__(
        self, group: str, kind: str, accepts: Callable[[Any], TypeGuard[P]], wanted: str
    ) -> None:
        """`kind` names one of them in messages ("algorithm"); `wanted` says what is accepted."""
        self.group = group
        self._kind = kind
        self._accepts = accepts
        self._wanted = wanted
        self._loaded: dict[str, P] = {}

    def names(self) -> tuple[str, ...]:
        """The names of all that are installed, in alphabetical order; imports none.

        Raises `SettingsError`.
        """
        return tuple(sorted(self._installed))

    def load(self, name: str) -> P:
        """The plug-in of this name, imported on first use.

        Raises `SettingsError` for an unknown name, and for an entry point that does not lead to a
        plug-in of this kind.
        """
        if name not in self._loaded:
            self._loaded[name] = self._import(name)
        return self._loaded[name]

    def _import(self, name: str) -> P:
        point = self._installed.get(name)
        if point is None:
            raise SettingsError(
                f"unknown {self._kind} {name!r}; there are: {', '.join(self.names())}"
            )
        origin = f"{self._kind} {name!r} of package {_package(point)} ({point.value})"
        try:
            plugin = point.load()
        # The code of another package runs here: whatever it raises is reported as that package's
        # fault.
        except (Exception, SystemExit) as error:
            raise SettingsError(
                f"{origin} cannot be imported: {type(error).__name__}: {error}"
            ) from error
        if not self._accepts(plugin):
            raise SettingsError(f"{origin} leads to {plugin!r}; it must be {self._wanted}")
        called = getattr(plugin, "name", None)
        if called != name:
            raise SettingsError(
                f"{origin} calls itself {called!r}; the entry point must have the same name"
            )
        return plugin

    @cached_property
    def _installed(self) -> dict[str, EntryPoint]:
        """Entry point by name.

        Raises `SettingsError` if there is none, or if two packages offer the same name.
        """
        installed: dict[str, EntryPoint] = {}
        for point in points_of(self.group):
            other = installed.setdefault(point.name, point)
            if other.value != point.value:
                packages = (
                    f"{_package(other)} ({other.value}) and {_package(point)} ({point.value})"
                )
                raise SettingsError(
                    f"two installed packages offer the same {self._kind} {point.name!r}: "
                    f"{packages}; remove one"
                )
        if not installed:
            raise SettingsError(
                f"no {self._kind} is installed: the entry-point group {self.group} is empty; "
                "install shoal again (in its clone: pip install -e .)"
            )
        return installed


def _package(point: EntryPoint) -> str:
    if point.dist is None:
        return "unknown"
    return point.dist.name
