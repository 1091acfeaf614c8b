"""Messages of regions: the update that a region contributes upstream, and the record that says when
it does.

A region is a federation whose server is a client of another federation, the upstream one. Its
updates say which regions they come through, so that a federation refuses what has come from itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from shoal.algorithms.registry import load_algorithm
from shoal.algorithms.streaming import ArraySpec, StreamingAlgorithm
from shoal.protocol.checks import is_count, is_name, require
from shoal.protocol.messages import REQUEST_BYTES_MAX, ModelMessage, Update
from shoal.transports.base import Headers

REGIONS_MAX: Final = 1000
"""most regions, of all levels, that one update names"""
DEPTH_MAX: Final = 16
"""most levels of regions below a federation"""
SEPARATOR: Final = "/"


class Region(NamedTuple):
    """One region that an update comes through."""

    path: str
    """names of regions with a slash between them, from the one that sends the update down to this
    one"""
    clients: int
    """clients of this region, without the regions below it"""


@dataclass(frozen=True)
class RegionUpdate(Update):
    """What a region publishes upstream for a model: one update of what its clients contributed."""

    TYPE: ClassVar[str] = "region_update"

    regions: list[list[Any]] = field(kw_only=True)
    """a `Region` each, as lists: first the one that sends the update, then those below it"""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = isinstance(self.regions, list) and all(map(_is_entry, self.regions))
        require(known and 1 <= len(self.regions) <= REGIONS_MAX, "malformed", "regions")
        below = all(path.split(SEPARATOR)[0] == self.client for path, _ in self.regions)
        require(
            below and self.regions[0][0] == self.client,
            "malformed",
            "regions must begin with the one that sends",
        )

    @property
    def reading_s(self) -> None:
        """None: the update does not tell how many clients its readings are from."""
        return None

    @property
    def tree(self) -> list[Region]:
        """The entries by name."""
        return [Region(*entry) for entry in self.regions]

    def check_passes_once(self, federation: str) -> None:
        """Raises `MessageRejected` ("cycle") for an update that came through this federation."""
        through: set[str] = set()
        for path, _ in self.regions:
            through.update(path.split(SEPARATOR))
        detail = (
            f"it has come from {federation}; change [upstream] of a region so that none is in a "
            "circle"
        )
        require(federation not in through, "cycle", detail)


@dataclass(frozen=True)
class Contribute(ModelMessage):
    """A request to contribute upstream now what a model has learnt. It is a record of the region's
    topic of updates.

    The region's server writes it when it is time to. What a region contributes then follows from
    the log alone.
    """

    TYPE: ClassVar[str] = "contribute"
    BYTES_MAX: ClassVar[int] = REQUEST_BYTES_MAX


def decode_update(value: bytes | None, headers: Headers) -> Update:
    """The update in a record: a client's or a region's. Raises `MessageRejected`."""
    if ("type", RegionUpdate.TYPE.encode()) in headers:
        return RegionUpdate.decode(value, headers)
    return Update.decode(value, headers)


def update_arrays(update: Update) -> Mapping[str, ArraySpec]:
    """The declared arrays of an update, by its algorithm and by whether it is of a region."""
    algorithm = load_algorithm(update.algorithm)
    if not isinstance(update, RegionUpdate) or not isinstance(algorithm, StreamingAlgorithm):
        return algorithm.update
    if algorithm.aggregation is None:
        return algorithm.update
    return algorithm.aggregation.update or algorithm.update


def _is_entry(value: object) -> bool:
    if not (isinstance(value, list) and len(value) == len(Region._fields)):
        return False
    path, clients = value
    if not (isinstance(path, str) and is_count(clients)):
        return False
    names = path.split(SEPARATOR)
    return len(names) <= DEPTH_MAX and all(map(is_name, names))
