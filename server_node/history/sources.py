"""The sources of a model's history: what its recorder goes on from, and what findings are made
of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from shoal.protocol.history import BinKey, HistoryBin, HistoryNames


class PublishedHistory(Protocol):
    """The history published so far, from which a recorder goes on."""

    @property
    def whole(self) -> bool:
        """Whether all that was published is there; False while it is still read from the log."""
        ...

    def bin(self, key: BinKey) -> HistoryBin | None:
        """The newest version of a bin; None if there is none."""
        ...

    def names(self, model: str) -> HistoryNames | None:
        """The newest names of a model; None if there are none."""
        ...

    def bins_at(self, model: str, width_s: int, starts: Sequence[int]) -> Sequence[HistoryBin]:
        """The bins of this width that start at these times, as many as there are."""
        ...

    def newest(self, model: str, width_s: int) -> int | None:
        """The start of its newest bin of this width; None if there is none."""
        ...


class _NothingPublished:
    """See `PublishedHistory`."""

    whole = True

    def bin(self, key: BinKey) -> None:
        return None

    def names(self, model: str) -> None:
        return None

    def bins_at(self, model: str, width_s: int, starts: Sequence[int]) -> Sequence[HistoryBin]:
        return ()

    def newest(self, model: str, width_s: int) -> None:
        return None


NOTHING_PUBLISHED: Final[PublishedHistory] = _NothingPublished()


class HistorySource(Protocol):
    """Place from which the bins of a model's history are read in spans of time."""

    def extent(self, model: str, width_s: int) -> tuple[int, int] | None:
        """The starts of the oldest and the newest bin of this width; None if there is none."""
        ...

    def each_bin(self, model: str, width_s: int, first: float, last: float) -> Iterator[HistoryBin]:
        """The bins of this width that start from `first` to `last`, oldest first."""
        ...

    def names(self, model: str) -> HistoryNames | None:
        """The clients and clusters that the bins name by number; None before the first bin."""
        ...
