"""Federations on a broker that is stopped while readings continue, and on one that keeps too few
updates."""

from __future__ import annotations

import random
import re
import time
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, TopicPartition

from shoal.config.settings import Config, load_config
from shoal.errors import OffsetOutOfRange
from shoal.protocol.messages import Update
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports import open_log
from tests.house.federation_processes import (
    check_exactly_once,
    finish,
    prepare_federation,
    start_all,
    wait_for_updates,
)
from tests.house.processes import Process, killed_on_exit
from tests.house.small_federation import (
    all_records,
    clock,
    create_federation,
    final_model,
    run_to_end,
    updates_by_client,
)
from tests.kafka_broker import Broker

KEPT_BYTES = 1_500_000
READINGS_PER_S = 300
LOG_ERROR = 4


def end_of(config: Config, topic: str) -> int:
    """The offset of the next record in partition 0."""
    with closing(open_log(config.log)) as log:
        return log.bounds(topic)[0][1]


@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.integration)])
def test_a_broker_that_is_stopped_and_killed_during_traffic_loses_and_repeats_nothing(
    own_broker: Broker, tmp_path: Path, kills: int
) -> None:
    file = prepare_federation(tmp_path, f"kafka://{own_broker.bootstrap}")
    chance = random.Random(7)
    processes = start_all(file, READINGS_PER_S)
    with killed_on_exit(processes):
        for end in (own_broker.stop, *[own_broker.kill] * kills):
            time.sleep(chance.uniform(0.5, 2.0))
            end()
            time.sleep(chance.uniform(0.0, 3.0))
            own_broker.start()
        wait_for_updates(processes, file)  # so there was work left when it was killed
        finish(processes, tmp_path)
    check_exactly_once(file, tmp_path)


def test_a_server_that_retention_has_overtaken_names_the_loss_and_learns_nothing(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    file = create_federation(tmp_path, readings=100, address=f"kafka://{kafka_bootstrap}")
    config = load_config(file)
    run_to_end(file)
    with closing(open_log(config.log)) as log:
        topic = config.contract.updates_topic
        end = log.bounds(topic)[0][1]
        for number, record in enumerate(log.read(topic, {0: 0})[0]):
            if number < 3:
                log.publish(topic, record.value, record.key, record.headers)
    with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
        admin.delete_records({TopicPartition(topic, 0): end + 2})
    with (
        resumed(open_server(config, clock=clock)) as server,
        pytest.raises(OffsetOutOfRange, match="2 records are lost"),
    ):
        server.step()


def test_updates_removed_while_the_server_was_away_end_it_unless_a_gap_is_accepted(
    own_broker: Broker, tmp_path: Path
) -> None:
    file = create_federation(
        tmp_path, readings=300, publish_readings=20, address=f"kafka://{own_broker.bootstrap}"
    )
    text = file.read_text(encoding="utf-8").replace(
        "[client]", f"updates_retention_bytes = {KEPT_BYTES}\n[client]"
    )
    file.write_text(text, encoding="utf-8")
    config = load_config(file)
    run_to_end(file)
    read_up_to = len(all_records(config.log.address, topic := config.contract.updates_topic))
    with closing(open_log(config.log)) as log:
        # brokers apply retention only from time to time
        while log.bounds(topic)[0][0] <= read_up_to:
            log.publish(topic, bytes(KEPT_BYTES // 8), b"clusters", Update.headers())
            log.flush()
    strict = Process(["server", "--config", str(file), "--no-page"], tmp_path / "strict.txt")
    strict.end(LOG_ERROR)
    gone = re.search(
        rf"{topic}/0: the next position to read is {read_up_to}, .* (\d+) records are lost",
        strict.log_text(),
    )
    assert gone is not None, strict.log_text()
    assert int(gone[1]) > 0
    before = final_model(file)
    file.write_text(text.replace("[server]", "[server]\naccept_gap = true"), encoding="utf-8")
    easy = Process(
        ["server", "--config", str(file), "--no-page", "--until-idle", "2"], tmp_path / "easy.txt"
    )
    easy.end()
    lost = sum(map(int, re.findall(r"gap_accepted .*records_lost=(\d+)", easy.log_text())))
    assert lost >= int(gone[1])
    assert (
        end_of(config, config.contract.rejected_topic) == end_of(config, topic) - read_up_to - lost
    )
    assert final_model(file) == before


def test_kafka_tools_see_the_position_of_the_server(kafka_bootstrap: str, tmp_path: Path) -> None:
    file = create_federation(tmp_path, readings=100, address=f"kafka://{kafka_bootstrap}")
    config = load_config(file)
    place = TopicPartition(config.contract.updates_topic, 0)
    reader = f"{config.contract.federation}.server"
    with (
        closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin,
        closing(open_log(config.log)) as log,
    ):
        shown = None
        while shown is None:  # a new broker refuses the first groups
            run_to_end(file)
            (end,) = (end for _, end in log.bounds(place.topic).values())
            found = admin.list_group_offsets({reader: None})[reader]
            shown = found[place].offset if place in found else None
            repeated = log.read(place.topic, {0: 0}, 1)[0][0]
            log.publish(place.topic, repeated.value, repeated.key, repeated.headers)
            log.flush()
    assert shown == end


def test_updates_delivered_again_in_another_order_change_nothing(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    file = create_federation(tmp_path, readings=200, address=f"kafka://{kafka_bootstrap}")
    config = load_config(file)
    run_to_end(file)
    before = final_model(file)
    with closing(open_log(config.log)) as log:
        topic = config.contract.updates_topic
        records = list(log.read(topic, {0: 0})[0])
        random.Random(1).shuffle(records)
        for record in records + records:
            log.publish(topic, record.value, record.key, record.headers)
    with resumed(open_server(config, clock=clock)) as server:
        while server.step():
            pass
        assert server.up_to_date
    assert final_model(file) == before
    published = updates_by_client(config)
    assert {len(again) for by_number in published.values() for again in by_number.values()} == {3}
