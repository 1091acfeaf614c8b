"""Readings that come from a broker of the clients' own: the same as from their folders, whatever happens to whom."""

from __future__ import annotations

import random
import time
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from kafka import KafkaAdminClient, TopicPartition

from client_nodes.bootstrap import open_client
from producers.command import producer
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState, LogError, OffsetOutOfRange, SettingsError
from shoal.protocol.codec import unpack
from shoal.protocol.topics import LABELS, READINGS, REJECTED
from shoal.runtime.readings_log import open_client_log, open_readings
from shoal.transports import open_log
from shoal.transports.base import beginning, latest
from tests.house.processes import none_left_over
from tests.house.small_federation import CLIENTS, clock, final_model, run_to_end
from tests.house.whole_house import check_nothing_lost_and_nothing_twice, finish, start_all, whole_house

ROWS = "time,site,warm,damp\n" + "".join(
    f"{1e9 + number},{client},{20 + 9 * (number % 3) + number % 7 / 10},"
    f"{'wet' if number % 40 == 5 else 40 + number % 5}\n"
    for number in range(240)
    for client in CLIENTS
)
KILLS = 12


def new_name() -> str:
    """A broker outlives a test."""
    return f"house-{uuid.uuid4().hex}"


def with_readings_on(bootstrap: str, file: Path) -> Path:
    """Let the clients of this federation, which is not on these brokers, read from them."""
    section = f'[readings]\naddress = "kafka://{bootstrap}"\n[server]\n'
    file.write_text(file.read_text(encoding="utf-8").replace("[server]\n", section), encoding="utf-8")
    return file


def fed(folder: Path, bootstrap: str | None = None, mode: str = "off", name: str = "") -> Path:
    """A house in a folder whose producer has published everything; nobody has learnt anything."""
    folder.mkdir(exist_ok=True)
    file = whole_house(folder, "sqlite:federation.db")
    (folder / "sites.csv").write_text(ROWS, encoding="utf-8")
    text = file.read_text(encoding="utf-8").replace('name = "house"', f'name = "{name or new_name()}"')
    if mode == "off":
        text = text.replace('mode = "formal"\nepsilon_per_reading = 200', 'mode = "off"')
    file.write_text(text, encoding="utf-8")
    if bootstrap is not None:
        with_readings_on(bootstrap, file)
    feed(file)
    return file


def feed(file: Path, *more: str) -> None:
    words = ["--config", str(file), str(file.parent / "sites.csv"), "--split", "column:site", "--time-column", "time"]
    ended = CliRunner().invoke(producer, [*words, *more], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output


def kept_locally(config: Config) -> dict[str, dict[bytes, object]]:
    """What the clients hold about their readings: those refused, and the labels without the snapshots they are of."""
    found: dict[str, dict[bytes, object]] = {}
    for client in CLIENTS:
        with closing(open_log(f"sqlite:{config.client.folder / client / 'readings.db'}")) as log:
            labels = {key: unpack(record.value or b"") for key, record in latest(log, LABELS).items()}
            rejected = {key: (record.value, record.headers) for key, record in latest(log, REJECTED).items()}
        found[client] = {**labels, **rejected}
    return found


def test_readings_from_a_broker_are_the_readings_from_a_folder_to_the_bit(tmp_path: Path, kafka_bootstrap: str) -> None:
    name = new_name()
    here = fed(tmp_path / "folder", name=name)
    there = fed(tmp_path / "broker", kafka_bootstrap, name=name)
    for file in (here, there):
        run_to_end(file)
    assert final_model(there) == final_model(here)
    assert kept_locally(load_config(there)) == kept_locally(load_config(here))
    with open_client(load_config(there), "attic", clock=clock) as client:
        assert client.totals == {"learned": 234, "rejected": 6, "withheld": 0, "clipped": 0, "updates": 2}
    with closing(open_log(f"sqlite:{tmp_path}/broker/clients/attic/readings.db")) as own, pytest.raises(LogError):
        own.bounds(READINGS)  # raw readings are in one place only
    # A second run of the producer finds everything there, by what stands in the broker's log.
    next((tmp_path / "broker" / "clients").glob("producer.*.db")).unlink()
    feed(there)
    with closing(open_readings(load_config(there), "attic")) as readings:
        assert readings.bounds(READINGS) == {0: (0, 240)}


def test_killed_processes_learn_each_reading_once_and_noise_it_alike(tmp_path: Path, kafka_bootstrap: str) -> None:
    file = whole_house(tmp_path, "sqlite:federation.db")
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('name = "house"', f'name = "{new_name()}"'), encoding="utf-8")
    with_readings_on(kafka_bootstrap, file)
    chance = random.Random(5)
    processes = start_all(file, rate=900)
    with none_left_over(processes):
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.05, 0.6))
            victim = chance.randrange(len(processes))
            processes[victim].kill()
            processes[victim] = processes[victim].again()
        finish(processes, tmp_path)
    check_nothing_lost_and_nothing_twice(file, tmp_path)


