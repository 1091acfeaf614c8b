"""Every golden file holds in both forms of the kernels."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def in_both_forms(form: str) -> None:
    """Run the test with NumPy, and with the compiled kernels."""
