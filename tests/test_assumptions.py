"""The page of assumptions names tests that exist, one for each row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "assumptions.md"
SAME = "the same test"
"""of the row before"""
ROWS_MIN = 20


def test_each_assumption_has_a_test_that_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row[0].strip() not in ("assumption", "---")]
    assert len(rows) >= ROWS_MIN, "the tables were read"
    for assumption, breaks, shown in rows:
        assert breaks.strip(), assumption
        if shown.strip() == SAME:
            continue
        name = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", shown.strip())
        assert name, f"{assumption}: {shown}"
        module = ast.parse((ROOT / name[1]).read_text(encoding="utf-8"))
        functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
        assert name[2] in functions, f"{assumption}: {name[1]} has no {name[2]}"