def test_a_topic_made_anew_has_no_place_in_common_with_the_old_one(tmp_path: Path, kafka_bootstrap: str) -> None:
    file = fed(tmp_path, kafka_bootstrap, "formal")
    config = load_config(file)
    topic = f"{config.contract.federation}.attic.{READINGS}"
    with open_client(config, "attic", clock=clock) as running:
        assert running.step()
        with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
            admin.delete_topics([topic])
            while topic in admin.list_topics():
                pass
        feed(file)  # the producer notices, and publishes everything again
        spoken = running.totals
        with pytest.raises(LogError, match="made again"):
            running.step()
        assert running.totals == spoken
    with pytest.raises(InvalidState, match="created anew"), open_client(config, "attic", clock=clock):
        pass


def test_readings_that_retention_removed_are_told_and_stepped_over_if_that_is_allowed(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    file = fed(tmp_path, kafka_bootstrap)
    config = load_config(file)
    place = TopicPartition(f"{config.contract.federation}.attic.{READINGS}", 0)
    with open_client(config, "attic", clock=clock) as client:
        while client.step():
            pass
    feed(file, "--again")
    with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
        admin.delete_records({place: 300})
    with (
        open_client(config, "attic", clock=clock) as client,
        pytest.raises(OffsetOutOfRange, match=f"{place.topic}/0: the next position .* 240, .* 60 records are lost"),
    ):
        client.step()
    patient = config.model_copy(update={"client": config.client.model_copy(update={"accept_gap": True})})
    with open_client(patient, "attic", clock=clock) as client:
        while client.step():
            pass
        assert client.totals["learned"] + client.totals["rejected"] == 240 + 180


@pytest.mark.parametrize(
    "readings", ["kafka://a:9092", "KAFKA://B:9092,c:1/", "kafka://x:1,b:9092", "kafka://localhost:9092"]
)
def test_an_address_of_the_federations_brokers_is_refused_for_raw_readings(readings: str, tmp_path: Path) -> None:
    file = whole_house(tmp_path, "kafka://a:9092,b:9092,127.0.0.1:9092")
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("[server]\n", f'[readings]\naddress = "{readings}"\n[server]\n'), "utf-8")
    with pytest.raises(SettingsError, match=r"raw readings would leave the site"):
        load_config(file)


def test_the_federations_brokers_under_another_name_are_refused_too(tmp_path: Path, kafka_bootstrap: str) -> None:
    port = kafka_bootstrap.rpartition(":")[2]
    file = with_readings_on(f"127.1:{port}", whole_house(tmp_path, f"kafka://127.0.0.1:{port}"))
    with (
        pytest.raises(SettingsError, match="raw readings would leave the site"),
        open_client(load_config(file), "attic", clock=clock),
    ):
        pass


def test_what_a_producer_has_no_business_with_is_refused(tmp_path: Path, kafka_bootstrap: str) -> None:
    config = load_config(with_readings_on(kafka_bootstrap, whole_house(tmp_path, "sqlite:federation.db")))
    with closing(open_readings(config, "attic")) as readings, pytest.raises(LogError, match="only readings"):
        readings.ensure(LABELS)


def test_a_clients_log_is_let_go_of_whole_when_its_brokers_cannot_be(tmp_path: Path, kafka_bootstrap: str) -> None:
    config = load_config(with_readings_on(kafka_bootstrap, whole_house(tmp_path, "sqlite:federation.db")))
    (config.client.folder / "attic").mkdir(parents=True)
    log = open_client_log(config, "attic")
    log.ensure(READINGS)
    log.publish(READINGS, b"a reading")
    log.close()
    log.close()
    with closing(open_client_log(config, "attic")) as again:
        assert again.bounds(READINGS) == {0: (0, 1)}
        assert beginning(again, READINGS) == {0: 0}
