"""The history of a model as JSON: one row of numbers for each cluster and client, one column for each bin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from server_node.history.store import HistoryReader
from server_node.history.summary import client_name
from shoal.protocol.checks import MOMENT_MAX
from shoal.protocol.history import BINS_KEPT, COARSE_S, FINE_S, NO_CLUSTER, HistoryBin, HistoryNames, pairs

BINS_MAX = 2000
"""bins in one answer"""


def history_json(reader: HistoryReader, model: str, asked: QueryParams) -> dict[str, Any]:
    """The bins from `from` to `to`, as the query asks; at most `BINS_MAX`, and `more_from` where there are more.

    Raises `HTTPException` (400) for values that cannot be, and as `HistoryReader` does.
    """
    width = _width(asked.get("step"))
    first, last = (_moment(name, asked.get(name)) for name in ("from", "to"))
    earliest, latest = -MOMENT_MAX if first is None else first // width * width, MOMENT_MAX if last is None else last
    bins = reader.bins(model, width, earliest, latest, BINS_MAX + 1)
    names = reader.names(model)
    shown = bins[:BINS_MAX]
    return {
        "model": model,
        "step_s": width,
        "kept_s": BINS_KEPT[width] * width,
        "starts": [one.start for one in shown],
        "readings": [sum(readings for _, readings in pairs(one.clusters)) for one in shown],
        "clusters": _rows(shown, lambda one: one.clusters, _titles(names)),
        "clients": _rows(shown, lambda one: one.clients, lambda number: _client(number, names)),
        "more_from": bins[BINS_MAX].start if len(bins) > BINS_MAX else None,
    }


def _rows(
    bins: Sequence[HistoryBin], of: Callable[[HistoryBin], bytes], fields: Callable[[int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """One row for each number that occurs, with its readings in each bin."""
    counts = [Counter(dict(pairs(of(one)))) for one in bins]
    numbers = sorted({number for count in counts for number in count})
    return [{**fields(number), "readings": [count[number] for count in counts]} for number in numbers]


def _titles(names: HistoryNames | None) -> Callable[[int], dict[str, Any]]:
    """Identity, name and label of a cluster; all null for readings that fell to no known cluster."""
    known = {} if names is None else {identity: (name, label) for identity, name, label in names.clusters}

    def fields(identity: int) -> dict[str, Any]:
        if identity == NO_CLUSTER:
            return {"identity": None, "name": None, "label": None}
        name, label = known.get(identity, ("", ""))
        return {"identity": identity, "name": name, "label": label}

    return fields


def _client(number: int, names: HistoryNames | None) -> dict[str, Any]:
    return {"client": client_name(number, [] if names is None else names.clients)}


def _width(text: str | None) -> int:
    if text is None:
        return COARSE_S
    if text not in map(str, BINS_KEPT):
        raise HTTPException(400, f"step is {FINE_S} or {COARSE_S}, in seconds")
    return int(text)


def _moment(name: str, text: str | None) -> float | None:
    """Seconds since 1970, given as such or as a time of ISO 8601 (UTC where it names no zone)."""
    if not text:
        return None
    try:
        moment = float(text)
    except ValueError:
        try:
            given = datetime.fromisoformat(text)
            moment = (given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            moment = float("nan")
    if not -MOMENT_MAX <= moment <= MOMENT_MAX:
        raise HTTPException(400, f"{name} is a time in seconds since 1970, or like 2026-03-01T08:15:00Z")
    return moment
