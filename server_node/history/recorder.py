"""Counts the readings of one model into bins of time, by cluster and client; gives out the bins
that have changed."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, Final

import numpy as np

from shoal.config.contract import Contract
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.constants import COUNT_MAX
from shoal.protocol.history import (
    BINS_KEPT,
    CLIENTS_MAX,
    CLUSTERS_MAX,
    COARSE_S,
    DAY_S,
    OTHER_CLIENTS,
    PLACES_FEATURES_MAX,
    PLACES_S,
    WITH_PLACES,
    BinKey,
    HistoryMessage,
    HistoryNames,
)
from shoal.saved_state import IntArray, Number, SavedState, Whole, require, state_type
from shoal.server_node.history.attribution import Attribution, AttributionState, Placed
from shoal.server_node.history.bins import Bin, PackedTables, Places, Summed
from shoal.server_node.history.shares import client_name
from shoal.server_node.history.sources import PublishedHistory

FLEET_MIN: Final = 3
"""clients with readings at the time from which on one is named as that which feeds a cluster"""
NEARLY_ALL: Final = 0.9
"""share of a cluster's readings"""
SHOWN_PART: Final = 0.5
"""part of a cluster's recent readings that the newest bins must have to show from which client they
come"""
SPANS_KEPT: Final = 0.95
"""factor by which the time that earlier updates span counts less with each one"""
OPEN_MAX: Final = 16
"""bins of a model that stay in memory after they were published, those that updates fell into last
"""


@state_type
class OpenBinState(SavedState):
    """A bin with readings that are not published.

    Each checkpoint has those of all models, and mostly only places wait, until the bin is over:
    counts that are published are not saved a second time.
    """

    width_s: int
    start: Annotated[int, Whole(least=-COUNT_MAX)]
    unplaced: bool
    """whether places in it are not published"""
    bin: Bin | None
    """None where all counts in it are published: it is read again where they were"""
    places: Places | None
    """the places that join it then; None where the bin is saved, or has no places"""
    placed_updates: int
    """see `Bin`"""

    def check(self) -> None:
        require(self.bin is not None or self.places is not None, "an open bin without readings")


@state_type
class NewestState(SavedState):
    """The newest bin of a width."""

    width_s: int
    start: Annotated[int, Whole(least=-COUNT_MAX)]


@state_type
class RecorderState(SavedState):
    """What a recorder goes on from. Bins as they were published are read again where they were."""

    bins: list[OpenBinState]
    newest: list[NewestState]
    clients: list[str]
    clusters: list[int]
    names: list[str]
    """name of each cluster"""
    labels: list[str]
    """what sets each cluster apart"""
    apart_since: Annotated[Ints, IntArray("a", 2, least=-COUNT_MAX)]
    """see `HistoryNames`"""
    spanned: Annotated[float, Number(least=0.0)]
    """sum of the seconds that updates span, times their readings; older updates count less"""
    spanning: Annotated[float, Number(least=0.0)]
    """sum of these readings"""
    names_changed: bool
    begins_again: bool
    held: list[AttributionState]

    def check(self) -> None:
        widths = {newest.width_s for newest in self.newest}
        require(widths <= BINS_KEPT.keys(), "newest bins of widths that no bin has")
        require({saved.width_s for saved in self.bins} <= widths, "bins without a newest one")
        lengths = {len(self.clusters), len(self.names), len(self.labels)}
        require(len(lengths) == 1, "clusters, names and labels differ in number")
        identities = self.apart_since[:, 0].tolist()
        require(len(set(identities)) == len(identities), "a cluster is told apart twice")
        require(set(identities) <= set(self.clusters), "a cluster without a name is told apart")


