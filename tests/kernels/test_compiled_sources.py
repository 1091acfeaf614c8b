"""What the sources of the compiled kernels have in common, read from their syntax."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal.kernels.compiled
from shoal.kernels.compiled.kernels import CONSTANTS, source_files

FOLDER = Path(shoal.kernels.compiled.__file__).parent
DIVISIONS = (ast.Div, ast.FloorDiv, ast.Mod)


def divisors(function: ast.FunctionDef) -> Iterator[ast.expr]:
    for part in ast.walk(function):
        if isinstance(part, ast.BinOp) and isinstance(part.op, DIVISIONS):
            yield part.right
        elif isinstance(part, ast.AugAssign) and isinstance(part.op, DIVISIONS):
            yield part.value


def is_constant(divisor: ast.expr) -> bool:
    return isinstance(divisor, ast.Constant) or (
        isinstance(divisor, ast.Name) and divisor.id.isupper()
    )


def dividing(source: str) -> dict[str, bool]:
    """The functions for Numba that divide by a variable, and whether they say that the result may
    be infinite."""
    found = {}
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef) and not all(map(is_constant, divisors(function))):
            decorators = [
                decorator
                for decorator in map(ast.unparse, function.decorator_list)
                if decorator.startswith("njit")
            ]
            for decorator in decorators:
                found[function.name] = "error_model='numpy'" in decorator
    return found


def imported(source: str) -> set[str]:
    """The modules that a file imports from."""
    parts = list(ast.walk(ast.parse(source)))
    named = {name.name for part in parts if isinstance(part, ast.Import) for name in part.names}
    return named | {
        part.module for part in parts if isinstance(part, ast.ImportFrom) and part.module
    }


def test_the_digest_is_of_everything_that_compiled_functions_are_made_from() -> None:
    assert set(FOLDER.glob("*.py")) < set(source_files())
    outside = set[str]()
    for file in FOLDER.glob("*.py"):
        modules = imported(file.read_text(encoding="utf-8"))
        # Files without Numba have nothing that is compiled.
        if any(module.split(".")[0] == "numba" for module in modules):
            outside |= {module for module in modules if module.startswith("shoal.")}
    outside = {module for module in outside if not module.startswith("shoal.kernels.compiled")}
    assert outside == {module.__name__ for module in CONSTANTS}
    assert {Path(str(module.__file__)) for module in CONSTANTS} == set(source_files()) - set(
        FOLDER.glob("*.py")
    )


@pytest.mark.parametrize("name", sorted(file.name for file in FOLDER.glob("*.py")))
def test_what_divides_says_itself_that_the_result_may_be_infinite(name: str) -> None:
    # Undeclared, it takes the error model of the first function that is compiled with it, and then
    # may raise.
    assert all(dividing((FOLDER / name).read_text(encoding="utf-8")).values())


def test_functions_that_divide_are_found() -> None:
    source = (
        "@njit\ndef one(a):\n    return 1 / a\n\n@njit(error_model='numpy')\ndef two(a):\n    a"
        " %= a\n"
    )
    assert dividing(source) == {"one": False, "two": True}
    assert dividing((FOLDER / "screen.py").read_text(encoding="utf-8"))["slope"]
