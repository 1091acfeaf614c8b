"""Engines for the tests of replays. Spark is started once for all of them: its start takes most of
their time."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.onebox.replay.engine import Engine, LocalEngine
from shoal.onebox.replay.run import open_engine
from tests.conftest import without
from tests.replay.plant_files import plan_of, replayed, write_files


@pytest.fixture(scope="session")
def spark_engine() -> Iterator[Engine]:
    """Spark with two workers on this machine."""
    if importlib.util.find_spec("pyspark") is None:
        without("Spark", "it is not installed; pip install '.[spark]'")
    if shutil.which("java") is None:
        without("Spark", "it needs Java 17; on Debian: apt install openjdk-17-jre-headless")
    engine = open_engine("spark", 2)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def two_workers() -> Iterator[Engine]:
    """Two worker processes."""
    engine = LocalEngine(2)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Parquet files of the readings of nine clients."""
    return write_files(tmp_path_factory.mktemp("days"))


@pytest.fixture(scope="session")
def in_this_process(tmp_path_factory: pytest.TempPathFactory, files: list[Path]) -> dict[str, Any]:
    """The outcome of a replay of them in this process, in one part."""
    return replayed(plan_of(tmp_path_factory.mktemp("one"), files, parts=1), LocalEngine(1))
