"""Builds the report from the newest status of the server: everything that people and programs see.

What is of one snapshot is built once, when somebody first looks, and is the same for all who look:
a server whose page nobody has open spends nothing on it. Building takes the status, which is
immutable, and the file of the history, which may be read by any thread.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal import __version__
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.errors import LogUnavailable
from shoal.protocol.history import COARSE_S, PLACES_S
from shoal.protocol.messages import Snapshot
from shoal.protocol.model_state import model_state
from shoal.server_node.history.counted import counted_readings
from shoal.server_node.history.cycles import CHANCE, Cycle, find_cycles
from shoal.server_node.history.day_times import DayTimes, day_times
from shoal.server_node.history.recent import RecentHistory, recent_history
from shoal.server_node.history.store import HistoryReader
from shoal.server_node.history.usual import usual
from shoal.server_node.report.beside import beside_of, states_of
from shoal.server_node.report.clusters import NO_PAST, Past, clustering_of
from shoal.server_node.report.lineage.clusters import Lineage
from shoal.server_node.report.privacy import clients_note, privacy_text, spent_by_one
from shoal.server_node.report.status import (
    ClientStatus,
    HistoryPoint,
    ModelStatus,
    RoundStatus,
    ServerStatus,
    newest_clients,
)
from shoal.server_node.report.types import (
    Beside,
    Client,
    Clustering,
    Federation,
    Model,
    RegionView,
    RoundsView,
)

NO_SNAPSHOT = "No snapshot has been published yet."
BEGINS_ANEW = (
    "The model learns again from the beginning; clusters keep their numbers and names, and are "
    "found again by where they lie."
)
INACTIVE_INTERVALS = 3
INACTIVE_AFTER_S_MIN = 30
"""a client is inactive that has sent nothing for this many of its usual intervals, and for this
many seconds"""
# The page is sent whole at each change; those that sent last are what a person looks for.
CLIENTS_MAX = 1000
REGIONS_MAX = 200
COUNTS_MAX = 240
"""points of the number of clusters over time"""
CYCLES_MAX = 12


class Reports:
    """Builds reports, one after the other. `history` None: none is kept."""

    def __init__(self, history: HistoryReader | None = None) -> None:
        self.history = history
        self._models: dict[str, _ModelReport] = {}

    def federation(self, status: ServerStatus, shown: Collection[str] | None = None) -> Federation:
        """The report of a status, with the clusterings of the models `shown`; None: of all."""
        contract = status.contract
        models = []
        for name, configured in contract.models.items():
            model = model_status(status, name)
            clustering = None
            if model.snapshot is not None and (shown is None or name in shown):
                clustering = self.clustering(status, name)
            state = self._report_of(name).state(configured, model.snapshot)
            models.append(_model(model, configured, state, clustering))
        # Chosen by time, listed by name: a row that jumped with each update could not be read.
        listed = newest_clients(status.clients, CLIENTS_MAX)
        regions = {region.path for region in status.regions}
        devices = [client for client in listed if client.client not in regions]
        counts = [model.snapshot.clients for model in status.models.values() if model.snapshot]
        day = spent_by_one(contract, devices, status.client_names)
        privacy = privacy_text(contract, day)
        return Federation(
            federation=contract.federation,
            contract=contract.digest,
            clients_note=f"{clients_note(contract)} {status.clients_note}".strip(),
            shoal=__version__,
            started_at=status.started_at,
            ready=status.ready,
            ended=status.ended,
            lag_records=status.lag_records,
            # Three digits: the page is sent what has changed.
            history_read=math.floor(1000 * status.history_read) / 1000,
            models=models,
            clients=clients_of(status, listed),
            clients_total=max(len(status.clients), *counts, 0),
            regions=[RegionView(**region._asdict()) for region in status.regions[:REGIONS_MAX]],
            quarantined=sorted({entry.client for entry in status.quarantined}),
            rejected=dict(sorted(status.rejected.items())),
            privacy={**privacy, "remark": status.remark},
        )

    def clustering(self, status: ServerStatus, name: str) -> Clustering:
        """The clustering of a model by its newest snapshot; without clusters before the first."""
        model = model_status(status, name)
        report = self._report_of(name)
        built = report.clustering(model, status)
        beside = self._beside(status, model, report)
        return built if beside is None else replace(built, beside=beside)

    def _report_of(self, name: str) -> _ModelReport:
        return self._models.setdefault(name, _ModelReport(name, self.history))

    def _beside(
        self, status: ServerStatus, model: ModelStatus, report: _ModelReport
    ) -> Beside | None:
        """The states that another model has found in the same readings."""
        contract = status.contract
        if model.snapshot is None or self.history is None or status.history_read < 1.0:
            return None
        if states_of(model, contract) is not None:
            return None
        for name, other in status.models.items():
            if other.snapshot is not None and states_of(other, contract) is not None:
                recent = self._report_of(name).recent(other)
                return report.beside(model, other, contract, recent)
        return None


@dataclass
class _Built:
    """What was built of one snapshot, and what it was built from."""

    snapshot: Snapshot | None
    lineage: Lineage
    unusual: bool
    unlike: Sequence[tuple[str, float]]
    has_past: bool
    """whether the history was whole"""
    clustering: Clustering


class _ModelReport:
    """The reports of one model: keeps the newest of each part, with what it was made from.

    A cluster can get its name between two snapshots, and with it the model another lineage.
    """

    def __init__(self, name: str, history: HistoryReader | None) -> None:
        self._name = name
        self._history = history
        self._built: _Built | None = None
        self._recent: tuple[Snapshot | None, RecentHistory | None] | None = None
        self._cycles: tuple[int | None, Sequence[Cycle]] | None = None
        self._day_times: tuple[tuple[int, int] | None, DayTimes | None] | None = None
        self._state: tuple[Snapshot, str] | None = None
        self._beside: tuple[Snapshot, Snapshot, Beside | None] | None = None

    def clustering(self, model: ModelStatus, status: ServerStatus) -> Clustering:
        """The clustering of the newest snapshot."""
        built = self._built
        # The status of a server that has just started may be older than the file.
        has_past = status.history_read == 1.0 and self._is_whole()
        is_new = (
            built is None
            or built.snapshot is not model.snapshot
            or built.lineage is not model.lineage
            or built.unusual != model.unusual
            or built.unlike != model.unlike
            or built.has_past != has_past
        )
        if built is None or is_new:
            past = NO_PAST
            if has_past:
                # A file that cannot be read costs what is of the history, and no cluster.
                try:
                    past = self._past(model, status.contract)
                except LogUnavailable:
                    has_past = False
            clustering = clustering_of(model, status.contract, past, status.client_names)
            built = _Built(
                model.snapshot, model.lineage, model.unusual, model.unlike, has_past, clustering
            )
            self._built = built
        return built.clustering

    def _is_whole(self) -> bool:
        try:
            return self._history is None or self._history.share_read() == 1.0
        except LogUnavailable:
            return False

    def _past(self, model: ModelStatus, contract: ResolvedContract) -> Past:
        if self._history is None:
            return NO_PAST
        return Past(
            counted=counted_readings(self._history, self._name),
            recent=self.recent(model),
            usual=usual(self._history, self._name),
            cycles=self._certain_cycles(self._history, contract),
            day_times=self._shares_by_time(self._history),
        )

    def recent(self, model: ModelStatus) -> RecentHistory | None:
        """The recent history of the model, read once for each snapshot."""
        if self._history is None:
            return None
        # By identity of the object: a server that has begun anew publishes version 1 again.
        if self._recent is None or self._recent[0] is not model.snapshot:
            self._recent = model.snapshot, recent_history(self._history, self._name)
        return self._recent[1]

    def _certain_cycles(
        self, history: HistoryReader, contract: ResolvedContract
    ) -> Sequence[Cycle]:
        """The largest cycles that are hardly chance, looked for once in each of the history's
        longest bins."""
        extent = history.extent(self._name, COARSE_S)
        newest = None if extent is None else extent[1] // PLACES_S
        # It reads all bins of six hours, of a year at most: too much for each snapshot, and nothing
        # before the next of these bins could change the result.
        if self._cycles is None or self._cycles[0] != newest:
            cycles = find_cycles(history, contract.contract, self._name)
            certain = [cycle for cycle in cycles if cycle.chance < CHANCE]
            self._cycles = newest, certain[:CYCLES_MAX]
        return self._cycles[1]

    def _shares_by_time(self, history: HistoryReader) -> DayTimes | None:
        """Shares by day, at night and at weekends, counted once in each half hour of the history:
        four weeks of these are too much for each snapshot."""
        extent = history.extent(self._name, COARSE_S)
        if self._day_times is None or self._day_times[0] != extent:
            self._day_times = extent, day_times(history, self._name)
        return self._day_times[1]

    def beside(
        self,
        model: ModelStatus,
        other: ModelStatus,
        contract: ResolvedContract,
        recent_other: RecentHistory | None,
    ) -> Beside | None:
        """The states of `other` beside this model, once for each pair of snapshots."""
        assert model.snapshot is not None
        assert other.snapshot is not None
        kept = self._beside
        if kept is None or kept[0] is not model.snapshot or kept[1] is not other.snapshot:
            beside = beside_of(other, contract, self.recent(model), recent_other)
            kept = model.snapshot, other.snapshot, beside
            self._beside = kept
        return kept[2]

    def state(self, configured: ResolvedModel, snapshot: Snapshot | None) -> str:
        """The state of the model in words, worked out once for each snapshot."""
        if snapshot is None:
            return ""
        if self._state is None or self._state[0] is not snapshot:
            self._state = snapshot, model_state(configured, snapshot)
        return self._state[1]


def model_status(status: ServerStatus, name: str) -> ModelStatus:
    """The status of a model of the contract; an empty one before the server has opened it."""
    known = status.models.get(name)
    if known is not None:
        return known
    return ModelStatus(name, status.contract.models[name].declared.algorithm)


def _model(
    model: ModelStatus, configured: ResolvedModel, state: str, clustering: Clustering | None
) -> Model:
    snapshot = model.snapshot
    waiting_for = model.waiting_for
    if snapshot is None and not waiting_for:
        waiting_for = NO_SNAPSHOT
    if snapshot is not None and not snapshot.nodes and model.lineage.known:
        state = BEGINS_ANEW
    state = f"{state} {model.note}".strip()
    return Model(
        name=model.name,
        algorithm=model.algorithm,
        waiting_for=waiting_for,
        state=state,
        version=snapshot.version if snapshot else 0,
        made_at=snapshot.made_at if snapshot else None,
        newest_reading_at=snapshot.reading_time if snapshot else None,
        readings=snapshot.readings if snapshot else 0,
        counts_places=configured.counts_places,
        updates=snapshot.updates if snapshot else 0,
        nodes_total=snapshot.nodes if snapshot else 0,
        clusters_total=snapshot.known if snapshot else 0,
        clusters_active=snapshot.active if snapshot else 0,
        clusters_published=snapshot.clusters if snapshot else 0,
        history=cluster_counts(_clustered(model)),
        rounds=None if model.rounds is None else _rounds(model.rounds),
        clustering=clustering,
    )


def _clustered(model: ModelStatus) -> Sequence[HistoryPoint]:
    """The sizes to show: a model in rounds has no clusters before its first round, so those points
    are left out."""
    if model.rounds is None:
        return model.history
    return [point for point in model.history if point.clusters]


def cluster_counts(history: Sequence[HistoryPoint]) -> list[tuple[float, int]]:
    """[time, clusters] of the first point and of each where the number changed, at most
    `COUNTS_MAX` of them."""
    changed: list[tuple[float, int]] = []
    for point in history:
        if not changed or changed[-1][1] != point.clusters:
            changed.append((point.time, point.clusters))
    if len(changed) <= COUNTS_MAX:
        return changed
    places = np.linspace(0, len(changed) - 1, COUNTS_MAX).astype(int).tolist()
    return [changed[place] for place in places]


def _rounds(rounds: RoundStatus) -> RoundsView:
    # Three digits: the page shows no more, and is sent what has changed.
    shift = None
    if math.isfinite(rounds.shift):
        shift = float(f"{rounds.shift:.3g}")
    return RoundsView(
        round=rounds.round,
        phase=rounds.phase,
        counted=rounds.counted,
        received=rounds.received,
        shift=shift,
        expected=rounds.expected,
    )


def clients_of(status: ServerStatus, listed: Iterable[ClientStatus]) -> list[Client]:
    """These clients of a status as people see them."""
    quarantined: dict[str, list[str]] = {}
    for entry in status.quarantined:
        quarantined.setdefault(entry.client, []).append(entry.model)
    names = status.client_names
    return [_client(client, names, sorted(quarantined.get(client.client, ()))) for client in listed]


def _client(client: ClientStatus, names: Mapping[str, str], quarantined: Sequence[str]) -> Client:
    return Client(
        client=client.client,
        title=names.get(client.client, client.client),
        last_seen=round(client.last_seen, 1),
        updates=client.updates,
        readings=client.readings,
        readings_per_s=round(client.readings_per_s, 2),
        interval_s=client.interval_s,
        inactive_after_s=max(INACTIVE_AFTER_S_MIN, round(INACTIVE_INTERVALS * client.interval_s)),
        rejected=client.rejected,
        quarantined=quarantined,
    )