class Recorder:
    """The history of one model since its newest snapshot, and the bins that updates may still fall
    into."""

    def __init__(self, contract: Contract, model: str, published: PublishedHistory) -> None:
        self._origin = (contract.federation, contract.digest, model)
        self._model = model
        self._features = min(len(contract.features), PLACES_FEATURES_MAX)
        circular = contract.bounds.circular
        self._circular = [feature for feature in circular if feature < self._features]
        self._published = published
        self._bins: OrderedDict[tuple[int, int], Bin] = OrderedDict()
        """(width, start) -> bin, the one counted into last at the end"""
        self._changed: set[tuple[int, int]] = set()
        """those with counts that are not published"""
        self._unplaced: set[tuple[int, int]] = set()
        """those whose places are not published"""
        self._saved_places: dict[tuple[int, int], tuple[Places, int]] = {}
        """places, and the updates up to which they were published, of bins that were not read again
        since a restart"""
        self._newest: dict[int, int] = {}
        """width -> start of the newest bin"""
        self._clients: dict[str, int] = {}
        """name -> number; they count from 0, in the order of the mapping"""
        self._clusters: dict[int, tuple[str, str]] = {}
        """identity -> name and label"""
        self._apart_since: dict[int, int] = {}
        """identity -> seconds since 1970 from which on its readings are told apart from those of
        others; none of a cluster of which they always were"""
        self._spanned = 0.0
        """sum of the seconds that updates span, times their readings; older updates count less"""
        self._spanning = 0.0
        """sum of these readings"""
        self._names_changed = False
        self._begun = False
        """whether what had been published before has been looked at"""
        self.begins_again = False
        """whether nothing that was published before belongs to it any more"""
        self._held: list[Attribution] = []
        """what came while the history is read from the log: the bins that it belongs to may not
        have been read yet"""

    @property
    def held(self) -> int:
        """The numbers of what waits until the history is whole."""
        return sum(readings.size for readings in self._held)

    def count(self, readings: Attribution) -> None:
        """Count the readings of updates.

        An update that a published bin holds already is not counted again: so a model that is
        rebuilt from the log gets the bins that were published. One that is older than all bins kept
        is not counted at all. All wait while what was published is not whole: a bin that is not
        read yet would begin with them alone.
        """
        self._held.append(readings)
        self._count_held()

    def _count_held(self) -> None:
        if not self._published.whole:
            return
        held = self._held
        self._held = []
        for readings in held:
            self._count(readings)

    def _count(self, readings: Attribution) -> None:
        self._begin()
        clients = self._client_numbers(readings.clients)
        summed: dict[bytes, Summed] = {}
        for width in BINS_KEPT:
            newest_before = self._newest.get(width)
            for start, parts in self._bins_of(readings.at, width, newest_before):
                before = self._opened(width, start)
                # Updates have ascending numbers, so one comparison shows which of them a bin that
                # was published has already.
                new = parts[readings.numbers[parts] > before.updates]
                if not len(new):
                    continue
                # Mostly the same ones fall into a bin of each width.
                key = new.tobytes()
                if key not in summed:
                    summed[key] = Summed.of(
                        clients[new], readings.identities, readings.readings[new]
                    )
                self._put(width, start, before.plus(summed[key]))
            if readings.placed is not None and width in WITH_PLACES:
                self._count_places(readings.placed, width, newest_before)

    def _count_places(self, placed: Placed, width: int, newest_before: int | None) -> None:
        """Count where the readings of updates lay, of which each is whole in one bin."""
        for start, updates in self._bins_of(placed.at, width, newest_before):
            before = self._opened(width, start)
            is_new = np.zeros(len(placed.at), dtype=bool)
            is_new[updates] = placed.numbers[updates] > before.placed_updates
            if is_new.any():
                rows = is_new[placed.update]
                after = before.plus_places(placed.cluster[rows], placed.sums[rows])
                self._bins[width, start] = after
                self._unplaced.add((width, start))

    def _bins_of(
        self, at: Floats, width: int, newest_before: int | None
    ) -> Iterator[tuple[int, Ints]]:
        """The start of each bin of this width into which times (u,) fall, and which times do."""
        starts = (at // width).astype(np.int64) * width
        earliest = starts[0] if newest_before is None else newest_before
        # A reading counts by what was newest before it: one that is late must not remove bins that
        # came after.
        newest = np.maximum.accumulate(np.maximum(starts, earliest))
        self._newest[width] = int(newest[-1])
        # Of a single time nothing is sorted, as mostly one update has come.
        if len(starts) == 1:
            if starts[0] > newest[0] - BINS_KEPT[width] * width:
                yield int(starts[0]), np.zeros(1, dtype=np.int64)
            return
        kept = np.flatnonzero(starts > newest - BINS_KEPT[width] * width)
        # The parts of a bin one after the other, in the order in which they came.
        kept = kept[np.argsort(starts[kept], kind="stable")]
        if not len(kept):
            return
        ordered = starts[kept]
        begins = (ordered[1:] != ordered[:-1]).nonzero()[0] + 1
        for first, end in pairwise([0, *begins.tolist(), len(kept)]):
            yield int(ordered[first]), kept[first:end]

    @property
    def open_bins(self) -> int:
        """Bins in memory."""
        return len(self._bins)

    def newest(self, width_s: int) -> int | None:
        """The start of the newest bin of this width; None if there is none."""
        return self._newest.get(width_s)

    def client(self, number: int) -> str:
        """The name of a client by its number."""
        return client_name(number, list(self._clients))

    def feeding_client(
        self, identity: int, share: float = 0.0, of_readings: float = math.inf
    ) -> str:
        """The client of several from which nearly all readings of a cluster came in the newest bin
        of six hours and the one before; empty where there is none, or they are not read yet.

        `share`: that of the cluster in the newest `of_readings` readings, for which the client is
        named.
        """
        if not self._published.whole:
            return ""
        newest = self._newest.get(PLACES_S)
        if newest is None:
            return ""
        of_cluster: Counter[int] = Counter()
        clients: set[int] = set()
        of_all = 0
        for start in (newest - PLACES_S, newest):
            cells = self._opened(PLACES_S, start).cells
            if cells is None:
                # There were too many pairs to keep them.
                return ""
            clients.update(cells.clients.tolist())
            of_all += int(cells.counts.sum())
            own = cells.counts[:, cells.identities == identity].sum(axis=1)
            for client, readings in zip(cells.clients.tolist(), own.tolist(), strict=True):
                of_cluster[client] += readings
        # A cluster that is found on a Sunday may have its readings by day from Monday to Friday:
        # the few that fall to it here, as by the noise of private counts, do not show whose it is.
        expected = share * min(of_all, of_readings)
        if len(clients) < FLEET_MIN or of_cluster.total() <= SHOWN_PART * expected:
            return ""
        [(client, readings)] = of_cluster.most_common(1)
        if client == OTHER_CLIENTS or readings < NEARLY_ALL * of_cluster.total():
            return ""
        return self.client(client)

    def begin_again(self) -> None:
        """Forget everything: a client is unlearned, and bins do not show which of their readings
        were its own."""
        self._bins.clear()
        self._changed.clear()
        self._unplaced.clear()
        self._saved_places.clear()
        self._newest.clear()
        self._clients.clear()
        self._held.clear()
        self.begins_again = True
        self._names_changed = True

    def go_on_from(self, earlier: Recorder) -> None:
        """Take over the counts of the same model under an earlier contract, without the places of
        readings: its features were others.

        What was published before must be whole.
        """
        earlier._count_held()
        state = earlier._state()
        bins = []
        for saved in state.bins:
            # Of those that are published nothing but places would be taken over.
            if saved.bin is None:
                continue
            if saved.bin.places is None:
                bins.append(saved)
            else:
                places = Places.empty(self._features, self._circular)
                bins.append(replace(saved, bin=replace(saved.bin, places=places)))
        self._become(replace(state, bins=bins))

    def name(self, identity: int, name: str, label: str) -> None:
        """Keep the name of a cluster and what sets it apart; an empty label leaves the former."""
        self._begin()
        former = self._clusters.pop(identity, ("", ""))
        self._clusters[identity] = (name, label or former[1])
        self._names_changed |= self._clusters[identity] != former
        while len(self._clusters) > CLUSTERS_MAX:
            # Identities ascend, so the smallest is the oldest.
            oldest = min(self._clusters)
            self._clusters.pop(oldest)
            self._apart_since.pop(oldest, None)

    def tell_apart(self, identity: int, since: float) -> None:
        """Note that the readings of a named cluster are told apart from those of others since then
        alone."""
        self._begin()
        # Ceiled: a whole second that begins before would have readings that are not told apart.
        moment = math.ceil(since)
        if moment > self._apart_since.get(identity, -COUNT_MAX):
            self._apart_since[identity] = moment
            self._names_changed = True

    def follow_span(self, seconds: float, readings: int) -> None:
        """Follow the seconds that an update spans, as a rule, by one that has so many readings."""
        before = self._shown_span()
        # By readings: the last window of a client may be a short one.
        self._spanned = SPANS_KEPT * self._spanned + seconds * readings
        self._spanning = SPANS_KEPT * self._spanning + readings
        self._names_changed |= self._shown_span() != before

    def _shown_span(self) -> int:
        """The seconds that updates span, to half an hour: so the names change seldom."""
        if not self._spanning:
            return 0
        return round(self._spanned / self._spanning / COARSE_S) * COARSE_S

    def still_mixed(self, first: float, last: float) -> None:
        """Note that readings of the time from `first` to `last` were counted under an earlier plan:
        what was found to be apart up to a day before is so since `last` alone."""
        for identity, since in list(self._apart_since.items()):
            if first - DAY_S <= since < last:
                self.tell_apart(identity, last)

    def take_changed(self, updates: int) -> list[HistoryMessage]:
        """The bins and names that have changed since the last call; the model has absorbed
        `updates`.

        None while what was published is not whole: they come with the first call after that.
        """
        if not self._published.whole:
            return []
        self._count_held()
        changed: list[HistoryMessage] = []
        packed: PackedTables = {}
        # A list, as bins are removed on the way. Before anything is published: a bin that is too
        # old would be written and removed again by the same snapshot.
        for key in [*self._bins, *self._saved_places]:
            if self._is_too_old(*key):
                self._drop(key)
        # Sorted: a set has no order, and the records of a snapshot must be the same ones after a
        # restart.
        for key in sorted(self._changed | self._unplaced):
            width, start = key
            # Places are published once a newer bin has begun.
            is_over = start < self._newest[width]
            if key in self._changed or is_over:
                published = self._opened(*key).carried(width, updates, is_over)
                changed.append(published.message(self._origin, width, start, is_over, packed))
                self._bins[key] = published
                self._changed.discard(key)
            if is_over:
                self._unplaced.discard(key)
        self.begins_again = False
        self._forget_published()
        if self._names_changed:
            self._names_changed = False
            clusters: list[list[int | str]] = [
                [identity, *texts] for identity, texts in sorted(self._clusters.items())
            ]
            apart = [list(pair) for pair in sorted(self._apart_since.items())]
            clients = list(self._clients)
            span = self._shown_span()
            changed.append(HistoryNames(*self._origin, clients, clusters, apart, span))
        return changed

    def state(self) -> dict[str, Any]:
        """The saved state for `restore`."""
        return self._state().saved()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the saved one. Raises `InvalidState`."""
        placed = 1 + self._features + len(self._circular)
        self._become(RecorderState.read(state, {"placed": placed}))

    def _state(self) -> RecorderState:
        bins = []
        for (width, start), (places, placed_updates) in self._saved_places.items():
            bins.append(_published_bin(width, start, places, placed_updates))
        for key, counted in self._bins.items():
            width, start = key
            if key in self._changed:
                bins.append(
                    OpenBinState(
                        width_s=width,
                        start=start,
                        unplaced=key in self._unplaced,
                        bin=counted,
                        places=None,
                        placed_updates=counted.placed_updates,
                    )
                )
            elif key in self._unplaced and counted.places is not None:
                bins.append(_published_bin(width, start, counted.places, counted.placed_updates))
        # The order in which bins were used last is another one after a restart.
        bins.sort(key=lambda saved: (saved.width_s, saved.start))
        newest = [NewestState(width_s=width, start=start) for width, start in self._newest.items()]
        return RecorderState(
            bins=bins,
            newest=newest,
            clients=list(self._clients),
            clusters=list(self._clusters),
            names=[name for name, _ in self._clusters.values()],
            labels=[label for _, label in self._clusters.values()],
            apart_since=_table(self._apart_since),
            spanned=self._spanned,
            spanning=self._spanning,
            names_changed=self._names_changed,
            begins_again=self.begins_again,
            held=[AttributionState.of(readings) for readings in self._held],
        )

    def _become(self, state: RecorderState) -> None:
        self._bins = OrderedDict()
        self._saved_places = {}
        for saved in state.bins:
            key = (saved.width_s, saved.start)
            if saved.bin is not None:
                self._bins[key] = saved.bin
            elif saved.places is not None:
                self._saved_places[key] = (saved.places, saved.placed_updates)
        self._changed = set(self._bins)
        self._unplaced = {(saved.width_s, saved.start) for saved in state.bins if saved.unplaced}
        self._newest = {newest.width_s: newest.start for newest in state.newest}
        self._clients = _numbered(state.clients)
        texts = zip(state.names, state.labels, strict=True)
        self._clusters = dict(zip(state.clusters, texts, strict=True))
        self._apart_since = dict(state.apart_since.tolist())
        self._spanned = state.spanned
        self._spanning = state.spanning
        self._names_changed = state.names_changed
        self.begins_again = state.begins_again
        self._held = [saved.restored() for saved in state.held]
        self._begun = False

    def _begin(self) -> None:
        """Go on from what was published, should it be ahead: the checkpoint may be lost, or an
        older one restored."""
        # Not while it begins again: what was published counts a client that is unlearned.
        if self._begun or self.begins_again or not self._published.whole:
            return
        self._begun = True
        names = self._published.names(self._model)
        if names is not None:
            # The longer list has the numbers of the other one, as numbers are only ever added.
            if len(names.clients) > len(self._clients):
                self._clients = _numbered(names.clients)
            known = {
                int(identity): (str(name), str(label)) for identity, name, label in names.clusters
            }
            for identity, (name, label) in self._clusters.items():
                # A label stays where none was found since: see `name`.
                known[identity] = (name, label or known.get(identity, ("", ""))[1])
            self._clusters = known
            for identity, since in names.apart_since:
                known_since = self._apart_since.get(identity, since)
                self._apart_since[identity] = max(since, known_since)
        for width in BINS_KEPT:
            newest = self._published.newest(self._model, width)
            if newest is not None:
                self._newest[width] = max(self._newest.get(width, newest), newest)

    def _client_numbers(self, clients: Iterable[str]) -> Ints:
        """The numbers of clients, which those that have none get."""
        return np.array([self._number_of(client) for client in clients], dtype=np.int64)

    def _number_of(self, client: str) -> int:
        number = self._clients.get(client)
        if number is not None:
            return number
        if len(self._clients) >= CLIENTS_MAX:
            return OTHER_CLIENTS
        self._clients[client] = len(self._clients)
        self._names_changed = True
        return self._clients[client]

    def _opened(self, width: int, start: int) -> Bin:
        """The bin as it was counted so far, from memory or from what was published."""
        key = (width, start)
        opened = self._bins.get(key)
        if opened is None:
            published = None
            if not self.begins_again:
                published = self._published.bin(BinKey(self._model, width, start))
            if published is None:
                opened = Bin.empty(width, self._features, self._circular)
            else:
                opened = Bin.of(published, self._features, self._circular)
            if key in self._saved_places:
                places, placed_updates = self._saved_places.pop(key)
                opened = replace(opened, places=places, placed_updates=placed_updates)
            self._bins[key] = opened
        self._bins.move_to_end(key)
        return opened

    def _put(self, width: int, start: int, counted: Bin) -> None:
        """Keep a bin with more readings than before."""
        self._bins[width, start] = counted
        self._changed.add((width, start))
        if width in WITH_PLACES:
            self._unplaced.add((width, start))

    def _is_too_old(self, width: int, start: int) -> bool:
        return start <= self._newest[width] - BINS_KEPT[width] * width

    def _drop(self, key: tuple[int, int]) -> None:
        self._bins.pop(key, None)
        self._saved_places.pop(key, None)
        self._changed.discard(key)
        self._unplaced.discard(key)

    def _forget_published(self) -> None:
        """Leave `OPEN_MAX` of the bins that can be read again where they were published."""
        # Places are published only when their bin is over: until then the bin in memory is all that
        # has them.
        published = [key for key in self._bins if key not in self._unplaced]
        for key in published[: max(0, len(published) - OPEN_MAX)]:
            del self._bins[key]


def _published_bin(width: int, start: int, places: Places, placed_updates: int) -> OpenBinState:
    """The saved state of a bin whose counts are published, and its places are not."""
    return OpenBinState(
        width_s=width,
        start=start,
        unplaced=True,
        bin=None,
        places=places,
        placed_updates=placed_updates,
    )


def _table(pairs: Mapping[int, int]) -> Ints:
    return np.array(sorted(pairs.items()), dtype=np.int64).reshape(-1, 2)


def _numbered(clients: Iterable[str]) -> dict[str, int]:
    return {client: number for number, client in enumerate(clients)}
