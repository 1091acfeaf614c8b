"""`shoal page`: what it shows of logs that servers and replicas have written, and of others."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.main import shoal
from shoal.config.settings import Config, load_config
from shoal.errors import ContractDiffers, LogFolderMissing, LogUnavailable, SettingsError
from shoal.onebox.federation import OneBox
from shoal.protocol.history import DAY_S, pairs
from shoal.protocol.messages import Snapshot
from shoal.protocol.published_contract import publish_contract
from shoal.protocol.topics import ensure_topics
from shoal.runtime.checkpoint import OutboxRecord
from shoal.runtime.service import resumed
from shoal.server_node.history.store import HistoryReader
from shoal.server_node.outputs.web import create_app, predict
from shoal.server_node.page.estimated_history import divided
from shoal.server_node.page.page_command import history_file, open_published
from shoal.server_node.page.published import PublishedFederation
from shoal.server_node.replicas.region_model import RegionModel, absorb
from shoal.server_node.report.build import Reports
from shoal.server_node.report.status import StatusBoard
from shoal.telemetry.metrics import ServerMetrics
from shoal.transports import open_log
from shoal.transports.base import Log, Record
from tests.house.processes import TIMEOUT_S, Process, killed_on_exit, wait_until
from tests.house.small_federation import (
    CLIENTS,
    all_records,
    clock,
    weather,
    write_federation,
    write_readings,
)
from tests.house.test_lost_files import damage
from tests.server_node.web_client import WebClient

READINGS = 240


@contextmanager
def a_page(config: Config, folder: Path | None = None) -> Iterator[PublishedFederation]:
    """A page of the federation that has read all that is in the log."""
    opened = open_published(config, history_file(config, folder), ServerMetrics())
    with resumed(opened) as page:
        read_all(page)
        yield page


def read_all(page: PublishedFederation) -> None:
    while page.step():
        pass


def served(config: Config, page: PublishedFederation) -> WebClient:
    """Its HTTP interface at this moment."""
    reader = HistoryReader(history_file(config, None))
    board = StatusBoard(page.status())
    return WebClient(create_app(board, ServerMetrics().registry, predict, history=reader))


def updates_of(config: Config) -> list[Record]:
    """The updates of a federation whose clients have learnt all their readings."""
    for place, client in enumerate(CLIENTS):
        write_readings(config, client, weather(READINGS, place))
    with ExitStack() as stack:
        box = stack.enter_context(OneBox(config, CLIENTS, clock=clock))
        box.run_until_idle()
    return all_records(config.log.address, config.contract.updates_topic)


def by_replica(config: Config, updates: list[Record]) -> list[list[OutboxRecord]]:
    """What a replica publishes for each update, an hour after the one before."""
    (model,) = config.resolved.models.values()
    region = RegionModel(config, config.resolved, model, bytes(16))
    state = None
    published = []
    for hour, record in enumerate(updates):
        later = record._replace(timestamp_ms=record.timestamp_ms + hour * 3_600_000)
        absorbed = absorb(region, state, later)
        state = absorbed.state
        published.append(list(absorbed.records))
    return published


def publish(log: Log, records: list[OutboxRecord]) -> None:
    for record in records:
        log.publish(record.topic, record.value, record.key, record.headers)
    log.flush()


@pytest.fixture(scope="module")
def of_replica(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Config, list[list[OutboxRecord]]]:
    """A federation, and what replicas publish for it."""
    folder = tmp_path_factory.mktemp("clients")
    config = load_config(write_federation(folder, pool_clients=1))
    return config, by_replica(config, updates_of(config))


def moved(config: Config, folder: Path) -> Config:
    """The same federation on a log of its own."""
    log = config.log.model_copy(update={"address": f"sqlite:{folder / 'log.db'}"})
    server = config.server.model_copy(update={"folder": folder / "server"})
    return config.model_copy(update={"log": log, "server": server})


def days_of(config: Config) -> dict[int, int]:
    """identity -> readings in the history of the page."""
    reader = HistoryReader(history_file(config, None))
    extent = reader.extent("clusters", DAY_S)
    readings: dict[int, int] = {}
    if extent is not None:
        for day in reader.each_bin("clusters", DAY_S, *extent):
            for identity, number in pairs(day.clusters):
                readings[identity] = readings.get(identity, 0) + number
    return readings


def test_the_history_of_what_replicas_serve_is_estimated_and_the_page_says_since_when(
    tmp_path: Path, of_replica: tuple[Config, list[list[OutboxRecord]]]
) -> None:
    config = moved(of_replica[0], tmp_path)
    published = [records for records in of_replica[1] if records]
    first = Snapshot.decode(published[0][0].value, published[0][0].headers)
    last = Snapshot.decode(published[-1][0].value, published[-1][0].headers)
    half = len(published) // 2
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        publish_contract(log, config.resolved)
        publish(log, published[0])
        with a_page(config) as page:
            for records in published[1:half]:
                publish(log, records)
                read_all(page)
            seen = sum(days_of(config).values())
        # Another process, which goes on where the one before has ended.
        with a_page(config) as page:
            for records in published[half:]:
                publish(log, records)
                read_all(page)
            status = page.status()
            client = served(config, page)
            report = client.get("/v1/clusters?model=clusters").json()
    assert 0 < seen < last.readings - first.readings
    assert report["counted"]["readings"] == last.readings - first.readings
    assert sum(days_of(config).values()) == last.readings - first.readings
    assert report["clusters"]
    for cluster in report["clusters"]:
        assert cluster["share"] == pytest.approx(cluster["recent_share"], abs=0.3)
    (model,) = Reports().federation(status).models
    assert "publishes no history: shares over time are estimated by this page" in model.state
    assert (status.clients, model.readings) == ([], last.readings)
    assert "not which" in status.clients_note


def test_a_page_prints_at_its_end_what_it_has_read(
    of_replica: tuple[Config, list[list[OutboxRecord]]],
) -> None:
    config, _ = of_replica
    command = ["page", "--config", str(config.server.folder.parent / "federation.toml")]
    ran = CliRunner().invoke(shoal, [*command, "--port", "0", "--until-idle", "0", "--json"])
    assert ran.exception is None, ran.output
    # Those of the server that its updates are of.
    published = all_records(config.log.address, config.contract.snapshots_topic)
    newest = [record for record in published if record.key == b"clusters"][-1]
    snapshot = Snapshot.decode(newest.value, newest.headers)
    assert json.loads(ran.stdout.splitlines()[-1])["models"]["clusters"] == {
        "version": snapshot.version,
        "clusters": snapshot.clusters,
        "nodes": snapshot.nodes,
    }


def test_readings_are_divided_into_whole_numbers_that_add_up() -> None:
    assert divided(10, [0.0, 1.0]).tolist() == [0, 10]
    assert divided(10, [1 / 3, 1 / 3, 1 / 3]).tolist() == [4, 3, 3]
    assert divided(1, [0.5, 0.5]).sum() == 1


def test_a_federation_without_a_snapshot_is_shown_as_one_that_waits(tmp_path: Path) -> None:
    config = load_config(write_federation(tmp_path))
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
    with a_page(config) as page:
        assert page.ready
        client = served(config, page)
    assert client.get("/v1/clusters").json()["clusters"] == []
    (model,) = client.get("/v1/status").json()["models"]
    assert model["waiting_for"] == "No snapshot has been published yet."


def test_a_log_without_the_topics_is_waited_for_and_its_error_says_what_to_check(
    tmp_path: Path,
) -> None:
    config = load_config(write_federation(tmp_path))
    with (
        pytest.raises(LogUnavailable, match=r"house\.snapshots.* check \[federation\] name and"),
        a_page(config),
    ):
        pass
    assert not (tmp_path / "federation.db").exists()


def test_a_folder_that_is_not_there_and_an_address_of_no_interface_are_one_line_and_exit_code_2(
    tmp_path: Path,
) -> None:
    file = write_federation(tmp_path, address="sqlite:missing/federation.db")
    command = ["page", "--config", str(file), "--until-idle", "0"]
    ran = CliRunner().invoke(shoal, command)
    assert isinstance(ran.exception, LogFolderMissing)
    ran = CliRunner().invoke(shoal, [*command, "--host", "192.0.2.1"])
    assert isinstance(ran.exception, SettingsError)
    assert "cannot be served on 192.0.2.1" in str(ran.exception)
    assert ran.exception.exit_code == 2


def test_a_log_that_was_made_anew_is_read_from_its_beginning(
    tmp_path: Path, of_replica: tuple[Config, list[list[OutboxRecord]]]
) -> None:
    config = moved(of_replica[0], tmp_path)
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        publish(log, [record for records in of_replica[1] for record in records])
    with a_page(config) as page:
        for file in tmp_path.glob("log.db*"):
            file.unlink()
        with closing(open_log(config.log)) as log:
            ensure_topics(log, config.contract, config.log)
        with pytest.raises(LogUnavailable, match="made anew"):
            page.step()


def test_an_index_that_is_damaged_or_lost_is_made_again_from_the_history_of_the_server(
    tmp_path: Path,
) -> None:
    config = load_config(write_federation(tmp_path))
    updates_of(config)
    with a_page(config):
        before = days_of(config)
    index = history_file(config, None)
    assert sum(before.values()) > 0
    damage(index)
    with a_page(config) as page:
        assert page.ready
        assert days_of(config) == before
    index.unlink()
    with a_page(config) as page:
        assert page.ready
        assert days_of(config) == before


def test_a_page_with_another_contract_ends(tmp_path: Path) -> None:
    file = write_federation(tmp_path)
    config = load_config(file)
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        publish_contract(log, config.resolved)
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('name = "clusters"', 'name = "others"'), encoding="utf-8")
    with pytest.raises(ContractDiffers, match="others"), a_page(load_config(file)):
        pass


@pytest.mark.integration
def test_a_page_on_kafka_shows_what_the_server_shows(tmp_path: Path, kafka_bootstrap: str) -> None:
    config = load_config(write_federation(tmp_path, address=f"kafka://{kafka_bootstrap}"))
    with pytest.raises(LogUnavailable, match="is not there"), a_page(config):
        pass
    for place, client in enumerate(CLIENTS):
        write_readings(config, client, weather(READINGS, place))
    with OneBox(config, CLIENTS, clock=clock) as box:
        box.run_until_idle()
        history = HistoryReader(config.server.folder / "history.db")
        board = StatusBoard(box.server.status())
        of_server = WebClient(create_app(board, ServerMetrics().registry, predict, history=history))
        with a_page(config) as page:
            by_log = served(config, page)
        for path in ("clusters", "snapshot", "history"):
            assert by_log.get(f"/v1/{path}").json() == of_server.get(f"/v1/{path}").json()


def address_of(page: Process) -> str:
    """Where a page is served, once it has read the log."""
    wait_until(lambda: " page_served " in page.log_text())
    return page.log_text().rpartition(" page_served address=")[2].split()[0]


def is_ready(page: Process) -> bool:
    try:
        with urllib.request.urlopen(f"{address_of(page)}readyz", timeout=TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


def version_on(page: Process) -> int:
    wait_until(lambda: is_ready(page))
    with urllib.request.urlopen(f"{address_of(page)}v1/snapshot", timeout=TIMEOUT_S) as answer:
        return int(json.load(answer)["version"])


@pytest.mark.integration
def test_a_page_needs_no_server_and_shows_the_same_after_a_kill(tmp_path: Path) -> None:
    file = write_federation(tmp_path)
    updates_of(load_config(file))
    page = Process(["page", "--config", str(file), "--port", "0"], tmp_path / "page.txt")
    with killed_on_exit([page]):
        version = version_on(page)
        assert version > 1
        page.kill()
        again = Process(page.arguments, tmp_path / "again.txt")
        with killed_on_exit([again]):
            assert version_on(again) == version
            assert again.stop() == 0
