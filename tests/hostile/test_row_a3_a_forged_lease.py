"""Row A3: a forged lease displaces a server for as long as the server's own setting says, on both
logs."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path

import pytest

from shoal.config.contract import parse_contract
from shoal.config.sections import ServerSettings
from shoal.config.settings import Config, LogSettings
from shoal.errors import LeaseUncertain
from shoal.protocol.lease import LEASE_KEY, Lease
from shoal.protocol.topics import ensure_topics
from shoal.server_node.lease import MISSED_RENEWALS_MAX, LeaseHolder
from shoal.transports import open_log
from tests.server_node.rounds_harness import FEATURES
from tests.small_plant import Clock

RENEW_S = ServerSettings().lease_renew_s
FORGED_S = 86_400.0


@pytest.fixture(params=["sqlite", "kafka"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    address = f"sqlite:{tmp_path / 'federation.db'}"
    if request.param == "kafka":
        address = f"kafka://{request.getfixturevalue('kafka_bootstrap')}"
    tables = {
        "federation": {"name": f"plant-{uuid.uuid4().hex[:8]}"},
        "features": FEATURES,
        "privacy": {"mode": "off"},
    }
    contract = parse_contract({**tables, "models": [{"name": "clusters", "algorithm": "fcac"}]})
    return Config(contract=contract, log=LogSettings(address=address))


def test_a_displaced_server_returns_once_it_has_seen_no_renewal_for_its_own_time(
    config: Config,
) -> None:
    name = config.contract.federation
    clock = Clock()
    holder = LeaseHolder(config, False, clock)
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        forgery = Lease(name, "nobody", "life", 2, FORGED_S, "process 1 on attic")
        expected = pytest.raises(LeaseUncertain, match="returns if that one does not renew")
        with expected as displaced, holder.held(log, "one"):
            log.publish(
                config.contract.snapshots_topic, forgery.encode(), LEASE_KEY, Lease.headers()
            )
            log.flush()
            clock.now += RENEW_S
            holder.renew()
        assert displaced.value.retriable, "the process goes on"
        with (
            pytest.raises(LeaseUncertain, match="whether it still renews it"),
            holder.held(log, "one"),
        ):
            pass
        clock.now += MISSED_RENEWALS_MAX * RENEW_S
        assert MISSED_RENEWALS_MAX * RENEW_S < FORGED_S
        with holder.held(log, "one"):
            clock.now += RENEW_S
            holder.renew()
