"""Every public class of the package has an example in its docstring, and the examples run as they
are printed."""

from __future__ import annotations

import doctest
import inspect
from types import ModuleType

import pytest

import shoal
import shoal.algorithms.options

CLASSES = {name: value for name in shoal.__all__ if inspect.isclass(value := getattr(shoal, name))}
"""name -> class, of all that `shoal` exports"""
OPTIONS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


def examples_of(value: type, module: ModuleType | None = None) -> list[doctest.DocTest]:
    """The examples in the docstring of a class itself."""
    found = doctest.DocTestFinder(recurse=False).find(value, module=module)
    return [test for test in found if test.examples]


def test_the_estimators_and_messages_are_among_the_classes() -> None:
    assert {"FCAC", "FederatedKMeans", "Contract", "Snapshot"} <= set(CLASSES)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_public_class_has_an_example_that_runs(name: str) -> None:
    tests = examples_of(CLASSES[name])
    assert tests, f"the docstring of shoal.{name} has no example"
    for test in tests:
        run(test)


def test_the_base_of_options_has_an_example_that_runs() -> None:
    tests = doctest.DocTestFinder(recurse=False).find(
        shoal.algorithms.options.AlgorithmOptions, globs=dict(vars(shoal.algorithms.options))
    )
    assert any(test.examples for test in tests)
    for test in tests:
        run(test)


def run(test: doctest.DocTest) -> None:
    """Run one docstring's examples; what differs is in the message of the failure."""
    printed: list[str] = []
    results = doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=printed.append)
    assert not results.failed, "".join(printed)
