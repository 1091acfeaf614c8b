"""Row 16: on a busy machine a step takes long; the lease is renewed, the page answers and what it
shows goes on."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from shoal.config.settings import Config, load_config
from shoal.protocol.messages import Update
from shoal.protocol.topics import ensure_topics
from shoal.transports import open_log
from tests.hostile.served_page import started
from tests.house.processes import Process, killed_on_exit, wait_until
from tests.house.small_federation import write_federation
from tests.small_plant import an_update

UPDATES = 30
UPDATE_S = 0.4
SLOW_SERVER = str(Path(__file__).parent / "slow_server.py")


@pytest.fixture(params=["sqlite", "kafka"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A federation file on each log. Its server may miss renewals of its lease for a second."""
    address = "sqlite:federation.db"
    if request.param == "kafka":
        address = f"kafka://{request.getfixturevalue('kafka_bootstrap')}"
    file = write_federation(tmp_path, address=address, batch_updates_max=200)
    file.write_text(
        file.read_text(encoding="utf-8") + "lease_renew_s = 0.25\nstep_s = 0.5\n", encoding="utf-8"
    )
    return file


def publish_updates(config: Config) -> None:
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        for sequence in range(1, UPDATES + 1):
            update = an_update(config.contract, sequence=sequence)
            log.publish(
                config.contract.updates_topic,
                update.encode(),
                config.contract.update_key(update.model),
                Update.headers(),
            )
        log.flush()


def test_a_server_whose_updates_take_long_keeps_its_lease_and_shows_each_step(file: Path) -> None:
    config = load_config(file)
    publish_updates(config)
    with started(file, [SLOW_SERVER, str(UPDATE_S)]) as page:
        lags = set()

        def read() -> bool:
            status = json.loads(page.request("/v1/status").body)
            lags.add(status["lag_records"])
            return bool(status["ready"])

        wait_until(lambda: len(page.events("lease_acquired")) == 1)
        other_file = file.with_name("other.toml")
        other_file.write_text(
            file.read_text(encoding="utf-8").replace('folder = "server"', 'folder = "other"'),
            encoding="utf-8",
        )
        other = Process(
            ["server", "--config", str(other_file), "--no-page"], file.with_name("other.txt")
        )
        with killed_on_exit([other]):
            wait_until(read)
            assert other.wait() == 5, "another server has taken the lease of one that runs"
        assert page.running(), page.log_text()
        assert page.request("/readyz").status == 200
        assert len(lags) > 3, "the page stood still while the server read"
