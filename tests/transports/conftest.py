from __future__ import annotations

from pathlib import Path

import pytest

from tests.transports.embedded import Clock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def clock() -> Clock:
    return Clock()
