"""A server that returns after a round's deadline reads every answer in the log before it closes the
round."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import load_config
from shoal.onebox.federation import OneBox
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.node import ServerNode
from shoal.server_node.report.status import RoundStatus
from tests.house.rounds_federation import KMEANS, create_rounds_federation
from tests.house.small_federation import CLIENTS, clock


def rounds_of(server: ServerNode) -> RoundStatus:
    seen = server.models()["heaps"].status().rounds
    assert seen is not None
    return seen


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_broker_that_sends_one_answer_at_a_time_closes_no_round_early(
    partitions: int, tmp_path: Path, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # at least one batch is returned all the same
    monkeypatch.setattr("shoal.transports.kafka.consumer.FETCH_BYTES", 1)
    file = create_rounds_federation(
        tmp_path, KMEANS.replace("quorum = 1", "quorum = 1\ndeadline_s = 10")
    )
    text = file.read_text(encoding="utf-8").replace(
        'name = "house"', f'name = "house-{uuid.uuid4().hex}"'
    )
    text = text.replace(
        'address = "sqlite:federation.db"', f'address = "kafka://{kafka_bootstrap}"'
    )
    file.write_text(
        text.replace("[client]", f"partitions = {partitions}\n[client]", 1), encoding="utf-8"
    )
    config = load_config(file)
    with OneBox(config, CLIENTS, clock) as box:
        while rounds_of(box.server).round < 2:
            box.step()
        before = rounds_of(box.server)
        assert before.received == 0
    for client in CLIENTS:
        with resumed(open_client(config, client, clock=clock)) as node:
            while node.step():
                pass
    with resumed(open_server(config, clock=lambda: clock() + 3600)) as server:
        steps = 0
        while rounds_of(server).round == before.round:
            assert server.step()
            steps += 1
        assert rounds_of(server).counted == len(CLIENTS)
        assert steps > 1, "all answers came at once, so the test proves nothing"
