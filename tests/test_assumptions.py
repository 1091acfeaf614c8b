"""The pages of assumptions and of proofs name tests and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "assumptions.md"
SAME = "the same test"
"""of the row before"""
ROWS_MIN = 20
PROOFS = ROOT / "docs" / "explanation" / "proofs.md"
NAMED = re.compile(r"`((?:\w+/)+\w+\.py)::([\w.]+)`")
"""a file, and a function, a class or a method in it"""
PROOFS_MIN = 8


def names_in(path: Path) -> set[str]:
    """Functions, classes and methods of a module."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            names |= {f"{node.name}.{method.name}" for method in methods}
    return names


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


def test_each_proof_names_code_and_tests_that_exist() -> None:
    text = PROOFS.read_text(encoding="utf-8")
    paragraphs = text.split("\n\n")
    covered = [part for part in paragraphs if part.startswith("Covered by: ")]
    shown = [part for part in paragraphs if part.startswith("Shown by: ")]
    assert len(covered) == len(shown) >= PROOFS_MIN, "each proof has both"
    for part in covered + shown:
        is_of_tests = part.startswith("Shown")
        named = NAMED.findall(part)
        assert len(named) == part.count("::"), part
        for file, name in named:
            assert file.startswith("tests/") == is_of_tests, file
            assert name in names_in(ROOT / file), f"{file} has no {name}"
