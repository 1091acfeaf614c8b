"""What the tests of kernels need in common."""

from __future__ import annotations

import importlib.util

import pytest

from tests.conftest import without


@pytest.fixture
def numba() -> None:
    """For tests of the compiled form."""
    if importlib.util.find_spec("numba") is None:
        without("numba", "it is not installed")
