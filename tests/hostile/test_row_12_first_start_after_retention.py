"""Row 12: a first start after retention has removed records: refused with their number, or counted
and logged."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, TopicPartition

from shoal.config.settings import load_config
from shoal.protocol.messages import Update
from shoal.protocol.topics import ensure_topics
from shoal.runtime.logs import open_readings
from shoal.transports import open_log
from tests.forked_python import nodes
from tests.hostile.served_page import started
from tests.house.processes import wait_until
from tests.house.small_federation import write_federation
from tests.small_plant import an_update

READINGS = 50_000
LOST = 25


def shoal(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    return nodes().run_text(*arguments, cwd=folder, environment=clean | environment)


def test_a_client_that_starts_late_says_how_many_readings_are_gone_and_skips_them_only_if_it_may(
    tmp_path: Path,
) -> None:
    file = write_federation(tmp_path, publish_readings=1000, batch_readings_max=5000)
    small = file.read_text(encoding="utf-8").replace("label = true", "readings_bytes_max = 300000")
    file.write_text(small, encoding="utf-8")
    rows = "".join(f"{number % 40},{number % 90}\n" for number in range(READINGS))
    (tmp_path / "rows.csv").write_text("warm,damp\n" + rows, encoding="utf-8")
    produced = shoal(tmp_path, "producer", "--config", str(file), "rows.csv", "--speed", "max")
    assert produced.returncode == 0, produced.stderr
    with closing(open_readings(load_config(file), "client-1")) as log:
        first, end = log.bounds("readings")[0]
    assert (first > 0, end) == (True, READINGS)
    run = [
        "client",
        "--config",
        str(file),
        "--name",
        "client-1",
        "--until-idle",
        "0.5",
        "--no-wait",
        "--json",
    ]
    refused = shoal(tmp_path, *run)
    assert refused.returncode == 4
    assert f"{first} records are lost" in refused.stderr
    assert "accept_gap = true" in refused.stderr
    skipped = shoal(tmp_path, *run, SHOAL_CLIENT_ACCEPT_GAP="true")
    assert skipped.returncode == 0, skipped.stderr
    gaps = [
        line
        for line in map(json.loads, skipped.stderr.splitlines())
        if line["event"] == "gap_accepted"
    ]
    assert [(gap["level"], gap["records_lost"]) for gap in gaps] == [("warning", first)]
    assert json.loads(skipped.stdout)["readings"] == READINGS - first


@pytest.mark.parametrize("kind", ["sqlite", "kafka"])
def test_a_server_that_starts_late_says_how_many_updates_are_gone(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    bootstrap = request.getfixturevalue("kafka_bootstrap") if kind == "kafka" else ""
    file = write_federation(
        tmp_path, address=f"kafka://{bootstrap}" if bootstrap else "sqlite:federation.db"
    )
    if not bootstrap:
        kept = file.read_text(encoding="utf-8").replace(
            "[client]", "updates_retention_bytes = 30000\n[client]"
        )
        file.write_text(kept, encoding="utf-8")
    config = load_config(file)
    topic = config.contract.updates_topic
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        for sequence in range(1, 2 * LOST + 1):
            update = an_update(config.contract, sequence=sequence)
            log.publish(
                topic, update.encode(), config.contract.update_key(update.model), Update.headers()
            )
            log.flush()
        if bootstrap:
            admin = KafkaAdminClient(bootstrap_servers=bootstrap)
            admin.delete_records({TopicPartition(topic, 0): LOST})
            admin.close()
        wait_until(lambda: log.bounds(topic)[0][0] > 0)
        first = log.bounds(topic)[0][0]
    refused = shoal(tmp_path, "server", "--config", str(file), "--no-page", "--until-idle", "0.5")
    assert refused.returncode == 4
    assert f"{first} records are lost" in refused.stderr
    file.write_text(file.read_text(encoding="utf-8") + "accept_gap = true\n", encoding="utf-8")
    with started(file, ["-m", "shoal"]) as page:
        wait_until(lambda: len(page.events("gap_accepted")) > 0)
        assert str(page.events("gap_accepted")[0]["records_lost"]) == str(first)
        counted = f'shoal_records_lost_total{{topic="{topic}"}} {float(first)}'
        wait_until(lambda: counted in page.request("/metrics").body.decode())
