"""What a request asks for: the model, the cluster, spans of time and numbers in its query."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from shoal.protocol.checks import MOMENT_MAX
from shoal.server_node.history.store import HistoryReader
from shoal.server_node.outputs.web.responses import problem
from shoal.server_node.report.build import NO_SNAPSHOT, model_status
from shoal.server_node.report.status import ModelStatus, ServerStatus

# Below 2^63 for certain, which is as far as a log counts; longer texts are never turned into
# numbers.
PLACE_DIGITS_MAX = 18


def requested_model(
    request: Request, status: ServerStatus, default: str | None = None
) -> ModelStatus:
    """The model named in the query, by default `default` or the contract's first one. Raises
    `HTTPException`."""
    configured = status.contract.models
    name = request.query_params.get("model", default or next(iter(configured)))
    if name not in configured:
        raise HTTPException(404, f"no such model; this federation has {', '.join(configured)}")
    return model_status(status, name)


def no_clustering(model: ModelStatus) -> Response:
    """404 with what a model waits for, before its first snapshot."""
    return problem(404, "no clustering yet", waiting_for=model.waiting_for or NO_SNAPSHOT)


def known_cluster(request: Request, model: ModelStatus) -> int:
    """The identity in the path. Raises `HTTPException` if no known cluster of the model has it."""
    asked = request.path_params["identity"]
    for cluster in model.lineage.known:
        if str(cluster.identity) == asked:
            return cluster.identity
    raise HTTPException(404, f"model {model.name} has no cluster with this identity")


def kept(history: HistoryReader | None) -> HistoryReader:
    """The history. Raises `HTTPException` (404) where there is none."""
    if history is None:
        raise HTTPException(404, "this server keeps no history")
    return history


def asked_span(asked: QueryParams, prefix: str = "") -> tuple[float | None, float | None]:
    """The query's `from` and `to`, with this prefix; None where they are not given. Raises
    `HTTPException` (400)."""
    first = _moment(f"{prefix}from", asked.get(f"{prefix}from"))
    last = _moment(f"{prefix}to", asked.get(f"{prefix}to"))
    return first, last


def _moment(name: str, text: str | None) -> float | None:
    """Seconds since 1970, given as such or as a time of ISO 8601 (UTC where it names no zone)."""
    if not text:
        return None
    try:
        moment = float(text)
    except ValueError:
        moment = _iso_moment(text)
    # A NaN compares false as well.
    if not -MOMENT_MAX <= moment <= MOMENT_MAX:
        raise HTTPException(
            400, f"{name} is a time in seconds since 1970, or like 2026-03-01T08:15:00Z"
        )
    return moment


def _iso_moment(text: str) -> float:
    """NaN for what is no time."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp()
    except (ValueError, OverflowError):
        return float("nan")


def whole_number(text: str | None, name: str, default: int, least: int, most: int) -> int:
    """A whole number of the query. Raises `HTTPException` (400)."""
    if text is None:
        return default
    # isdigit alone also takes digits of other scripts and superscripts.
    is_number = text.isascii() and text.isdigit() and len(text) <= PLACE_DIGITS_MAX
    number = int(text) if is_number else -1
    if not least <= number <= most:
        raise HTTPException(400, f"{name} is a whole number from {least} to {most}")
    return number
