"""What docs/how-to has about Kafka agrees with the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from shoal.config.limits import UPDATE_BYTES_MAX
from shoal.config.sections import ClientSettings
from shoal.config.settings import LogSettings
from shoal.protocol.messages import CHUNKS_MAX
from shoal.protocol.topics import declared_topics
from shoal.runtime.service import RETRY_FIRST_S, RETRY_MAX_S
from shoal.server_node.ingest.reassembly import (
    STALE_AFTER_CHUNKS,
    WAITING_BYTES_MAX,
    WAITING_UPDATES_MAX,
)
from shoal.transports.kafka.connection import _PERMANENT, _TEMPORARY, MIB, configs_of
from shoal.transports.kafka.log import IN_FLIGHT_BYTES_MAX
from tests.small_plant import FORMAL, an_update, plant
from tests.test_architecture import nodes_of

UPDATES, SNAPSHOTS, EVENTS, HISTORY, REJECTED = declared_topics(plant(), LogSettings()).values()
HERE = Path(__file__).parent.parent
HOW_TO = HERE / "docs" / "how-to"
PAGES = [
    (HOW_TO / f"{name}.md").read_text(encoding="utf-8")
    for name in ("kafka", "security", "sizing", "troubleshooting")
]
PAGE = " ".join(" ".join(PAGES).split())
ERRORS = (
    (HOW_TO / "troubleshooting.md").read_text(encoding="utf-8").partition("Rejected messages")[0]
)


def quotes_in(table: str) -> list[str]:
    """The messages in the first column of a table, without their backticks."""
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return [quoted for row in rows for quoted in re.findall("`([^`]+)`", row)]


QUOTES = quotes_in(ERRORS)


def test_the_table_of_topics_agrees_with_the_declarations() -> None:
    days = UPDATES.retain_s
    assert days is not None
    largest = [s.record_bytes_max // 1024 for s in (UPDATES, SNAPSHOTS, REJECTED)]
    assert f"| federation/model | 1 | {days / 86400:.0f} days | {largest[0]} KiB |" in PAGE
    assert f"| model | 1 | newest per model (compacted) | {largest[1] // 1024} MiB |" in PAGE
    events = (EVENTS.retain_bytes or 0) // MIB
    assert f"| model | 1 | newest {events} MiB | {EVENTS.record_bytes_max // 1024} KiB |" in PAGE
    assert (
        "| model/seconds/start | 1 | newest per bin (compacted) |"
        f" {HISTORY.record_bytes_max // 1024} KiB |" in PAGE
    )
    kept = (REJECTED.retain_bytes or 0) // MIB
    assert f"| topic/partition/offset | 1 | newest per key, {kept} MiB | {largest[2]} KiB |" in PAGE


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    spool_gib = ClientSettings().readings_bytes_max // 1024**3
    assert f"`readings_bytes_max` of `[client]` (by default {spool_gib} GiB" in PAGE
    assert f"at most {IN_FLIGHT_BYTES_MAX // MIB} MiB are on their way" in PAGE
    assert f"tries again after {RETRY_FIRST_S} s, then at most every {RETRY_MAX_S:.0f} s" in PAGE
    assert configs_of(UPDATES, 3)["min.insync.replicas"] == "2"
    assert "min.insync.replicas" not in configs_of(UPDATES, 0)


def test_the_limits_of_chunked_updates_are_those_of_the_code() -> None:
    assert f"An update may have {UPDATE_BYTES_MAX // MIB} MiB in {CHUNKS_MAX} chunks" in PAGE
    assert (
        f"At most {WAITING_UPDATES_MAX} incomplete updates and {WAITING_BYTES_MAX // MIB} MiB are"
        " kept" in PAGE
    )
    assert f"got no chunk among the last {STALE_AFTER_CHUNKS} chunks" in PAGE


def test_common_reasons_of_brokers_are_in_the_table() -> None:
    for meaning in ("do not accept the user or the secret", "certificate is not one we trust"):
        assert meaning in PAGE
        assert any(meaning in text for text in _PERMANENT.values())
    for meaning in (
        "no server listens there",
        "the host's name is not known",
        "the connection was closed at once",
    ):
        assert meaning in PAGE
        assert any(meaning in text for text in _TEMPORARY.values())


def test_every_setting_of_the_log_is_on_the_page() -> None:
    shown = {"certificate_file", "key_file", "user", "address", "secret_file", "ca_file"}
    of_topics = set(LogSettings.model_fields) - shown
    assert [
        name
        for name in sorted(of_topics)
        if f"`{name}" not in PAGE and f"`[log] {name}" not in PAGE
    ] == []


def test_an_update_takes_as_many_bytes_as_the_page_states() -> None:
    update = an_update(plant(FORMAL))
    nodes, width = update.arrays["weight"].shape
    inside = sum(array.nbytes for array in update.arrays.values())
    assert "takes `8 × (features + 1)` bytes for each node and less than 1 KiB for the rest" in PAGE
    assert inside == 8 * (width + 1) * nodes
    assert (
        len(update.encode())
        - inside
        + sum(len(name) + len(value) for name, value in update.headers())
        < 1024
    )


def test_every_message_in_the_table_of_errors_is_in_the_code() -> None:
    assert len(QUOTES) > 40
    of_libraries = {
        "TopicAuthorizationFailedError",
        "MessageSizeTooLargeError",
        "no locator available",
    }
    texts = texts_in_code() | of_libraries
    assert [
        quoted for quoted in QUOTES if not any(is_quoted_by(quoted, text) for text in texts)
    ] == []


@pytest.mark.parametrize("error", ["InvalidState", "LeaseHeld", "LeaseUncertain"])
def test_every_error_about_saved_state_is_in_the_table(error: str) -> None:
    folders = (
        "shoal/runtime/checkpoint.py",
        "client_nodes/node.py",
        "server_node/node.py",
        "server_node/lease.py",
    )
    texts = {text for folder in folders for text in texts_raised(HERE / folder, error)}
    assert texts or error != "InvalidState"
    assert [
        text for text in texts if not any(is_quoted_by(quoted, text) for quoted in QUOTES)
    ] == []


def test_every_reason_of_a_broker_is_in_the_table() -> None:
    reasons = {*_PERMANENT.values(), *_TEMPORARY.values()}
    assert [
        text for text in reasons if not any(is_quoted_by(quoted, text) for quoted in QUOTES)
    ] == []


def test_every_message_in_the_table_of_mqtt_errors_is_in_the_code() -> None:
    errors = (HOW_TO / "mqtt.md").read_text(encoding="utf-8").partition("## Errors")[2]
    quotes = quotes_in(errors)
    texts = texts_in_code()
    assert len(quotes) > 5
    assert [
        quoted for quoted in quotes if not any(is_quoted_by(quoted, text) for text in texts)
    ] == []


def is_quoted_by(quoted: str, text: str) -> bool:
    """Whether the table means this message; it has `...` for what changes."""
    return all(part in text for part in parts_of(quoted))


@cache
def parts_of(quoted: str) -> tuple[str, ...]:
    """What stays the same in a message, whatever it is about."""
    event = re.match(r"(\w+) \w+=", quoted)
    if event:
        return (event[1],)
    return tuple(part.strip(" ;:()") for part in quoted.split("..."))


def texts_raised(file: Path, error: str) -> Iterator[str]:
    """The texts with which an error is raised in a file; `...` for what is put in."""
    for node in nodes_of(file):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == error:
            for argument in node.args:
                yield text_of(argument)


@cache
def texts_in_code() -> set[str]:
    """Every text in the code, put-in values as `...`."""
    folders = ("shoal", "producers", "client_nodes", "server_node")
    files = [file for folder in folders for file in (HERE / folder).rglob("*.py")]
    return {
        text_of(node)
        for file in files
        for node in nodes_of(file)
        if isinstance(node, ast.JoinedStr | ast.Constant)
    }


def text_of(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) for value in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "..."
