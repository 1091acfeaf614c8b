"""Row F9: snapshots forged in an upstream federation's log keep no region from the true ones."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.algorithms.density_tree import DENSITY_TREE
from shoal.config.resolved import resolve
from shoal.config.sections import ServerSettings
from shoal.config.settings import load_config
from shoal.config.upstream import load_upstream
from shoal.protocol.messages import Snapshot
from shoal.runtime.service import resumed
from shoal.server_node.regions.bridge import Bridge, open_bridge
from shoal.server_node.regions.following import FollowingModel
from shoal.transports import open_log
from shoal.transports.base import Log
from tests.house.region_federations import UPSTREAM, write_file
from tests.small_plant import snapshot_with

FAR = 999_999
NOW = 1e9
YEAR_9999 = 2.5e11


class FalseUpstream:
    """The log of an upstream federation, into which anything can be written, and a region that
    follows it."""

    def __init__(self, bridge: Bridge, log: Log, true: Snapshot, topic: str) -> None:
        self.now = NOW
        self._bridge = bridge
        self._log = log
        self._true = true
        self._topic = topic

    def publish(self, version: int, made_at: float | None = None) -> None:
        self.now += 1.0
        one = replace(self._true, version=version, made_at=self.now if made_at is None else made_at)
        self._log.publish(self._topic, one.encode(), b"cells", Snapshot.headers())
        self._log.flush()
        while self._bridge.step():
            pass


@pytest.fixture(params=["sqlite", "kafka"])
def upstream(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[FalseUpstream, FollowingModel]]:
    above = f"world-{uuid.uuid4().hex}"
    file = write_file(tmp_path, above, models=["cells"])
    if request.param == "kafka":
        address = f"kafka://{request.getfixturevalue('kafka_bootstrap')}"
        file.write_text(file.read_text().replace("sqlite:federation.db", address), encoding="utf-8")
    region = load_config(
        write_file(tmp_path, "north", UPSTREAM.format(above=above, publish_s=1), models=["cells"])
    )
    world = load_upstream(region)
    assert world is not None
    contract = world.config.contract
    resolved = resolve(contract).models["cells"]
    model = FollowingModel(
        resolve(region.contract), region.resolved.models["cells"], ServerSettings()
    )
    arrays = DENSITY_TREE.server(resolved.options, 2).snapshot()
    true = snapshot_with(contract, contract.models[0], arrays, DENSITY_TREE.summary(arrays))
    for folder in (tmp_path / above, tmp_path / "north" / "server"):
        folder.mkdir(parents=True, exist_ok=True)
    with (
        closing(open_log(world.config.log)) as log,
        closing(open_log(region.log)),
        resumed(open_bridge(region, world.config, model.follow)) as bridge,
    ):
        found = FalseUpstream(bridge, log, true, contract.snapshots_topic)
        bridge._clock = lambda: found.now
        for version in (1, 2, 3):
            found.publish(version)
        assert followed(model) == 3
        yield found, model


def followed(model: FollowingModel) -> int:
    """The version that a region follows."""
    return model._half.followed.version


def test_a_leap_of_versions_is_not_followed(upstream: tuple[FalseUpstream, FollowingModel]) -> None:
    log, region = upstream
    log.publish(3 + FAR, YEAR_9999)
    assert followed(region) == 3
    log.publish(4)
    assert followed(region) == 4


def test_after_two_forged_ones_the_true_ones_count_again(
    upstream: tuple[FalseUpstream, FollowingModel],
) -> None:
    log, region = upstream
    log.publish(3 + FAR, YEAR_9999)
    log.publish(4 + FAR, YEAR_9999)
    log.publish(4)
    log.publish(5)
    assert followed(region) == 5


def test_an_old_one_published_again_is_not_followed(
    upstream: tuple[FalseUpstream, FollowingModel],
) -> None:
    log, region = upstream
    for version in range(4, 4 + 70):
        log.publish(version)
    log.publish(1, YEAR_9999)
    assert followed(region) == 73
