"""The table of HTTP operations under `/v1`: each with its path, parameters, body and answer; and
its OpenAPI document.

To add an operation, add an `Operation` to a list of them: its route and its part of the document
are made from it.

The JSON Schemas of bodies and answers are made from their types: those of the report, and those of
`answers`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal import __version__
from shoal.server_node.outputs.encoding import adapter_of
from shoal.server_node.outputs.web.answers import Problem
from shoal.server_node.outputs.web.responses import tagged

JSON = "application/json"
PROBLEM_JSON = "application/problem+json"


Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
REF = "#/components/schemas/{model}"


def schema_of(kind: Any) -> Schema:
    """The JSON Schema of what the server sends of a type; of the types in it by reference."""
    schema = adapter_of(kind).json_schema(mode="serialization", ref_template=REF)
    schema.pop("$defs", None)
    return schema


def body_schema(kind: Any) -> Schema:
    """The JSON Schema of what the server takes, with the types in it in their places."""
    schema = adapter_of(kind).json_schema(mode="validation")
    definitions = schema.pop("$defs", {})
    whole: Schema = _inlined(schema, definitions)
    return whole


def _inlined(schema: Any, definitions: Mapping[str, Schema]) -> Any:
    """A schema in which each reference is replaced by what it refers to. No type is in itself."""
    if isinstance(schema, list):
        return [_inlined(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(part, definitions) for name, part in schema.items()}


def _definitions(kind: Any) -> dict[str, Schema]:
    """The types in a type by their names, for its references."""
    schema = adapter_of(kind).json_schema(mode="serialization", ref_template=REF)
    definitions: dict[str, Schema] = schema.get("$defs", {})
    return definitions


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
    answer: Any
    """type of the answer"""
    query: Sequence[Parameter] = (MODEL,)
    method: str = "GET"
    body: Mapping[str, Any] = field(default_factory=dict)
    """media type -> type of the body; empty: there is none"""
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
                *({**_parameter(parameter, "path"), "required": True} for parameter in in_path),
                *(_parameter(parameter, "query") for parameter in self.query),
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
                "content": {
                    media: {"schema": body_schema(kind)} for media, kind in self.body.items()
                },
            }
        return described

    def _answers(self) -> dict[int, Schema]:
        answers: dict[int, Schema] = {
            self.status: {
                "description": HTTPStatus(self.status).phrase,
                "content": {self.media_type: {"schema": schema_of(self.answer)}},
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
    schemas: dict[str, Schema] = {}
    problem = body_schema(Problem)
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = operation.document()
        schemas.update(_definitions(operation.answer))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "shoal",
            "version": __version__,
            "description": "Clusters, predictions and events of a federation. Values are in the "
            "units of its contract, times in seconds since 1970.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        # Nothing, or the token: a server without one asks for none.
        "security": [{}, {"token": []}],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                str(status): {"description": text, "content": {PROBLEM_JSON: {"schema": problem}}}
                for status, text in ERRORS.items()
            },
            "schemas": dict(sorted(schemas.items())),
        },
    }


def routes_of(operations: Sequence[Operation]) -> list[Route]:
    """Their routes, and that of their document."""

    @cache
    def described() -> Schema:
        # When it is first asked for: few servers ever are, and the schemas take memory.
        return openapi(operations)

    async def document(request: Request) -> Response:
        return tagged(request, described())

    return [
        Route("/v1/openapi.json", document),
        *(operation.route() for operation in operations),
    ]


def _parameter(parameter: Parameter, place: str) -> Schema:
    return {
        "name": parameter.name,
        "in": place,
        "schema": parameter.schema,
        "description": parameter.description,
    }
