"""The habits of a tree of Python files, counted in its syntax tree: a row of a table for each.

    python -m tests.habits_table                        # the folders that a service installs
    python -m tests.habits_table TREE FOLDER ...        # other ones, as of another version

`TREE` is the root of a checkout. Counts are per 1 000 lines, comments per 100. `test_habits` holds
the packages to the first rows; the others have no limit, as a conditional expression or a
comprehension may well be the clearest form.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.test_architecture import PROJECT
from tests.test_habits import LINE_MAX, WITHOUT_A_NOUN, is_swap

INSTALLED: Final = ("shoal", "producers", "client_nodes", "helper_node", "server_node", "onebox")
NO_REASON: Final = ("noqa", "type:", "SPDX", "Copyright", "!")
"""what a comment begins with that tells a tool, or a lawyer, something"""
COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LOOPS: Final = (ast.For, ast.AsyncFor, ast.comprehension)


def files_of(tree: Path, folders: Iterable[str]) -> list[Path]:
    """The Python files of the folders, each once: the packages are also linked into `shoal/`."""
    return [
        path
        for folder in folders
        for path in sorted((tree / folder).rglob("*.py"))
        if path.resolve() == path
    ]


def counted(path: Path) -> Counter[str]:
    """How often a file has each habit, and its lines."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    counts = Counter({"lines": len(lines)})
    counts["long lines"] = sum(len(line) > LINE_MAX for line in lines)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign):
            counts["tuple assignments"] += _assigns_several(node)
        elif isinstance(node, ast.IfExp):
            counts["conditional expressions"] += 1
        elif isinstance(node, COMPREHENSIONS):
            counts["comprehensions"] += 1
        if isinstance(node, LOOPS):
            names = [name.id for name in ast.walk(node.target) if isinstance(name, ast.Name)]
            counts["loop variables"] += len(names)
            counts["without a noun"] += sum(name in WITHOUT_A_NOUN for name in names)
    counts["comments"] = sum(
        token.type == tokenize.COMMENT and not token.string.lstrip("# ").startswith(NO_REASON)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )
    return counts


def _assigns_several(node: ast.Assign) -> int:
    """The targets to which a statement assigns several values; swaps are not counted."""
    if not isinstance(node.value, ast.Tuple):
        return 0
    targets = [target for target in node.targets if isinstance(target, ast.Tuple)]
    return sum(not is_swap(node, target, node.value) for target in targets)


def table(counts: Counter[str]) -> str:
    """The table for people."""
    thousands = counts["lines"] / 1000
    rows = [
        f"{counts[name] / thousands:8.1f}  {name} per 1 000 lines"
        for name in ("tuple assignments", "conditional expressions", "comprehensions")
    ]
    rows.append(f"{counts['long lines']:8}  lines over {LINE_MAX} characters")
    names = ", ".join(sorted(WITHOUT_A_NOUN))
    rows.append(
        f"{counts['without a noun']:8}  loop variables {names}, of {counts['loop variables']}"
    )
    lines = counts["lines"]
    rows.append(f"{counts['comments'] / lines:8.1%}  comments, of {lines} lines")
    return "\n".join(rows)


def main(arguments: Sequence[str]) -> None:
    """Print the table of a tree."""
    tree = PROJECT
    folders: Sequence[str] = INSTALLED
    if arguments:
        tree = Path(arguments[0]).resolve()
        folders = arguments[1:] or INSTALLED
    total: Counter[str] = Counter()
    for path in files_of(tree, folders):
        total += counted(path)
    print(table(total))


if __name__ == "__main__":
    main(sys.argv[1:])
