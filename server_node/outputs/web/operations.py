"""The table of HTTP operations under `/v1`: each with its path, parameters, body and answer; and
its OpenAPI document.

To add an operation, add an `Operation` to a list of them: its route and its part of the document
are made from it.

The JSON Schemas of the answers are here too: an object has exactly the fields that are listed,
unless it is open.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal import __version__
from shoal.protocol.events import EVENT_KINDS
from shoal.server_node.outputs.web.responses import tagged

JSON = "application/json"
PROBLEM_JSON = "application/problem+json"


class Parameter(NamedTuple):
    """A parameter of the query or, where the path names it, of the path."""

    name: str
    schema: Schema
    description: str


MODEL = Parameter(
    "model", {"type": "string"}, "the model; by default the first one of the contract"
)
IDENTITY = Parameter(
    "identity", {"type": "integer", "minimum": 0}, "the identity of a known cluster"
)


@dataclass(frozen=True)
class Operation:
    """One method of one path. The docstring of the endpoint is its description."""

    path: str
    endpoint: Callable[[Request], Awaitable[Response]]
    answer: Schema
    query: Sequence[Parameter] = (MODEL,)
    method: str = "GET"
    body: Mapping[str, Schema] = field(default_factory=dict)
    """media type -> schema of the body; empty: there is none"""
    status: int = 200
    errors: Sequence[int] = ()
    """statuses of errors besides those that every operation has"""
    media_type: str = JSON
    etag: bool = False
    """whether the answer has an `ETag`, and a request that names it is answered 304"""

    def route(self) -> Route:
        """The route."""
        return Route(self.path, self.endpoint, methods=[self.method])

    def document(self) -> Schema:
        """Its part of the OpenAPI document."""
        title, _, rest = (inspect.getdoc(self.endpoint) or "").partition("\n")
        in_path = [IDENTITY] if f"{{{IDENTITY.name}}}" in self.path else []
        described: Schema = {
            "operationId": re.sub(
                r"\W+", "_", f"{self.method.lower()}{self.path.removeprefix('/v1')}"
            ).strip("_"),
            "summary": title.rstrip("."),
            "parameters": [
                *({**_parameter(each, "path"), "required": True} for each in in_path),
                *(_parameter(each, "query") for each in self.query),
            ],
            "responses": {
                str(status): answer for status, answer in sorted(self._answers().items())
            },
        }
        if text := " ".join(rest.split()):
            described["description"] = text
        if self.body:
            described["requestBody"] = {
                "required": True,
                "content": {media: {"schema": schema} for media, schema in self.body.items()},
            }
        return described

    def _answers(self) -> dict[int, Schema]:
        answers: dict[int, Schema] = {
            self.status: {
                "description": HTTPStatus(self.status).phrase,
                "content": {self.media_type: {"schema": self.answer}},
                **({"headers": {"ETag": {"schema": {"type": "string"}}}} if self.etag else {}),
            }
        }
        if self.etag:
            answers[304] = {"description": "the answer is the one that If-None-Match names"}
        return answers | {
            status: {"$ref": f"#/components/responses/{status}"}
            for status in (*self.errors, *ALWAYS)
        }


ALWAYS = (401, 421, 429, 500, 503)
"""errors of every operation"""
ERRORS = {
    400: "a parameter or the body cannot be read",
    401: "the server has a token, and it is missing or wrong",
    403: "the sender may not ask for this",
    404: "there is no such model or cluster, or not yet",
    413: "the body is too large",
    415: "the body is of another media type",
    421: "the server has another name than the request's Host",
    422: "a reading cannot be used",
    429: "too many requests from this address; Retry-After says for how many seconds to wait",
    500: "internal error; the server's log has the details",
    503: "the server cannot answer this now",
}


def openapi(operations: Sequence[Operation]) -> Schema:
    """The OpenAPI document of some operations."""
    paths: dict[str, dict[str, Schema]] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = one.document()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "shoal",
            "version": __version__,
            "description": "Clusters, predictions and events of a federation. Values are in the units of its contract, "
            "times in seconds since 1970.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "security": [{}, {"token": []}],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                str(status): {"description": text, "content": {PROBLEM_JSON: {"schema": PROBLEM}}}
                for status, text in ERRORS.items()
            },
        },
    }


def routes_of(operations: Sequence[Operation]) -> list[Route]:
    """Their routes, and that of their document."""
    described = openapi(operations)

    async def document(request: Request) -> Response:
        return tagged(request, described)

    return [Route("/v1/openapi.json", document), *(one.route() for one in operations)]


def _parameter(parameter: Parameter, place: str) -> Schema:
    return {
        "name": parameter.name,
        "in": place,
        "schema": parameter.schema,
        "description": parameter.description,
    }


Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
MOMENT: Schema = {"type": "number", "description": "seconds since 1970"}
NUMBER_OR_NONE: Schema = {"type": "integer", "minimum": -1, "description": "-1: none"}
OPEN: Schema = {"type": "object"}


def record(optional: tuple[str, ...] = (), /, **fields: Schema) -> Schema:
    """An object with these fields and no others, all required but those in `optional`."""
    required = [name for name in fields if name not in optional]
    return {
        "type": "object",
        "properties": fields,
        "required": required,
        "additionalProperties": False,
    }


def many(items: Schema) -> Schema:
    """An array."""
    return {"type": "array", "items": items}


def by_name(values: Schema) -> Schema:
    """An object with any names."""
    return {"type": "object", "additionalProperties": values}


def or_null(schema: Schema) -> Schema:
    """The same, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


