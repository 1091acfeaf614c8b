"""The tables of docs/reference/protocol.md, made from the declarations: messages, topics, arrays of
algorithms."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from shoal.algorithms.registry import load_algorithm
from shoal.algorithms.streaming import ArraySpec, StreamingAlgorithm
from shoal.config.contract import Contract
from shoal.config.settings import LogSettings
from shoal.protocol.checks import CLUSTER_NAME_CHARACTERS_MAX
from shoal.protocol.conflicts import Conflict, ConflictList, Copy
from shoal.protocol.history import FINE_S, NO_CLUSTER, HistoryBin, HistoryNames
from shoal.protocol.lease import Lease
from shoal.protocol.masked import MASKED_MESSAGES
from shoal.protocol.messages import (
    ClusterAlerts,
    ClusterIdentity,
    ClusterName,
    Snapshot,
    Update,
    Wake,
)
from shoal.protocol.parts import Part
from shoal.protocol.published_contract import PublishedContract
from shoal.protocol.quarantine import ACTIONS, QuarantinedClient, QuarantineList, QuarantineRequest
from shoal.protocol.readings import Reading
from shoal.protocol.regions import Contribute, Region, RegionUpdate
from shoal.protocol.topics import declared_topics

MESSAGES: Final = (
    Update,
    RegionUpdate,
    Snapshot,
    Wake,
    Contribute,
    ClusterName,
    ClusterAlerts,
    QuarantineRequest,
    QuarantineList,
    ConflictList,
    PublishedContract,
    Lease,
    HistoryBin,
    HistoryNames,
    *MASKED_MESSAGES,
    Reading,
)
ENTRIES: Final = (Region, ClusterIdentity, Part, QuarantinedClient, Conflict, Copy)
"""lists within messages whose places have names"""
TYPES: Final = {
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "true or false",
    "None": "nil",
    "bytes": "bytes",
    "dict[str, Any]": "mapping",
    "Mapping[str, AnyArray]": "mapping of arrays",
    "Floats": "array",
    "list[Any]": "list",
    "list[int]": "list of whole numbers",
    "list[float]": "list of numbers",
    "list[str]": "list of texts",
    "list[list[int]]": "list of pairs",
    "list[list[Any]]": "list of lists",
    "list[list[int | str]]": "list of lists",
}
SELF_EVIDENT: Final = {
    "federation": "name of the federation",
    "model": "name of the model",
    "algorithm": "name of its algorithm",
    "client": "name of the client",
    "clusters": "active clusters in the arrays",
    "nodes": "nodes in the arrays",
    "identity": "lasting identity of the cluster",
    "sequence": "number of the update",
    "privacy": "the privacy statement",
    "arrays": "those of the algorithm, see below",
    "made_at": "seconds since 1970",
    "newest_reading_at": "event time of the newest reading behind it",
    "round": "number of the round",
    "width_s": "seconds of the bin",
    "chunks": "how many chunks the update is cut into",
}
"""meanings of fields whose declaration has none, as the name says it"""

WORDS: Final = {
    "None": "nil",
    "`CLUSTER_NAME_CHARACTERS_MAX`": str(CLUSTER_NAME_CHARACTERS_MAX),
    "`ACTIONS`": ", ".join(f"`{action}`" for action in ACTIONS),
    "`NO_CLUSTER`": str(NO_CLUSTER),
    "`FINE_S`": f"{FINE_S} seconds",
    "`HistoryNames`": "`history_names`",
    "`Region`": "`Region` (below)",
    "`Conflict`": "`Conflict` (below)",
    "`Copy`": "`Copy` (below)",
    "`QuarantinedClient`": "`QuarantinedClient` (below)",
    "`ClusterIdentity`": "`ClusterIdentity` (below)",
    "`Part`": "`Part` (below)",
    " (`shoal.protocol.messages`)": ": `deadline`, `fraction`, `rows_min`",
    " (`shoal.privacy`)": " of the contract",
}
"""what declarations call by names of Python -> what it is to a reader in another language"""


def message_table(form: type) -> str:
    """Name, type and meaning of each field of a message or of an entry, in their order."""
    rows = [f"| `{name}` | {kind} | {text} |" for name, (kind, text) in fields_of(form).items()]
    return "\n".join(["| field | type | meaning |", "|---|---|---|", *rows])


def fields_of(form: type) -> dict[str, tuple[str, str]]:
    """field of a message or of an entry -> its type and its meaning in words, in their order."""
    texts = _declared_texts(form)
    names = (
        [field.name for field in fields(form)]
        if hasattr(form, "__dataclass_fields__")
        else list(form._fields)
    )  # type: ignore[attr-defined]  # of a `NamedTuple`
    return {name: (texts[name][0], texts[name][1] or SELF_EVIDENT.get(name, "")) for name in names}


def topics_table(contract: Contract) -> str:
    """Name, compaction and largest record of each topic of a federation, with the default
    settings."""
    rows = [
        f"| `{name}` | {'newest record of each key' if topic.compact else 'in order'} |"
        f" {topic.record_bytes_max} |"
        for name, topic in declared_topics(
            contract, LogSettings(), labels=True, upstream=True
        ).items()
    ]
    return "\n".join(["| topic | kept | largest record, bytes |", "|---|---|---|", *rows])


def arrays_table(algorithms: list[str]) -> str:
    """The arrays of the updates and snapshots of these algorithms."""
    rows = []
    for name in algorithms:
        algorithm = load_algorithm(name)
        tables = {"update": algorithm.update, "snapshot": algorithm.snapshot}
        if (
            isinstance(algorithm, StreamingAlgorithm)
            and algorithm.aggregation
            and algorithm.aggregation.update
        ):
            tables["region_update"] = algorithm.aggregation.update
        rows += [f"| {name} | {kind} | {_arrays(table)} |" for kind, table in tables.items()]
    return "\n".join(["| algorithm | message | arrays |", "|---|---|---|", *rows])


def _arrays(table: Mapping[str, ArraySpec]) -> str:
    return ", ".join(
        f"`{name}` `{spec.dtype.replace('|', '')}` ({_shape(spec)})" for name, spec in table.items()
    )


def _shape(spec: ArraySpec) -> str:
    return ", ".join(map(str, spec.shape))


def _declared_texts(form: type) -> dict[str, tuple[str, str]]:
    """field -> type in words, and the text that its declaration has."""
    found: dict[str, tuple[str, str]] = {}
    for base in reversed(form.__mro__):
        if base.__module__.startswith("shoal."):
            found |= dict(_texts_of_class(base))
    return found


def _texts_of_class(form: type) -> Iterator[tuple[str, tuple[str, str]]]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(form))).body
    body: list[Any] = list(getattr(tree, "body", []))
    for statement, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = " ".join(str(after.value.value).split()).replace("|", "\\|")
                for name, word in WORDS.items():
                    text = text.replace(name, word)
            yield statement.target.id, (_type_in_words(statement.annotation), text)


def _type_in_words(annotation: ast.expr) -> str:
    whole = ast.unparse(annotation)
    if whole in TYPES:
        return TYPES[whole]
    return " or ".join(TYPES.get(part, part) for part in whole.split(" | "))
