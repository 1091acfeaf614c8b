"""What a reader feels in every line: its length, one assignment a statement, and variables named by
nouns."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.test_architecture import FILES, PROJECT, nodes_of, place

PROGRAMS = sorted(
    [*FILES, *(PROJECT / "benchmarks").rglob("*.py"), *(PROJECT / "examples").rglob("*.py")]
)
WITHOUT_A_NOUN = {"one", "each"}
"""names of loop variables that say nothing of what is gone through"""
LINE_MAX = 100


def is_swap(node: ast.Assign, target: ast.Tuple, value: ast.Tuple) -> bool:
    """Whether the same places stand on both sides: `a, b = b, a` needs one statement."""
    return sorted(map(ast.unparse, target.elts)) == sorted(map(ast.unparse, value.elts))


def assignments_of_several(path: Path) -> Iterator[str]:
    """Statements that assign two values to two names."""
    for node in nodes_of(path):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
            continue
        for target in node.targets:
            if isinstance(target, ast.Tuple) and not is_swap(node, target, node.value):
                yield place(path, node)


def loop_variables(path: Path) -> Iterator[ast.Name]:
    """The variables of loops and comprehensions."""
    for node in nodes_of(path):
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            yield from (name for name in ast.walk(node.target) if isinstance(name, ast.Name))


def files_of_tests_with_such_loops() -> Iterator[Path]:
    """The files of tests whose text may have such a variable: to parse all takes seconds."""
    nameless = "|".join(sorted(WITHOUT_A_NOUN))
    loop = re.compile(rf"\bfor\s[\w\s,()*]*\b({nameless})\b[\w\s,()*]*\sin\s")
    for path in sorted((PROJECT / "tests").rglob("*.py")):
        if loop.search(path.read_text(encoding="utf-8")):
            yield path


def test_a_statement_assigns_one_value() -> None:
    assert [found for path in PROGRAMS for found in assignments_of_several(path)] == []


def test_no_literal_is_unpacked_into_another() -> None:
    # `[*(1, 2), 3]` is a list packed into lines, where the formatter gives an item a line.
    assert [
        place(path, node)
        for path in PROGRAMS
        for node in nodes_of(path)
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List | ast.Set)
    ] == []


def test_a_loop_variable_says_what_it_is() -> None:
    nameless = {
        place(path, name)
        for path in [*PROGRAMS, *files_of_tests_with_such_loops()]
        for name in loop_variables(path)
        if name.id in WITHOUT_A_NOUN
    }
    assert nameless == set()


def test_no_line_is_longer_than_100_characters_with_what_is_said_to_lint_and_types() -> None:
    # The formatter does not count such a comment, a reader does.
    long_lines = [
        f"{path.relative_to(PROJECT)}:{number}"
        for path in [*PROGRAMS, *(PROJECT / "tests").rglob("*.py")]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > LINE_MAX
    ]
    assert long_lines == []
