"""Cluster events and published labels as JSON, some records at a time: `/v1/events` and
`/v1/labels`.

Both are read from the federation's log when they are asked for, so that the server keeps none of
them in memory.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from shoal.errors import LogError, MessageRejected
from shoal.protocol.events import SCHEMA, ClusterEventMessage
from shoal.server_node.outputs.web.answers import Events, Labels, PublishedLabel
from shoal.server_node.outputs.web.api import COUNT, TEXT, Operation, Parameter
from shoal.server_node.outputs.web.query import PLACE_DIGITS_MAX, requested_model, whole_number
from shoal.server_node.outputs.web.responses import in_thread, tagged
from shoal.server_node.report.status import StatusBoard
from shoal.transports.base import Log, Record

OpenLog = Callable[[], Log]
"""opens the federation's log"""
LOGS_MAX = 2
"""logs that are open at once"""
RECORDS_MAX = 1000
RECORDS_DEFAULT = 100
SCANNED_MAX = 10_000
"""records that one request reads at most; what is left is at `next`"""

AFTER = Parameter("after", COUNT, "where to begin: 0, or `next` of the answer before")
LIMIT = Parameter(
    "limit",
    {"type": "integer", "minimum": 1, "maximum": RECORDS_MAX},
    "records at most, by default 100",
)
OF_MODEL = Parameter("model", TEXT, "of this model only")
OF_CLIENT = Parameter("client", TEXT, "of this client only")


class TopicPages:
    """The two lists. `open_log` None: the log cannot be read here."""

    def __init__(self, board: StatusBoard, open_log: OpenLog | None) -> None:
        self._board = board
        self._open_log = open_log
        self._logs = asyncio.Semaphore(LOGS_MAX)

    def operations(self) -> list[Operation]:
        """Their operations."""
        errors = (400, 404)
        return [
            Operation(
                "/v1/events",
                self.events,
                Events,
                (OF_MODEL, AFTER, LIMIT),
                errors=errors,
                etag=True,
            ),
            Operation(
                "/v1/labels",
                self.labels,
                Labels,
                (OF_MODEL, OF_CLIENT, AFTER, LIMIT),
                errors=errors,
                etag=True,
            ),
        ]

    async def events(self, request: Request) -> Response:
        """Cluster events, oldest first, from a place in their topic on; ask again with `after` set
        to `next`."""
        contract = self._board.status.contract.contract
        return await self._page(request, "events", contract.events_topic, _event)

    async def labels(self, request: Request) -> Response:
        """Published labels, oldest first, as `/v1/events`; 404 where no client has
        `publish_labels`."""
        contract = self._board.status.contract.contract
        return await self._page(request, "labels", contract.labels_topic, _label)

    async def _page(
        self,
        request: Request,
        name: str,
        topic: str,
        read: Callable[[Record], dict[str, Any] | None],
    ) -> Response:
        if self._open_log is None:
            raise HTTPException(503, "this server reads no log for its page")
        asked = request.query_params
        after = whole_number(asked.get("after"), "after", 0, 0, 10**PLACE_DIGITS_MAX)
        limit = whole_number(asked.get("limit"), "limit", RECORDS_DEFAULT, 1, RECORDS_MAX)
        wanted = {key: asked[key] for key in ("model", "client") if asked.get(key)}
        if "model" in wanted:
            requested_model(request, self._board.status)
        async with self._logs:
            found = await in_thread(_read, self._open_log, topic, after, limit, wanted, read)
        if found is None:
            raise HTTPException(404, f"there are no {name} in the log of this federation")
        records, places = found
        return tagged(request, {name: records, **places})


def _read(
    open_log: OpenLog,
    topic: str,
    after: int,
    limit: int,
    wanted: dict[str, str],
    read: Callable[[Record], dict[str, Any] | None],
) -> tuple[list[dict[str, Any]], dict[str, int]] | None:
    """Records from place `after` on, and the places; None where there is no such topic. Raises as
    the log does."""
    with closing(open_log()) as log:
        try:
            # The topics of events and labels have one partition, so that a place is one number.
            first, end = log.bounds(topic)[0]
        except LogError:
            return None
        # Within the log: what was removed cannot be read, and a place beyond the end, as of an
        # earlier log, would wait for ever.
        place = min(max(after, first), end)
        scanned = 0
        found: list[dict[str, Any]] = []
        while place < end and len(found) < limit and scanned < SCANNED_MAX:
            records, positions = log.read(topic, {0: place}, limit - len(found), 0.0)
            # Nothing there although the log has an end beyond: retention or compaction took it.
            if not records and positions.get(0, place) <= place:
                break
            scanned += len(records)
            place = positions[0]
            for record in records:
                entry = read(record)
                if entry is not None and wanted.items() <= entry.items():
                    found.append(entry)
        return found, {"first": first, "next": place, "end": end}


def _event(record: Record) -> dict[str, Any] | None:
    try:
        return {"schema": SCHEMA, **vars(ClusterEventMessage.decode(record.value))}
    except MessageRejected:
        return None


def _label(record: Record) -> dict[str, Any] | None:
    try:
        label = json.loads(record.value or b"")
    except (ValueError, RecursionError):
        return None
    names = [field.name for field in fields(PublishedLabel)]
    # Clients write them: what is not one, or of another version, is passed over.
    if not isinstance(label, dict) or not set(names) <= set(label) or label["schema"] != SCHEMA:
        return None
    return {name: label[name] for name in names}
