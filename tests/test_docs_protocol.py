"""The page on the protocol agrees with the declarations: messages, topics, arrays, reasons, limits.
To make its tables anew: `python -m tests.test_docs_protocol`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from shoal.config.limits import MESSAGE_BYTES_MAX, UPDATE_BYTES_MAX
from shoal.kernels.constants import COUNT_MAX
from shoal.protocol.codec import ARRAY, DEPTH_MAX, DIMENSIONS_MAX, DTYPES
from shoal.protocol.conflicts import CONFLICTS_KEY, ConflictList
from shoal.protocol.history import BINS_KEPT
from shoal.protocol.lease import LEASE_KEY
from shoal.protocol.messages import CHUNKS_MAX, MESSAGE_ITEMS_MAX, VERSION, Snapshot, Wake
from shoal.protocol.published_contract import CONTRACT_KEY
from shoal.protocol.quarantine import LIST_KEY, QuarantineList
from shoal.protocol.regions import RegionUpdate
from shoal.protocol.rejected import REASONS
from shoal.protocol.signatures import HEADER
from tests.protocol_tables import ENTRIES, MESSAGES, arrays_table, message_table, topics_table
from tests.small_plant import plant

HERE = Path(__file__).parent.parent
FILE = HERE / "docs" / "reference" / "protocol.md"
PAGE = FILE.read_text(encoding="utf-8")
PROJECT = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OWN = sorted(PROJECT["entry-points"]["shoal.algorithms"])


@pytest.mark.parametrize("form", [*MESSAGES, *ENTRIES], ids=lambda form: form.__name__)
def test_the_table_of_each_message_has_its_fields_types_and_meanings(form: type) -> None:
    assert message_table(form) in PAGE
    assert not [line for line in message_table(form).splitlines() if "|  |" in line], (
        "every field has a meaning"
    )


@pytest.mark.parametrize("form", MESSAGES, ids=lambda form: form.__name__)
def test_each_message_has_a_section_under_its_type(form: type[Wake]) -> None:
    assert f"### `{form.TYPE}`" in PAGE


def test_the_table_of_topics_and_that_of_arrays_agree_with_the_declarations() -> None:
    assert topics_table(plant()) in PAGE
    assert arrays_table(OWN) in PAGE


def test_keys_headers_limits_and_reasons_are_those_of_the_code() -> None:
    text = PAGE.replace("\n", " ")
    for key in (LEASE_KEY, LIST_KEY, CONFLICTS_KEY, CONTRACT_KEY):
        assert f"`{key.decode()}`" in text
    assert f"`v`: `{VERSION}`" in text
    assert f"`{HEADER}`" in text
    assert f"extension type {ARRAY}" in text
    assert all(f"`{form.replace('|', '')}`" in text for form in DTYPES)
    for limit in (
        MESSAGE_BYTES_MAX,
        UPDATE_BYTES_MAX,
        MESSAGE_ITEMS_MAX,
        CHUNKS_MAX,
        DEPTH_MAX,
        DIMENSIONS_MAX,
    ):
        assert f" {limit} " in text
    assert f"2^{COUNT_MAX.bit_length() - 1}" in text
    assert all(f"`{reason}`" in text for reason in REASONS)
    assert all(f"{kept} bins of {width} s" in text for width, kept in BINS_KEPT.items())


def rewritten(page: str) -> str:
    """The page with its tables of topics, arrays and reasons, and those of messages, made anew."""
    reasons = "\n".join(f"| `{reason}` | it {why} |" for reason, why in REASONS.items())
    tables = [
        topics_table(plant()),
        arrays_table(OWN),
        f"| reason | the message |\n|---|---|\n{reasons}",
    ]
    for table in tables:
        before = re.compile(rf"^{re.escape(table.splitlines()[0])}\n(\|.*\n)+", re.MULTILINE)
        # The default of the argument binds the table of this turn.
        page = before.sub(lambda _, table=table: f"{table}\n", page)  # type: ignore[misc]  # bound
    messages = iter(message_table(form) for form in in_order())
    return re.sub(
        r"^\| field \| type \| meaning \|\n(\|.*\n)+",
        lambda _: f"{next(messages)}\n",
        page,
        flags=re.MULTILINE,
    )


def in_order() -> list[type]:
    """Messages and entries as the page has them: an entry follows the message that lists it."""
    lists = (RegionUpdate, Snapshot, Snapshot, QuarantineList, ConflictList, ConflictList)
    pairs = list(zip(lists, ENTRIES, strict=True))
    return [
        described
        for form in MESSAGES
        for described in (form, *(entry for lister, entry in pairs if lister is form))
    ]


def test_tables_made_anew_are_those_of_the_page() -> None:
    assert rewritten(PAGE) == PAGE


if __name__ == "__main__":
    FILE.write_text(rewritten(PAGE), encoding="utf-8")
