"""The AsyncAPI document of a federation's topics, docs/reference/asyncapi.json, made from the
declarations."""

from __future__ import annotations

from typing import Any

from shoal import __version__
from shoal.config.settings import LogSettings
from shoal.protocol.messages import VERSION
from shoal.protocol.topics import declared_topics
from shoal.server_node.outputs.web.answers import ClusterEvent, PublishedLabel
from shoal.server_node.outputs.web.api import TEXT, Schema, schema_of
from tests.protocol_tables import MESSAGES, fields_of
from tests.small_plant import plant


def many(items: Schema) -> Schema:
    return {"type": "array", "items": items}


ARRAY: Schema = {"description": "msgpack extension type 1, see protocol.md"}
WHOLE: Schema = {"type": "integer", "minimum": -(2**53), "maximum": 2**53}
KINDS: dict[str, Schema] = {
    "text": TEXT,
    "whole number": WHOLE,
    "number": {"type": "number"},
    "true or false": {"type": "boolean"},
    "nil": {"type": "null"},
    "bytes": {"description": "msgpack bin"},
    "mapping": {"type": "object"},
    "mapping of arrays": {"type": "object", "additionalProperties": ARRAY},
    "array": ARRAY,
    "list": many({}),
    "list of whole numbers": many(WHOLE),
    "list of texts": many(TEXT),
    "list of pairs": many(many(WHOLE)),
    "list of lists": many(many({})),
}
"""types as docs/reference/protocol.md names them"""
TOPICS: dict[str, tuple[str, ...]] = {
    "updates": (
        "update",
        "region_update",
        "wake",
        "contribute",
        "cluster_name",
        "cluster_alerts",
        "quarantine",
        "masked_counts",
        "close_round",
        "helper_sum",
        "round_plan",
    ),
    "snapshots": ("snapshot", "lease", "quarantine_list", "conflicts", "contract", "open_round"),
    "events": ("cluster_event",),
    "history": ("history_bin", "history_names"),
    "rejected": ("rejected",),
    "labels": ("label",),
    "contributions": ("region_update",),
}
"""end of a topic's name -> types of its messages"""


def payload_of(form: type) -> Schema:
    """The fields of a message, as far as JSON Schema can say what msgpack has."""
    fields = fields_of(form)
    return {
        "type": "object",
        "properties": {
            name: {**_kind(kind), "description": text} for name, (kind, text) in fields.items()
        },
    }


def _kind(words: str) -> Schema:
    kinds = [KINDS[word] for word in words.split(" or ")] if words not in KINDS else [KINDS[words]]
    return dict(kinds[0]) if len(kinds) == 1 else {"anyOf": kinds}


def _message(kind: str, forms: dict[str, type]) -> Schema:
    headers = {
        "type": "object",
        "properties": {
            "type": {"type": "string", "const": kind},
            "v": {"type": "string", "const": str(VERSION)},
            "signature": {"type": "string", "description": "where the federation signs"},
        },
        "required": ["type", "v"],
    }
    if kind in ("cluster_event", "label"):
        payload = schema_of(ClusterEvent if kind == "cluster_event" else PublishedLabel)
        return {"contentType": "application/json", "headers": headers, "payload": payload}
    if kind == "rejected":
        payload = {"description": "the original value"}
        return {"contentType": "application/octet-stream", "headers": headers, "payload": payload}
    return {
        "contentType": "application/msgpack",
        "headers": headers,
        "payload": payload_of(forms[kind]),
    }


def document() -> dict[str, Any]:
    """The document of a federation with the name `plant`."""
    forms: dict[str, type] = {form.TYPE: form for form in MESSAGES}
    declared = declared_topics(plant(), LogSettings(), labels=True, upstream=True)
    topics = {name.partition(".")[2]: (name, kept) for name, kept in declared.items()}
    assert set(topics) == set(TOPICS), "each topic is described"
    channels = {}
    operations = {}
    for end, (name, kept) in topics.items():
        policy = "compact" if kept.compact else "delete"
        channels[end] = {
            "address": name.replace("plant", "{federation}", 1),
            "parameters": {"federation": {"description": "name of the federation"}},
            "messages": {kind: {"$ref": f"#/components/messages/{kind}"} for kind in TOPICS[end]},
            "bindings": {"kafka": {"topicConfiguration": {"cleanup.policy": [policy]}}},
        }
        operations[f"read_{end}"] = {"action": "receive", "channel": {"$ref": f"#/channels/{end}"}}
    kinds = sorted({kind for kinds in TOPICS.values() for kind in kinds})
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Topics of a shoal federation",
            "version": __version__,
            "description": (
                "docs/reference/protocol.md says how values are packed, signed and checked."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "channels": channels,
        "operations": operations,
        "components": {"messages": {kind: _message(kind, forms) for kind in kinds}},
    }
