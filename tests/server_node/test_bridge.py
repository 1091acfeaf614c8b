"""The bridge of a region to its upstream federation, while one of the two logs cannot be opened."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from shoal.config.settings import Config, load_config
from shoal.config.upstream import load_upstream
from shoal.errors import LogFolderMissing, ShoalError
from shoal.server_node.regions import bridge
from shoal.server_node.regions.bridge import BridgeThread
from tests.house.processes import wait_until
from tests.house.region_federations import UPSTREAM, WORLD, file_of, write_file


@pytest.fixture
def region(tmp_path: Path) -> Config:
    """The file of a region whose server has never run."""
    write_file(tmp_path, WORLD)
    return load_config(write_file(tmp_path, "north", UPSTREAM.format(above=WORLD, publish_s=1)))


def test_an_upstream_log_that_is_not_there_for_long_is_an_error_with_advice(
    region: Config,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bridge, "RETRY_MAX_S", 2 * bridge.RETRY_FIRST_S)
    thread = BridgeThread(region, load_upstream(region))
    shutil.rmtree(file_of(tmp_path, WORLD).parent)

    def events() -> list[str]:
        return [record.getMessage() for record in caplog.records]

    with caplog.at_level(logging.WARNING, "shoal"), thread.running():
        wait_until(lambda: "upstream_still_unavailable" in events())
        assert events()[0] == "upstream_unavailable", "servers may start in any order"
        thread.check()
    assert caplog.records[-1].levelno == logging.ERROR
    error = caplog.records[-1].__dict__["fields"]["error"]
    assert "world/federation.db" in error
    assert "[log] address in the upstream file" in error


def test_a_log_of_the_region_itself_that_is_not_there_ends_the_bridge(
    region: Config, tmp_path: Path
) -> None:
    elsewhere = region.log.model_copy(
        update={"address": f"sqlite:{tmp_path}/nowhere/federation.db"}
    )
    thread = BridgeThread(region.model_copy(update={"log": elsewhere}), load_upstream(region))

    def found() -> ShoalError | None:
        try:
            thread.check()
        except ShoalError as error:
            return error
        return None

    with thread.running():
        wait_until(lambda: found() is not None)
    assert isinstance(found(), LogFolderMissing)
