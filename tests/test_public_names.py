"""What `import shoal` offers: every public name, and nothing loaded before it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import shoal


def printed_by(program: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


def test_importing_shoal_loads_no_other_module_of_it_and_no_numpy() -> None:
    program = "import sys; before = set(sys.modules); import shoal; print(*sorted(set(sys.modules) - before))"
    loaded = [name for name in printed_by(program) if name.split(".")[0] not in sys.stdlib_module_names]
    assert loaded == ["shoal"]


def test_every_public_name_is_there_in_a_fresh_process() -> None:
    program = "import shoal; from shoal import *; print(*(name for name in shoal.__all__ if name in globals()))"
    assert printed_by(program) == shoal.__all__
    assert set(dir(shoal)) == set(shoal.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'shoal' has no attribute 'FCAK'"):
        _ = shoal.FCAK  # type: ignore[attr-defined]  # that is the point


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(str(shoal.__file__)).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported | {"__version__"} == set(shoal.__all__)
