"""Counts the readings of one model into bins of time, and gives out the bins that have changed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import numpy as np

from server_node.history.attribution import Attribution
from server_node.history.open_bin import OpenBin, Summed
from shoal.config.contract import Contract
from shoal.errors import InvalidState
from shoal.protocol.history import (
    BINS_KEPT,
    CLIENTS_MAX,
    CLUSTERS_MAX,
    FINE_S,
    OTHER_CLIENTS,
    BinKey,
    HistoryBin,
    HistoryNames,
)

OPEN_MAX = 16
"""bins of a model that stay in memory after they were published: those of the newest updates and of late ones"""


class PublishedHistory(Protocol):
    """What has been published so far, to go on from."""

    def bin(self, key: BinKey) -> HistoryBin | None:
        """The newest version of a bin; None if there is none."""
        ...

    def names(self, model: str) -> HistoryNames | None:
        """The newest names of a model; None if there are none."""
        ...

    def newest(self, model: str, width_s: int) -> int | None:
        """The start of its newest bin of this width; None if there is none."""
        ...


class _NothingPublished:
    """See `PublishedHistory`."""

    def bin(self, key: BinKey) -> None:
        return None

    def names(self, model: str) -> None:
        return None

    def newest(self, model: str, width_s: int) -> None:
        return None


NOTHING_PUBLISHED: Final[PublishedHistory] = _NothingPublished()


class Recorder:
    """The history of one model since its newest snapshot, and the bins that updates may still fall into."""

    def __init__(self, contract: Contract, model: str, published: PublishedHistory) -> None:
        self._origin = (contract.federation, contract.digest, model)
        self._model = model
        self._published = published
        self._bins: OrderedDict[tuple[int, int], OpenBin] = OrderedDict()
        """(width, start) -> bin, the one counted into last at the end"""
        self._newest: dict[int, int] = {}
        """width -> start of the newest bin"""
        self._clients: dict[str, int] = {}
        """name -> number; they count from 0, in the order of the mapping"""
        self._clusters: dict[int, tuple[str, str]] = {}
        """identity -> name and label"""
        self._names_changed = False
        self._begun = False
        """whether what had been published before has been looked at"""
        self.begins_again = False
        """whether nothing that was published before belongs to it any more"""

    def count(self, found: Attribution) -> None:
        """Count the readings of updates.

        An update that a published bin holds already is not counted again: so a model that is rebuilt from the log gets
        the bins that were published. One that is older than all bins kept is not counted at all.
        """
        self._begin()
        clients = np.array([self._number_of(client) for client in found.clients], dtype=np.int64)
        summed: dict[bytes, Summed] = {}
        for width, number in BINS_KEPT.items():
            starts = (found.at // width).astype(np.int64) * width
            newest = np.maximum.accumulate(np.maximum(starts, self._newest.get(width, starts[0])))
            self._newest[width] = int(newest[-1])
            kept = starts > newest - number * width
            for start in np.unique(starts[kept]).tolist():
                one = self._open(width, start)
                here = kept & (starts == start) & (found.numbers > one.updates)
                if not here.any():
                    continue
                # Mostly the same ones fall into a bin of either width.
                if (key := here.tobytes()) not in summed:
                    summed[key] = Summed.of(clients[here], found.identities, found.readings[here])
                one.add(summed[key], with_cells=width == FINE_S)

    @property
    def open_bins(self) -> int:
        """Bins in memory."""
        return len(self._bins)

    def begin_again(self) -> None:
        """Forget everything: a client is unlearned, and bins do not show which of their readings were its own."""
        self._bins.clear()
        self._newest.clear()
        self._clients.clear()
        self.begins_again = self._names_changed = True

    def name(self, identity: int, name: str, label: str) -> None:
        """Keep the name of a cluster and what sets it apart. An empty label leaves the one before."""
        self._begin()
        former = self._clusters.pop(identity, ("", ""))
        self._clusters[identity] = (name, label or former[1])
        self._names_changed |= self._clusters[identity] != former
        while len(self._clusters) > CLUSTERS_MAX:
            self._clusters.pop(min(self._clusters))

    def take_changed(self, updates: int) -> list[HistoryBin | HistoryNames]:
        """The bins and names that have changed since the last call; the model has absorbed `updates`."""
        changed: list[HistoryBin | HistoryNames] = []
        for width, start in [key for key in self._bins if self._is_too_old(*key)]:
            del self._bins[width, start]
        for (width, start), one in sorted(self._bins.items()):
            if one.changed:
                changed.append(HistoryBin(*self._origin, width, start, updates, *one.take(updates)))
        self.begins_again = False
        while len(self._bins) > OPEN_MAX:
            self._bins.popitem(last=False)
        if self._names_changed:
            self._names_changed = False
            clusters: list[list[int | str]] = [[identity, *texts] for identity, texts in sorted(self._clusters.items())]
            changed.append(HistoryNames(*self._origin, list(self._clients), clusters))
        return changed

    def state(self) -> dict[str, Any]:
        """Plain values and arrays for `restore`. Bins as they were published are read again where they were."""
        return {
            "bins": [[*key, *one.state()] for key, one in self._bins.items() if one.changed],
            "newest": [list(pair) for pair in self._newest.items()],
            "clients": list(self._clients),
            "clusters": [[identity, *texts] for identity, texts in self._clusters.items()],
            "names_changed": self._names_changed,
            "begins_again": self.begins_again,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the saved one. Raises `InvalidState`."""
        try:
            self._bins = OrderedDict(
                ((width, start), OpenBin.restored(saved)) for width, start, *saved in state["bins"]
            )
            self._newest = dict(state["newest"])
            self._clients = _numbered(state["clients"])
            self._clusters = {identity: (name, label) for identity, name, label in state["clusters"]}
            self._names_changed, self.begins_again = bool(state["names_changed"]), bool(state["begins_again"])
        except (AttributeError, KeyError, TypeError, ValueError) as broken:
            raise InvalidState(f"the history of {self._model} is damaged: {broken}") from None
        self._begun = False

    def _begin(self) -> None:
        """Go on from what was published, should it be ahead: the checkpoint may be lost, or an older one restored."""
        if self._begun or self.begins_again:
            return
        self._begun = True
        names = self._published.names(self._model)
        if names is not None:
            if len(names.clients) > len(self._clients):
                self._clients = _numbered(names.clients)
            known = {int(identity): (str(name), str(label)) for identity, name, label in names.clusters}
            self._clusters = {**known, **self._clusters}
        for width in BINS_KEPT:
            newest = self._published.newest(self._model, width)
            if newest is not None:
                self._newest[width] = max(self._newest.get(width, newest), newest)

    def _number_of(self, client: str) -> int:
        if (number := self._clients.get(client)) is not None:
            return number
        if len(self._clients) >= CLIENTS_MAX:
            return OTHER_CLIENTS
        self._clients[client] = len(self._clients)
        self._names_changed = True
        return self._clients[client]

    def _is_too_old(self, width: int, start: int) -> bool:
        return start <= self._newest[width] - BINS_KEPT[width] * width

    def _open(self, width: int, start: int) -> OpenBin:
        one = self._bins.get((width, start))
        if one is None:
            key = BinKey(self._model, width, start)
            published = None if self.begins_again else self._published.bin(key)
            one = OpenBin() if published is None else OpenBin.of(published)
            self._bins[width, start] = one
        self._bins.move_to_end((width, start))
        return one


def _numbered(clients: Iterable[str]) -> dict[str, int]:
    return {client: number for number, client in enumerate(clients)}
