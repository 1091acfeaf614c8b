"""Row 17: the updates topic gets more partitions under a running server, which notices it and says
what to do.

The embedded log has as many partitions as a topic was declared with, and nothing that adds any.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from shoal.config.settings import load_config
from tests.hostile.served_page import started
from tests.house.processes import wait_until
from tests.house.small_federation import write_federation


@pytest.mark.needs("Kafka")
def test_a_topic_that_grows_ends_the_server_with_what_to_do(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    file = write_federation(tmp_path, address=f"kafka://{kafka_bootstrap}")
    topic = load_config(file).contract.updates_topic
    with started(file, ["-m", "shoal"]) as page:
        wait_until(lambda: page.request("/readyz").status == 200)
        admin = KafkaAdminClient(bootstrap_servers=kafka_bootstrap)
        admin.create_partitions({topic: 3})
        admin.close()
        wait_until(lambda: not page.running())
        assert page.process.returncode == 4
        assert f"topic '{topic}' has 3 partitions now, and had 1" in page.log_text()
        assert "set [log] partitions = 3" in page.log_text()
