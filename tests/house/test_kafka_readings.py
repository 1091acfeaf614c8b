"""Readings logs on a broker of the clients' own give the same results as those in their folders."""

from __future__ import annotations

import random
import time
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from kafka import KafkaAdminClient, TopicPartition

from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState, LogError, OffsetOutOfRange, SettingsError
from shoal.producers.producer_command import producer
from shoal.protocol.codec import unpack
from shoal.protocol.topics import LABELS, READINGS, REJECTED
from shoal.runtime.logs import open_client_log, open_readings
from shoal.runtime.service import resumed
from shoal.transports import open_log
from shoal.transports.base import beginning, latest
from tests.house.federation_processes import (
    check_exactly_once,
    finish,
    prepare_federation,
    start_all,
)
from tests.house.processes import killed_on_exit
from tests.house.small_federation import CLIENTS, clock, final_model, run_to_end

ROWS = "time,site,warm,damp\n" + "".join(
    f"{1e9 + number},{client},{20 + 9 * (number % 3) + number % 7 / 10},"
    f"{'wet' if number % 40 == 5 else 40 + number % 5}\n"
    for number in range(240)
    for client in CLIENTS
)
FEW_KILLS = 6
MANY_KILLS = 12


def new_name() -> str:
    """A federation name that no other test on the broker has."""
    return f"house-{uuid.uuid4().hex}"


def with_readings_on(bootstrap: str, file: Path) -> Path:
    """Put the readings logs on these brokers, which are not the federation's."""
    section = f'[readings]\naddress = "kafka://{bootstrap}"\n[server]\n'
    file.write_text(
        file.read_text(encoding="utf-8").replace("[server]\n", section), encoding="utf-8"
    )
    return file


def create_fed_federation(
    folder: Path, bootstrap: str | None = None, mode: str = "off", name: str = ""
) -> Path:
    """A federation whose producer has stored all readings and whose clients have learnt nothing;
    returns its file."""
    folder.mkdir(exist_ok=True)
    file = prepare_federation(folder, "sqlite:federation.db")
    (folder / "sites-1.csv").write_text(ROWS, encoding="utf-8")
    text = file.read_text(encoding="utf-8").replace(
        'name = "house"', f'name = "{name or new_name()}"'
    )
    if mode == "off":
        text = text.replace('mode = "formal"\nepsilon_per_reading = 200', 'mode = "off"')
    file.write_text(text, encoding="utf-8")
    if bootstrap is not None:
        with_readings_on(bootstrap, file)
    feed(file)
    return file


