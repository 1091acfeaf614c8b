"""The page of the protocol of masked counts has the labels, limits and reasons of the code."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from shoal.helper_node import model_sums
from shoal.helper_node.model_sums import ENTRIES_MAX
from shoal.privacy import masks
from shoal.privacy.gaussian import TABLE_BITS
from shoal.protocol import masked
from shoal.protocol.masked import BATCH_BYTES, NONCE_BYTES, PLAN_BYTES
from tests.masked_vectors import FOLDER, GROUPS

HERE = Path(__file__).parent.parent
PAGE = (HERE / "docs" / "reference" / "masked-protocol.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())


def labels_in(module: object) -> set[str]:
    """The labels that keep one use of a hash or key apart from another: bytes with "shoal"."""
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]  # a module
    labels = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes):
            labels.add(node.value.decode("latin1"))
    return {label for label in labels if label.startswith("shoal")}


def refusals() -> set[str]:
    """The reasons for which a helper refuses a batch, as the page writes them."""
    reasons = set()
    for node in ast.walk(ast.parse(inspect.getsource(model_sums))):
        is_refusal = isinstance(node, ast.Call) and ast.unparse(node.func) == "Refused"
        if is_refusal and isinstance(node, ast.Call):
            reason = ast.unparse(node.args[0]).strip("f'")
            reasons.add(reason.replace("{batch_min}", "`batch_min`"))
    return reasons


def test_the_labels_of_all_hashes_and_keys_that_a_helper_needs_are_on_the_page() -> None:
    # What a client makes for itself alone: how, is its own affair.
    labels = labels_in(masks) | labels_in(masked)
    of_client = {"shoal masks 1"}
    assert len(labels - of_client) >= 7, "labels were found"
    assert {label for label in labels - of_client if f'"{label}"' not in PAGE} == set()


def test_the_refusals_of_a_helper_are_the_rows_of_the_page() -> None:
    table = PAGE.split("| refused | why |\n|---|---|\n")[1].split("\n\n")[0]
    rows = {row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()}
    assert rows == refusals()
    vectors = (FOLDER / "refusals.json").read_text(encoding="utf-8")
    for reason in rows:
        assert reason.replace("`batch_min`", "3") in vectors, "each has a test vector"


@pytest.mark.parametrize(
    "text",
    [
        f"plan ({PLAN_BYTES} bytes) + nonce ({NONCE_BYTES} bytes)",
        f"{ENTRIES_MAX} of a model",
        f"upper {TABLE_BITS} bits",
        f"a *pair key* of {masks.SECRET_BYTES} bytes",
        f"public key of {2 * masks.PUBLIC_BYTES} bytes",
    ],
)
def test_numbers_are_those_of_the_code(text: str) -> None:
    assert text in TEXT
    assert BATCH_BYTES == 32, "SHA-256"


def test_the_groups_of_vectors_that_the_page_names_exist() -> None:
    groups = {name for groups in GROUPS.values() for name in groups}
    assert set(re.findall(r"[Gg]roup `(\w+)`", PAGE)) <= groups
