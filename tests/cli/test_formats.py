"""`shoal --version --formats` lists every format that is kept, with its number."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner

from shoal import __version__
from shoal.cli.formats import FORMATS, Format
from shoal.cli.main import shoal

PROJECT = Path(__file__).parent.parent.parent
FOLDERS = ("shoal", "producers", "client_nodes", "helper_node", "server_node", "onebox")
NUMBER = re.compile(r"^_?([A-Z]+_)*(STATE_VERSION|SCHEMA_VERSION|FORMAT|SCHEMA|VERSION)$")
NOT_KEPT = {
    # Numbers of others: ONNX's, and that of the interface for spreadsheets.
    "shoal.server_node.outputs.onnx_model:IR_VERSION",
}


def modules() -> Iterator[tuple[str, Path]]:
    """Name and file of every module."""
    for folder in FOLDERS:
        for path in sorted((PROJECT / folder).rglob("*.py")):
            parts = path.relative_to(PROJECT).with_suffix("").parts
            # The links in `shoal` lead to the other folders.
            if folder == "shoal" and len(parts) > 1 and parts[1] in FOLDERS:
                continue
            yield ".".join(parts if folder == "shoal" else ("shoal", *parts)), path


def is_number(value: ast.expr | None) -> bool:
    if not isinstance(value, ast.Constant) or isinstance(value.value, bool):
        return False
    return isinstance(value.value, int) or (
        isinstance(value.value, str) and value.value.isdecimal()
    )


def numbers_in(path: Path) -> Iterator[str]:
    """The constants of a module that number a format, and the versions of its saved states."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_number(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and NUMBER.match(target.id):
                    yield target.id
        if isinstance(node, ast.ClassDef):
            for entry in node.body:
                if (
                    isinstance(entry, ast.AnnAssign)
                    and ast.unparse(entry.target) == "version"
                    and ast.unparse(entry.annotation).startswith("ClassVar")
                    and is_number(entry.value)
                ):
                    yield f"{node.name}.version"


def listed() -> list[Format]:
    return [entry for formats in FORMATS.values() for entry in formats]


def test_no_format_is_missing() -> None:
    found = {f"{module}:{name}" for module, path in modules() for name in numbers_in(path)}
    assert len(found) > 25, "the search finds them"
    assert {entry.place for entry in listed()} == found - NOT_KEPT


def test_the_table_is_printed_with_the_version() -> None:
    ended = CliRunner().invoke(shoal, ["--version", "--formats"])
    assert ended.exit_code == 0
    first, *lines = ended.output.splitlines()
    assert first == f"shoal, version {__version__}"
    for entry in listed():
        assert f"  {entry.number:>4}  {entry.kept}" in lines
    assert CliRunner().invoke(shoal, ["--version"]).output.splitlines() == [first]