def feed(file: Path, *more: str) -> None:
    arguments = [
        "--config",
        str(file),
        str(file.parent / "sites-1.csv"),
        "--split",
        "column:site",
        "--time-column",
        "time",
    ]
    ended = CliRunner().invoke(producer, [*arguments, *more], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output


def local_results(config: Config) -> dict[str, dict[bytes, object]]:
    """client -> its rejected readings and its labels, as they are in its own log."""
    found: dict[str, dict[bytes, object]] = {}
    for client in CLIENTS:
        with closing(open_log(f"sqlite:{config.client.folder / client / 'readings.db'}")) as log:
            labels = {
                key: unpack(record.value or b"") for key, record in latest(log, LABELS).items()
            }
            rejected = {
                key: (record.value, record.headers) for key, record in latest(log, REJECTED).items()
            }
        found[client] = {**labels, **rejected}
    return found


def test_readings_from_a_broker_give_the_same_model_bit_for_bit(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    name = new_name()
    here = create_fed_federation(tmp_path / "folder", name=name)
    there = create_fed_federation(tmp_path / "broker", kafka_bootstrap, name=name)
    for file in (here, there):
        run_to_end(file)
        # Readings are labelled once clients have read a snapshot, which the server published after
        # they had stopped.
        run_to_end(file)
    assert final_model(there) == final_model(here)
    results = local_results(load_config(here))
    assert all(len(found) > 6 for found in results.values()), (
        "labels too, not only the six rejected readings"
    )
    assert local_results(load_config(there)) == results
    with resumed(open_client(load_config(there), "attic", clock=clock)) as client:
        assert client.totals == {
            "read": 240,
            "refused": 0,
            "learned": 234,
            "rejected": 6,
            "withheld": 0,
            "clipped": 0,
            "updates": 2,
        }
    with (
        closing(open_log(f"sqlite:{tmp_path}/broker/clients/attic/readings.db")) as own,
        pytest.raises(LogError),
    ):
        own.bounds(READINGS)  # raw readings are in one log only
    # A producer without its own checkpoint finds in the broker's log that everything is stored.
    next((tmp_path / "broker" / "clients").glob("producer.*.db")).unlink()
    feed(there)
    with closing(open_readings(load_config(there), "attic")) as readings:
        assert readings.bounds(READINGS) == {0: (0, 240)}


@pytest.mark.parametrize(
    "kills", [FEW_KILLS, pytest.param(MANY_KILLS, marks=pytest.mark.integration)]
)
def test_killed_processes_learn_each_reading_once_with_the_same_noise(
    tmp_path: Path, kafka_bootstrap: str, kills: int
) -> None:
    file = prepare_federation(tmp_path, "sqlite:federation.db")
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('name = "house"', f'name = "{new_name()}"'), encoding="utf-8")
    with_readings_on(kafka_bootstrap, file)
    chance = random.Random(5)
    processes = start_all(file, rate=500)
    with killed_on_exit(processes):
        for _ in range(kills):
            time.sleep(chance.uniform(0.05, 0.6))
            victim = chance.randrange(len(processes))
            processes[victim].kill()
            processes[victim] = processes[victim].restarted()
        finish(processes, tmp_path)
    check_exactly_once(file, tmp_path)


def test_a_readings_topic_that_was_created_anew_is_refused(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    file = create_fed_federation(tmp_path, kafka_bootstrap, "formal")
    config = load_config(file)
    topic = f"{config.contract.federation}.attic.{READINGS}"
    with resumed(open_client(config, "attic", clock=clock)) as running:
        assert running.step()
        with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
            admin.delete_topics([topic])
            while topic in admin.list_topics():
                pass
        feed(file)  # the producer notices it and stores everything again
        learnt = running.totals
        with pytest.raises(LogError, match="created again"):
            running.step()
        assert running.totals == learnt
    with (
        pytest.raises(InvalidState, match="created anew"),
        resumed(open_client(config, "attic", clock=clock)),
    ):
        pass


def test_readings_that_retention_removed_raise_or_are_skipped_as_an_accepted_gap(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    file = create_fed_federation(tmp_path, kafka_bootstrap)
    config = load_config(file)
    place = TopicPartition(f"{config.contract.federation}.attic.{READINGS}", 0)
    with resumed(open_client(config, "attic", clock=clock)) as client:
        while client.step():
            pass
    feed(file, "--again")
    with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
        admin.delete_records({place: 300})
    with (
        resumed(open_client(config, "attic", clock=clock)) as client,
        pytest.raises(
            OffsetOutOfRange,
            match=f"{place.topic}/0: the next position .* 240, .* 60 records are lost",
        ),
    ):
        client.step()
    patient = config.model_copy(
        update={"client": config.client.model_copy(update={"accept_gap": True})}
    )
    with resumed(open_client(patient, "attic", clock=clock)) as client:
        while client.step():
            pass
        assert client.totals["learned"] + client.totals["rejected"] == 240 + 180


@pytest.mark.parametrize(
    "readings",
    ["kafka://a:9092", "KAFKA://B:9092,c:1/", "kafka://x:1,b:9092", "kafka://localhost:9092"],
)
def test_an_address_of_the_federations_brokers_is_refused_for_readings(
    readings: str, tmp_path: Path
) -> None:
    file = prepare_federation(tmp_path, "kafka://a:9092,b:9092,127.0.0.1:9092")
    text = file.read_text(encoding="utf-8")
    file.write_text(
        text.replace("[server]\n", f'[readings]\naddress = "{readings}"\n[server]\n'), "utf-8"
    )
    with pytest.raises(SettingsError, match=r"raw readings would leave the client's site"):
        load_config(file)


def test_the_federations_brokers_under_another_name_are_refused_too(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    port = kafka_bootstrap.rpartition(":")[2]
    file = with_readings_on(
        f"127.1:{port}", prepare_federation(tmp_path, f"kafka://127.0.0.1:{port}")
    )
    with (
        pytest.raises(SettingsError, match="raw readings would leave the client's site"),
        resumed(open_client(load_config(file), "attic", clock=clock)),
    ):
        pass


def test_a_producer_has_no_other_topic_than_the_readings(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    config = load_config(
        with_readings_on(kafka_bootstrap, prepare_federation(tmp_path, "sqlite:federation.db"))
    )
    with (
        closing(open_readings(config, "attic")) as readings,
        pytest.raises(LogError, match="only readings"),
    ):
        readings.ensure(LABELS)


def test_closing_a_clients_log_twice_stores_what_was_published(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    config = load_config(
        with_readings_on(kafka_bootstrap, prepare_federation(tmp_path, "sqlite:federation.db"))
    )
    (config.client.folder / "attic").mkdir(parents=True)
    log = open_client_log(config, "attic")
    log.ensure(READINGS)
    log.publish(READINGS, b"a reading")
    log.close()
    log.close()
    with closing(open_client_log(config, "attic")) as again:
        assert again.bounds(READINGS) == {0: (0, 1)}
        assert beginning(again, READINGS) == {0: 0}
