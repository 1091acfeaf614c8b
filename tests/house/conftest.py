"""Fixtures of the tests of a whole federation."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: syncs cost nothing, and a killed process loses no more than on a disk."""
    in_memory = Path("/dev/shm")
    if not os.access(in_memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=in_memory, prefix="shoal-test-") as folder:
        yield Path(folder)
