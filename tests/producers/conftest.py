"""The file that most tests of the pump replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.producers.pumping import ROWS
from tests.producers.running_producer import csv_of, plain_rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return csv_of(tmp_path / "a.csv", plain_rows(ROWS))
