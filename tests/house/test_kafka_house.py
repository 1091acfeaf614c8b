"""A house over a broker that goes away while readings go on, and over one that keeps too little."""

from __future__ import annotations

import random
import re
import time
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, TopicPartition

from server_node.bootstrap import open_server
from shoal.config.settings import Config, load_config
from shoal.errors import OffsetOutOfRange
from shoal.protocol.messages import Update
from shoal.transports import open_log
from tests.house.processes import Process, none_left_over
from tests.house.small_federation import all_records, begin, clock, final_model, run_to_end, updates_by_client
from tests.house.whole_house import check_nothing_lost_and_nothing_twice, finish, start_all, whole_house
from tests.kafka_broker import Broker

KEPT_BYTES = 1_500_000
LOG_ERROR = 4


def end_of(config: Config, topic: str) -> int:
    """The offset that its next record would get."""
    with closing(open_log(config.log)) as log:
        return log.bounds(topic)[0][1]


def test_a_broker_that_is_stopped_and_killed_during_traffic_costs_time_and_nothing_else(
    own_broker: Broker, tmp_path: Path
) -> None:
    file = whole_house(tmp_path, f"kafka://{own_broker.bootstrap}")
    chance = random.Random(7)
    processes = start_all(file)
    with none_left_over(processes):
        for end in (own_broker.stop, own_broker.kill, own_broker.kill):
            time.sleep(chance.uniform(0.5, 2.0))
            end()
            time.sleep(chance.uniform(0.0, 3.0))
            own_broker.start()
        finish(processes, tmp_path)
    check_nothing_lost_and_nothing_twice(file, tmp_path)


def test_a_server_that_retention_has_overtaken_says_what_is_gone_and_learns_nothing(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    file = begin(tmp_path, readings=100, address=f"kafka://{kafka_bootstrap}")
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
    with open_server(config, clock=clock) as server, pytest.raises(OffsetOutOfRange, match="2 records are lost"):
        server.step()


def test_brokers_that_kept_too_little_while_the_server_was_away_end_it_with_what_is_gone_unless_a_gap_is_allowed(
    own_broker: Broker, tmp_path: Path
) -> None:
    file = begin(tmp_path, readings=300, publish_readings=20, address=f"kafka://{own_broker.bootstrap}")
    text = file.read_text(encoding="utf-8").replace("[client]", f"updates_retention_bytes = {KEPT_BYTES}\n[client]")
    file.write_text(text, encoding="utf-8")
    config = load_config(file)
    run_to_end(file)
    read_up_to = len(all_records(config.log.address, topic := config.contract.updates_topic))
    with closing(open_log(config.log)) as log:
        while log.bounds(topic)[0][0] <= read_up_to:  # the brokers' own retention, whenever they look
            log.publish(topic, bytes(KEPT_BYTES // 8), b"clusters", Update.headers())
            log.flush()
    strict = Process(["server", "--config", str(file), "--no-page"], tmp_path / "strict.txt")
    strict.end(LOG_ERROR)
    gone = re.search(rf"{topic}/0: the next position to read is {read_up_to}, .* (\d+) records are lost", strict.said())
    assert gone is not None, strict.said()
    assert int(gone[1]) > 0
    before = final_model(file)
    file.write_text(text.replace("[server]", "[server]\naccept_gap = true"), encoding="utf-8")
    easy = Process(["server", "--config", str(file), "--no-page", "--until-idle", "2"], tmp_path / "easy.txt")
    easy.end()
    lost = sum(map(int, re.findall(r"gap_accepted .*records_lost=(\d+)", easy.said())))
    assert lost >= int(gone[1])
    assert end_of(config, config.contract.rejected_topic) == end_of(config, topic) - read_up_to - lost
    assert final_model(file) == before


def test_tools_that_look_for_lag_see_how_far_the_server_is(kafka_bootstrap: str, tmp_path: Path) -> None:
    file = begin(tmp_path, readings=100, address=f"kafka://{kafka_bootstrap}")
    config = load_config(file)
    place, reader = TopicPartition(config.contract.updates_topic, 0), f"{config.contract.federation}.server"
    with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin, closing(open_log(config.log)) as log:
        shown = None
        while shown is None:  # the first group of a broker is refused until it has made room for groups
            run_to_end(file)
            (end,) = (end for _, end in log.bounds(place.topic).values())
            found = admin.list_group_offsets({reader: None})[reader]
            shown = found[place].offset if place in found else None
            repeated = log.read(place.topic, {0: 0}, 1)[0][0]
            log.publish(place.topic, repeated.value, repeated.key, repeated.headers)
            log.flush()
    assert shown == end


def test_the_same_updates_delivered_again_and_in_another_order_change_nothing(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    file = begin(tmp_path, readings=200, address=f"kafka://{kafka_bootstrap}")
    config = load_config(file)
    run_to_end(file)
    before = final_model(file)
    with closing(open_log(config.log)) as log:
        topic = config.contract.updates_topic
        records = list(log.read(topic, {0: 0})[0])
        random.Random(1).shuffle(records)
        for record in records + records:
            log.publish(topic, record.value, record.key, record.headers)
    with open_server(config, clock=clock) as server:
        while server.step():
            pass
        assert server.up_to_date
    assert final_model(file) == before
    heard = updates_by_client(config)
    assert {len(again) for by_number in heard.values() for again in by_number.values()} == {3}


def test_ten_thousand_malformed_messages_are_set_aside_each_and_change_nothing(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    file = begin(tmp_path, readings=100, batch_updates_max=200, address=f"kafka://{kafka_bootstrap}")
    config = load_config(file)
    run_to_end(file)
    before = final_model(file)
    chance = random.Random(3)
    with closing(open_log(config.log)) as log:
        for number in range(10_000):
            headers = Update.headers() if number % 2 else ()
            log.publish(config.contract.updates_topic, chance.randbytes(200), b"clusters", headers)
        log.flush()
        run_to_end(file)
        assert log.bounds(config.contract.rejected_topic)[0][1] == 10_000
    assert final_model(file) == before