PROBLEM = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "const": "about:blank"},
        "title": TEXT,
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "what is wrong, and what to do"},
        "waiting_for": {"type": "string", "description": "why there is no clustering yet"},
    },
    "required": ["type", "title", "status", "detail"],
    "additionalProperties": False,
}
"""an error as in RFC 9457"""

NUMBER_OR_TEXT: Schema = {
    "type": ["number", "string"],
    "description": "a text is the value of a category",
}
KIND: dict[str, Schema] = {
    "values": {
        "type": "array",
        "items": TEXT,
        "description": "of a category, in the order of their numbers from 0",
    },
    "period": {
        "type": "number",
        "description": "of a circular feature, after how much it begins again",
    },
}
FEATURE = record(("values", "period"), name=TEXT, unit=TEXT, **KIND)
FEED = record(client=TEXT, share=SHARE)
INTERVAL = record(low=NUMBER, middle=NUMBER, high=NUMBER, beyond_bounds=FLAG)
CLUSTER = record(
    identity=COUNT,
    name=TEXT,
    label={"type": "string", "description": "what sets it apart"},
    text=TEXT,
    active=FLAG,
    confirmed=FLAG,
    muted_until=MOMENT,
    share=SHARE,
    recent_share=SHARE,
    dwell=or_null(NUMBER),
    since=or_null(MOMENT),
    since_reading=COUNT,
    parent=or_null(COUNT),
    centre=or_null(many(NUMBER)),
    spread=or_null(many(INTERVAL)),
    trend=many(or_null(COUNT)),
    trend_text=TEXT,
    fed_by=many(FEED),
    fed_by_text=TEXT,
    parts=many(record(number=COUNT, label=TEXT, text=TEXT, share=SHARE, centre=many(NUMBER))),
)
CLUSTERS = record(
    model=TEXT,
    version=COUNT,
    features=many(FEATURE),
    trend_from=or_null(MOMENT),
    trend_step_s=or_null(NUMBER),
    clusters=many(CLUSTER),
    regimes=or_null(
        record(
            block=COUNT,
            provisional=FLAG,
            readings_needed=COUNT,
            n_changes=COUNT,
            reading_s=or_null(NUMBER),
            dwells=by_name(NUMBER),
            moves=many(many(COUNT)),
        )
    ),
)
HISTOGRAMS = record(
    model=TEXT,
    identity=COUNT,
    version=COUNT,
    features=many(
        record(
            ("values", "period"),
            name=TEXT,
            unit=TEXT,
            digits=COUNT,
            low=NUMBER,
            high=NUMBER,
            own=many(COUNT),
            others=many(COUNT),
            **KIND,
        )
    ),
)
COMPARED = record(**{"from": MOMENT}, to=MOMENT, readings=COUNT, bins=COUNT)
CHANGES = record(
    model=TEXT,
    before=COMPARED,
    after=COMPARED,
    bin_s=COUNT,
    compared=COUNT,
    chance=SHARE,
    new=many(
        record(cluster=COUNT, title=TEXT, kind=TEXT, other=TEXT, share=SHARE, clients=many(FEED))
    ),
    gone=many(record(cluster=COUNT, title=TEXT, kind=TEXT, other=TEXT, share=SHARE)),
    moved=many(
        record(
            cluster=COUNT,
            title=TEXT,
            feature=TEXT,
            unit=TEXT,
            before=NUMBER,
            after=NUMBER,
            by=NUMBER,
            chance=SHARE,
            values=or_null(many(TEXT)),
        )
    ),
    share_moved=many(
        record(
            cluster=COUNT,
            title=TEXT,
            before=SHARE,
            after=SHARE,
            by=NUMBER,
            chance=SHARE,
            clients=many(record(client=TEXT, share=NUMBER)),
        )
    ),
)
CYCLES = record(
    model=TEXT,
    cycles=many(
        record(
            feature=TEXT,
            unit=TEXT,
            period=TEXT,
            profile=many(NUMBER),
            spread=many(NUMBER),
            share=SHARE,
            periods=COUNT,
            chance=SHARE,
        )
    ),
)
SNAPSHOT = record(
    federation=TEXT,
    model=TEXT,
    algorithm=TEXT,
    version=COUNT,
    contract={"type": "string", "description": "digest of the contract"},
    positions=many(many(COUNT)),
    privacy=OPEN,
    updates=COUNT,
    readings=COUNT,
    made_at=MOMENT,
    features=many(FEATURE),
    nodes=many(
        record(
            id={"type": "integer"},
            position=many(NUMBER),
            mass=NUMBER,
            bandwidth=or_null(NUMBER),
            cluster=NUMBER_OR_NONE,
        )
    ),
    edges=many(many(COUNT)),
    clusters=many(record(cluster=COUNT, identity=or_null(COUNT), centre=many(NUMBER), mass=NUMBER)),
)
PREDICTIONS = record(
    ("target", "unit", "predictions"),
    model=TEXT,
    version=COUNT,
    clusters=many(NUMBER_OR_NONE),
    identities=many(NUMBER_OR_NONE),
    target={"type": "string", "description": "of a model that predicts a feature: its name"},
    unit=TEXT,
    predictions=many(or_null(NUMBER)),
)
VALUE: Schema = {"type": ["number", "string", "boolean", "null"]}
ROWS: Schema = {
    "type": "array",
    "maxItems": 10_000,
    "items": {
        "anyOf": [
            {
                "type": "array",
                "items": VALUE,
                "description": "all features in the order of the contract",
            },
            {"type": "object", "additionalProperties": VALUE, "description": "features by name"},
        ]
    },
    "description": "readings in the units of the contract, of a category one of its values; null and a missing value "
    'for the predicted feature, and where the contract says `missing = "learn"`',
}
READINGS: Schema = {
    "anyOf": [{"type": "object", "properties": {"rows": ROWS}, "required": ["rows"]}, ROWS]
}
CONDITION = record(feature=TEXT, unit=TEXT, centre=NUMBER, width=NUMBER, **{"is": TEXT})
CONSEQUENT = record(constant=NUMBER, coefficients=by_name(NUMBER))
RULE = record(
    cluster=COUNT,
    identity=or_null(COUNT),
    share=SHARE,
    text=TEXT,
    then=CONSEQUENT,
    **{"if": many(CONDITION)},
)
RULES = record(
    federation=TEXT,
    model=TEXT,
    version=COUNT,
    made_at=MOMENT,
    target=FEATURE,
    conditions_found=FLAG,
    error=or_null(NUMBER),
    rules=many(RULE),
)
EVENT = record(
    schema={"type": "integer", "const": 1},
    id={"type": "string", "description": "the same whenever the event is published again"},
    kind={"type": "string", "enum": list(EVENT_KINDS)},
    federation=TEXT,
    model=TEXT,
    version=COUNT,
    readings=COUNT,
    at=MOMENT,
    cluster=COUNT,
    name=TEXT,
    label=TEXT,
    text=TEXT,
    other=or_null(COUNT),
    other_name=TEXT,
    muted=FLAG,
    share=SHARE,
    share_before=or_null(SHARE),
    dwell=or_null(NUMBER),
    dwell_before=or_null(NUMBER),
    centre=or_null(by_name(NUMBER_OR_TEXT)),
    units=or_null(by_name(TEXT)),
    known=COUNT,
    active=COUNT,
    reading_at=or_null(MOMENT),
)
LABEL = record(
    schema={"type": "integer", "const": 1},
    federation=TEXT,
    client=TEXT,
    model=TEXT,
    time=or_null(MOMENT),
    cluster=or_null(COUNT),
    name=TEXT,
    novelty=or_null(SHARE),
    version=COUNT,
    outside=by_name({"type": "string", "enum": ["above", "below"]}),
)
CLIENT = record(
    client=TEXT,
    last_seen=MOMENT,
    updates=COUNT,
    readings=COUNT,
    readings_per_s=NUMBER,
    interval_s={
        "type": "number",
        "description": "seconds that usually pass at most between two updates",
    },
    rejected=or_null(COUNT),
    quarantined={"type": "array", "items": TEXT, "description": "models that absorb nothing of it"},
)
CLIENTS = record(
    clients=many(CLIENT),
    total={**COUNT, "description": "clients that the server knows"},
    next={
        "type": ["string", "null"],
        "description": "`after` of the next request; null: these are the last",
    },
)
HISTORY = record(
    model=TEXT,
    step_s=COUNT,
    kept_s=COUNT,
    starts=many({"type": "integer"}),
    readings=many(COUNT),
    clusters=many(
        record(
            identity=or_null(COUNT), name=or_null(TEXT), label=or_null(TEXT), readings=many(COUNT)
        )
    ),
    clients=many(record(client=TEXT, readings=many(COUNT))),
    more_from=or_null(MOMENT),
)
FEEDS = record(
    model=TEXT,
    clients=by_name(many(many(COUNT))),
    **{"from": or_null(MOMENT), "to": or_null(MOMENT)},
)
PRIVACY = record(
    ("readings_per_window_max", "hides_presence"),
    mode=TEXT,
    formal=FLAG,
    title=TEXT,
    sentences=many(TEXT),
    unit=TEXT,
    readings_per_window_max=COUNT,
    hides_presence=FLAG,
    epsilon=or_null(NUMBER),
    epsilon_spent=or_null(NUMBER),
    bounds=many(record(name=TEXT, low=NUMBER, high=NUMBER, unit=TEXT)),
    models=many(
        {"type": "object", "required": ["name", "algorithm", "learns_from", "epsilon_spent"]}
    ),
    not_covered=many(TEXT),
)
REQUESTED_NAME = record(model=TEXT, cluster=COUNT, name=TEXT)
REQUESTED_ALERTS = record(model=TEXT, cluster=COUNT, action=TEXT, until=MOMENT)
NEW_NAME = record(
    name={"type": "string", "maxLength": 60, "description": "one line; empty takes the name away"}
)
NEW_ALERTS = record(
    ("until",), action={"type": "string", "enum": ["confirm", "mute", "alert"]}, until=MOMENT
)


def page_of(name: str, items: Schema) -> Schema:
    """Records of a topic from a place on, and the place of the next ones."""
    fields = {
        name: many(items),
        "first": {**COUNT, "description": "the place of the oldest record that the log still has"},
        "next": {**COUNT, "description": "`after` of the next request"},
        "end": {**COUNT, "description": "the place behind the newest record"},
    }
    return record(**fields)
