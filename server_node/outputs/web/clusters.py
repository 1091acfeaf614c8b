"""The operations of clusters and their history under `/v1`: clusters, histograms, history, feeds,
changes, cycles."""

from __future__ import annotations

import math

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from shoal.config.contract import Contract
from shoal.config.resolved import ResolvedContract
from shoal.errors import SettingsError
from shoal.server_node.history.anomalies import ShareScale, find_anomalies, whole_span
from shoal.server_node.history.changes import CHANCE, PastEvent, find_changes, spans_of
from shoal.server_node.history.cycles import find_cycles, hidden_periods
from shoal.server_node.history.store import HistoryReader
from shoal.server_node.outputs.history_views import (
    AnomaliesView,
    ChangesView,
    CyclesView,
    anomalies_view,
    changes_view,
    cycles_view,
)
from shoal.server_node.outputs.web.answers import Feeds, Histograms, History
from shoal.server_node.outputs.web.api import MODEL, SHARE, TEXT, Operation, Parameter
from shoal.server_node.outputs.web.histograms import histograms_of
from shoal.server_node.outputs.web.history_json import read_feeds, read_history
from shoal.server_node.outputs.web.query import asked_span, kept, known_cluster, requested_model
from shoal.server_node.outputs.web.responses import answered, conditional, in_thread
from shoal.server_node.report.build import Reports
from shoal.server_node.report.status import ModelStatus, StatusBoard
from shoal.server_node.report.types import Clustering

FROM = Parameter("from", TEXT, "seconds since 1970, or a time of ISO 8601")
TO = Parameter("to", TEXT, "as from")
STEP = Parameter("step", TEXT, "seconds of a column: a multiple of 300 up to a week")
BEFORE_FROM = Parameter(
    "before_from", TEXT, "start of the span to compare with; default: as long before its end"
)
BEFORE_TO = Parameter("before_to", TEXT, "its end; by default from")
BELOW = Parameter("chance", SHARE, "what has moved is listed if its chance is below this")
UNLIKELY = Parameter("chance", SHARE, "what has a chance below this is listed")
OF = Parameter("of", TEXT, "clusters: leave the clients out")


class ClusterEndpoints:
    """One method for each path of clusters and their history, and what they share."""

    def __init__(self, board: StatusBoard, reports: Reports) -> None:
        self._board = board
        self._reports = reports

    def operations(self) -> list[Operation]:
        """Their operations."""
        span = (MODEL, FROM, TO)
        compared = (*span, BEFORE_FROM, BEFORE_TO, BELOW)
        histograms = "/v1/clusters/{identity}/histograms"
        errors = (400, 404)
        return [
            Operation("/v1/clusters", self.clusters, Clustering, errors=(404,), etag=True),
            Operation(histograms, self.histograms, Histograms, errors=(404,), etag=True),
            Operation(
                "/v1/history", self.past, History, (*span, STEP, OF), errors=errors, etag=True
            ),
            Operation("/v1/feeds", self.feeds, Feeds, span, errors=errors, etag=True),
            Operation("/v1/changes", self.changes, ChangesView, compared, errors=errors, etag=True),
            Operation(
                "/v1/anomalies",
                self.anomalies,
                AnomaliesView,
                (*span, UNLIKELY),
                errors=errors,
                etag=True,
            ),
            Operation("/v1/cycles", self.cycles, CyclesView, errors=(404,), etag=True),
        ]

    async def clusters(self, request: Request) -> Response:
        """The known clusters of a model with what each is, in the units of the contract."""
        status = self._board.status
        model = requested_model(request, status)
        return answered(request, self._reports.clustering(status, model.name))

    async def histograms(self, request: Request) -> Response:
        """Histograms of a known cluster and of all others in each feature, in units."""
        status = self._board.status
        model = requested_model(request, status)
        identity = known_cluster(request, model)
        return answered(request, histograms_of(model, identity, status.contract))

    async def past(self, request: Request) -> Response:
        """The bins of a model's history in a span of time; 404 where no history is kept."""
        model = requested_model(request, self._board.status)
        history = await read_history(self._history(), model.name, request.query_params)
        return conditional(request, history.etag, history.pieces)

    async def feeds(self, request: Request) -> Response:
        """Division of each client's readings among the clusters, in percent, in a span of time.

        The fine bins that start from `from` to `to`; the 200 clients with most readings, the eight
        largest clusters. `start` and `end` of the answer are the times that were counted, null
        without bins. 404 where no history is kept.
        """
        model = requested_model(request, self._board.status)
        feeds = await read_feeds(self._history(), model.name, request.query_params)
        return answered(request, feeds)

    async def changes(self, request: Request) -> Response:
        """Changes between two spans of time, by default the halves of the history; 404 where none
        is kept."""
        status = self._board.status
        model = requested_model(request, status)
        contract = status.contract.contract
        query = request.query_params
        return answered(
            request, await in_thread(changes_of, self._history(), model, contract, query)
        )

    async def anomalies(self, request: Request) -> Response:
        """What was unusual in a span of time, by default the newest day: clients, features, states
        and hours, the least likely first; 404 where no history is kept."""
        status = self._board.status
        model = requested_model(request, status)
        contract = status.contract
        query = request.query_params
        return answered(
            request, await in_thread(anomalies_of, self._history(), model.name, contract, query)
        )

    async def cycles(self, request: Request) -> Response:
        """Cycles of each feature over the day and the week, whether they are certain or not; 404
        where none is kept."""
        status = self._board.status
        model = requested_model(request, status)
        contract = status.contract.contract
        cycles = await in_thread(find_cycles, self._history(), contract, model.name)
        hidden = await in_thread(hidden_periods, self._history(), model.name)
        return answered(request, cycles_view(model.name, cycles, hidden))

    def _history(self) -> HistoryReader:
        return kept(self._reports.history)


def changes_of(
    history: HistoryReader, model: ModelStatus, contract: Contract, query: QueryParams
) -> ChangesView:
    """The changes between the spans that the query asks for. Raises `HTTPException` (400) for spans
    that cannot be."""
    chance = _chance(query.get("chance"))
    try:
        spans = spans_of(history, model.name, asked_span(query), asked_span(query, "before_"))
    except SettingsError as wrong:
        raise HTTPException(400, str(wrong)) from None
    events = [
        PastEvent(event.found_at, event.kind, event.cluster, event.other) for event in model.events
    ]
    return changes_view(find_changes(history, contract, model.name, spans, events), chance)


def anomalies_of(
    history: HistoryReader, model: str, contract: ResolvedContract, query: QueryParams
) -> AnomaliesView:
    """What was unusual in the span that the query asks for. Raises `HTTPException` (400) for one
    that cannot be."""
    chance = _chance(query.get("chance"))
    try:
        span = whole_span(history, model, *asked_span(query))
    except SettingsError as wrong:
        raise HTTPException(400, str(wrong)) from None
    scale = ShareScale.of(contract.models[model])
    found = find_anomalies(history, contract.contract, model, span, scale)
    return anomalies_view(found, chance)


def _chance(text: str | None) -> float:
    try:
        chance = float(text or CHANCE)
    except ValueError:
        chance = math.nan
    # A NaN compares false as well.
    if not 0 <= chance <= 1:
        raise HTTPException(400, "chance is a number from 0 to 1")
    return chance
