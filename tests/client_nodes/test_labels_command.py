"""`shoal labels` on a federation of three clients and a server: export in every format, follow,
relabel."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from shoal.client_nodes.bootstrap import checkpoint_owner, open_client
from shoal.client_nodes.labelling import labelled_readings, relabel
from shoal.client_nodes.labelling.labelled_readings import LabelledReadings
from shoal.client_nodes.labelling.labels_command import labels
from shoal.client_nodes.labelling.relabel import relabel_readings
from shoal.client_nodes.labelling.writers import columns_of
from shoal.config.contract import Feature
from shoal.config.settings import Config, load_config
from shoal.errors import CheckpointInUse, InvalidState, MissingExtra, SettingsError, ShoalError
from shoal.protocol.conflicts import AUTHOR_HEADER, INCARNATION_HEADER
from shoal.protocol.labels import Label
from shoal.protocol.topics import LABELS
from shoal.runtime.checkpoint import Checkpoint, Outbox
from shoal.runtime.logs import open_client_log
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports import open_log
from shoal.transports.base import latest
from tests.house.small_federation import create_federation, run_to_end, weather, write_readings

CLIENT = "attic"
READINGS = 400


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a federation in which everything has been learnt; each test has a copy."""
    folder = tmp_path_factory.mktemp("learnt")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SHOAL_CLIENT_LABEL", "true")
        run_to_end(create_federation(folder, readings=READINGS))
    return folder


@pytest.fixture
def file(learnt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A federation in which everything has been learnt; no client has seen a snapshot yet."""
    monkeypatch.setenv("SHOAL_CLIENT_LABEL", "true")
    shutil.copytree(learnt, tmp_path, dirs_exist_ok=True)
    return tmp_path / "federation.toml"


@pytest.fixture
def labelled(file: Path) -> Path:
    run_client(file)
    return file


def run_client(file: Path) -> None:
    with resumed(open_client(load_config(file), CLIENT)) as node:
        while node.step():
            pass


def ended_export(file: Path, *words: str) -> Result:
    ended = CliRunner().invoke(labels, ["export", "--config", str(file), "--name", CLIENT, *words])
    if ended.exception is not None:
        raise ended.exception
    return ended


def export(file: Path, *words: str) -> str:
    return ended_export(file, *words).stdout


def exported(file: Path, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in export(file, "--format", "jsonl", *words).splitlines()]


def own_labels(config: Config) -> dict[bytes, Label]:
    with closing(open_client_log(config, CLIENT)) as log:
        log.ensure(LABELS)
        return {key: Label.decode(record.value) for key, record in latest(log, LABELS).items()}


def test_readings_learnt_before_the_first_snapshot_are_exported_without_and_then_with_a_label(
    file: Path,
) -> None:
    rows = exported(file)
    assert len(rows) == READINGS
    assert {(row["cluster"], row["name"], row["novelty"], row["version"]) for row in rows} == {
        (None,) * 4
    }
    run_client(file)
    rows = exported(file)
    assert len(rows) == READINGS
    assert all(row["version"] >= 1 for row in rows)
    assert len({row["cluster"] for row in rows} - {None}) >= 2


def test_a_row_has_the_reading_and_its_label(labelled: Path) -> None:
    rows = exported(labelled)
    values = weather(READINGS, seed=0)
    assert list(rows[0]) == [
        "time",
        "warm",
        "damp",
        "cluster",
        "name",
        "novelty",
        "reason",
        "version",
    ]
    assert rows[5]["time"] == "2001-09-09T01:46:45.000000Z"
    np.testing.assert_array_equal([[row["warm"], row["damp"]] for row in rows], values)
    found = [label.identity for label in own_labels(load_config(labelled)).values()]
    assert sorted(str(row["cluster"]) for row in rows) == sorted(map(str, found))


def test_csv_and_parquet_have_what_json_has(labelled: Path, tmp_path: Path) -> None:
    rows = exported(labelled)
    table = list(csv.DictReader(io.StringIO(export(labelled))))
    assert [row["time"] for row in table] == [row["time"] for row in rows]
    for name in ("warm", "damp", "cluster", "novelty"):
        assert [float(row[name]) if row[name] else None for row in table] == [
            row[name] for row in rows
        ], name
    parquet = pytest.importorskip("pyarrow.parquet")
    assert export(labelled, "--format", "parquet", "--out", str(tmp_path / "labels.parquet")) == ""
    read = parquet.read_table(tmp_path / "labels.parquet")
    assert str(read.schema.field("time").type) == "timestamp[us, tz=UTC]"
    for name in ("warm", "damp", "cluster", "name", "novelty", "reason", "version"):
        assert read.column(name).to_pylist() == [row[name] for row in rows], name
    assert read.column("time").to_pylist()[0].timestamp() == 1e9


def test_a_file_replaces_the_one_before_and_is_like_standard_output(
    labelled: Path, tmp_path: Path
) -> None:
    out = tmp_path / "labels.csv"
    out.write_text("old", encoding="utf-8")
    ended = ended_export(labelled, "--out", str(out))
    assert (ended.stdout, ended.stderr) == ("", f"{out}: {READINGS:,} readings\n")
    assert out.read_text(encoding="utf-8") == export(labelled)
    assert ended_export(labelled).stderr == "", "what goes to standard output is no file"


def test_a_client_without_readings_exports_a_header(labelled: Path, tmp_path: Path) -> None:
    config = load_config(labelled)
    write_readings(config, "shed", np.empty((0, 2)))
    ended = CliRunner().invoke(labels, ["export", "--config", str(labelled), "--name", "shed"])
    assert ended.stdout == "time,warm,damp,cluster,name,novelty,reason,version\n"


def test_a_feature_may_have_the_name_of_a_column() -> None:
    features = [Feature(name=name, low=0.0, high=1.0) for name in ("name", "time")]
    assert columns_of(features) == [
        "time_",
        "name",
        "time",
        "cluster",
        "name_",
        "novelty",
        "reason",
        "version",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "parquet"], "parquet needs --out FILE"),
        (["--format", "parquet", "--out", "x.parquet", "--follow"], "cannot --follow"),
        (["--model", "other"], "no such model"),
        (["--out", "/nowhere/at/all.csv"], "cannot be written"),
    ],
    ids=str,
)
def test_what_cannot_be_exported_is_said_before_anything_is_written(
    labelled: Path, words: list[str], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        export(labelled, *words)


def test_parquet_without_its_extra_is_an_error_of_one_line(
    labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyarrow" else real(name)
    )
    with pytest.raises(MissingExtra, match=r"pip install '\.\[parquet\]'"):
        export(labelled, "--format", "parquet", "--out", str(tmp_path / "x.parquet"))
    assert not (tmp_path / "x.parquet").exists()


def test_an_unknown_client_and_one_without_labels_are_errors(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match=f"has no .* {CLIENT}, cellar, garden$"):
        CliRunner().invoke(
            labels, ["export", "--config", str(file), "--name", "nobody"], catch_exceptions=False
        )
    monkeypatch.setenv("SHOAL_CLIENT_LABEL", "false")
    with pytest.raises(SettingsError, match="label = true"):
        export(file)


def test_follow_gives_each_labelled_reading_once_and_then_the_new_ones(
    labelled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labelled_readings, "WAIT_S", 0.05)
    config = load_config(labelled)
    stop = threading.Event()
    expected = exported(labelled)
    found: list[tuple[float | None, int | None]] = []

    def follow() -> None:
        with closing(open_client_log(config, CLIENT)) as log:
            log.ensure(LABELS)
            for block in LabelledReadings(log, "clusters", 2).follow(stop):
                assert len(block.times) == len(block.values) == len(block.labels)
                found.extend(
                    (t, label.identity)
                    for t, label in zip(block.times, block.labels, strict=True)
                    if label
                )

    def wait_for(number: int) -> None:
        until = time.monotonic() + 600
        while len(found) < number and time.monotonic() < until:
            time.sleep(0.02)
        assert len(found) == number

    following = threading.Thread(target=follow)
    following.start()
    try:
        wait_for(READINGS)
        assert [identity for _, identity in sorted(found)] == [row["cluster"] for row in expected]
        write_readings(config, CLIENT, weather(50, seed=9), started_at=1.5e9)
        run_client(labelled)
        wait_for(READINGS + 50)
        assert all(at is not None and at >= 1.5e9 for at, _ in found[READINGS:])
    finally:
        stop.set()
        following.join()


# Relabelling.


def test_relabelling_gives_every_reading_the_newest_names_and_versions(labelled: Path) -> None:
    config = load_config(labelled)
    before = own_labels(config)
    rename(
        labelled, next(label.identity for label in before.values() if label.identity is not None)
    )
    ended = CliRunner().invoke(
        labels, ["relabel", "--config", str(labelled), "--name", CLIENT, "--json"]
    )
    assert json.loads(ended.stdout) == {"clusters": READINGS}
    after = own_labels(config)
    assert after.keys() == before.keys()
    assert {label.name for label in after.values()} == {"", "warm corner"}
    assert min(label.version for label in after.values()) > max(
        label.version for label in before.values()
    )
    run_client(labelled)
    assert own_labels(config) == after, "the client finds nothing left to do"


def rename(file: Path, identity: int) -> None:
    """Name a cluster, and let the server publish a snapshot that has the name."""
    # The other tests need no server.
    from shoal.server_node.ingest.request_publishing import request_name  # noqa: PLC0415 - a server

    config = load_config(file)
    with closing(open_log(config.log)) as log:
        request_name(config, log, "clusters", identity, "warm corner")
    with resumed(open_server(config)) as server:
        while server.step():
            pass


def test_relabelling_works_for_a_client_that_never_labelled(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_CLIENT_LABEL", "false")
    assert relabel_readings(load_config(file), CLIENT) == {"clusters": READINGS}
    assert len(exported(file)) == READINGS


def test_relabelling_twice_gives_the_same_labels(labelled: Path) -> None:
    config = load_config(labelled)
    relabel_readings(config, CLIENT)
    once = own_labels(config)
    relabel_readings(config, CLIENT)
    assert own_labels(config) == once


def test_what_a_killed_relabelling_leaves_the_client_labels(
    labelled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(labelled)
    relabel_readings(config, CLIENT)
    undisturbed = own_labels(config)

    class Cut(BaseException):
        pass

    real = relabel.Outbox.store
    calls = iter(range(100))

    def cut(*args: Any) -> None:
        if next(calls) == 2:
            raise Cut
        real(*args)

    with monkeypatch.context() as patched:
        patched.setattr(relabel.Outbox, "store", cut)
        with pytest.raises(Cut):
            relabel_readings(config, CLIENT)
    run_client(labelled)
    assert own_labels(config) == undisturbed


def test_the_updates_that_a_relabelling_publishes_are_known_as_the_clients_own(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a client would start from an older copy of its folder, and publish the same
    readings twice."""
    monkeypatch.setenv("SHOAL_CLIENT_PUBLISH_LABELS", "true")
    run_client(file)
    config = load_config(file)
    folder = config.client.folder / CLIENT
    older = shutil.copytree(folder, folder.with_name("older"))
    write_readings(config, CLIENT, weather(60, seed=9), started_at=1.5e9)
    with monkeypatch.context() as patched:
        patched.setattr(Outbox, "publish_pending", lambda _: 0)
        run_client(file)
    assert pending_updates(config) == 1
    relabel_readings(config, CLIENT)
    assert pending_updates(config) == 0, (
        "several pieces were stored, the first update was published before the second"
    )
    with closing(open_log(config.log)) as log:
        *_, newest = log.read(config.contract.updates_topic, {0: 0}, 10_000)[0]
    assert [name for name, _ in newest.headers] == ["type", "v", AUTHOR_HEADER, INCARNATION_HEADER]
    shutil.rmtree(folder)
    older.rename(folder)
    with pytest.raises(
        InvalidState, match="the folder is older than what the client has published"
    ):
        run_client(file)


def pending_updates(config: Config) -> int:
    with Checkpoint(
        config.client.folder / CLIENT / "checkpoint.db", checkpoint_owner(config, CLIENT)
    ) as checkpoint:
        return sum(
            record.topic == config.contract.updates_topic for _, record in checkpoint.pending()
        )


def test_relabelling_a_running_client_says_what_to_do(labelled: Path) -> None:
    config = load_config(labelled)
    with (
        resumed(open_client(config, CLIENT)),
        pytest.raises(CheckpointInUse, match="stop client attic, relabel, then start"),
    ):
        relabel_readings(config, CLIENT)


def test_relabelling_without_a_snapshot_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_CLIENT_LABEL", "true")
    file = create_federation(tmp_path, readings=60)
    run_client(file)
    ended = CliRunner().invoke(labels, ["relabel", "--config", str(file), "--name", CLIENT])
    assert ended.stdout.startswith("clusters: no snapshot")
    assert ended.stdout.count("\n") == 1


def test_relabelling_needs_a_client_that_has_run(labelled: Path) -> None:
    with pytest.raises(SettingsError, match="no client nobody has run here"):
        relabel_readings(load_config(labelled), "nobody")
    assert not (load_config(labelled).client.folder / "nobody").exists()


# Published labels.


@pytest.fixture
def topics_of(file: Path) -> Iterator[Any]:
    """Whether the topic of published labels exists."""

    def exists() -> bool:
        config = load_config(file)
        with closing(open_log(config.log)) as log:
            try:
                log.bounds(config.contract.labels_topic)
            except ShoalError:
                return False
            return True

    return exists


def test_by_default_not_even_the_topic_of_published_labels_exists(
    labelled: Path, topics_of: Any
) -> None:
    relabel_readings(load_config(labelled), CLIENT)
    assert not topics_of()


def test_published_labels_have_no_value_of_a_reading(
    file: Path, topics_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_CLIENT_PUBLISH_LABELS", "true")
    run_client(file)
    config = load_config(file)
    assert topics_of()
    with closing(open_log(config.log)) as log:
        found = latest(log, config.contract.labels_topic)
    own = own_labels(config)
    assert found.keys() == {b"attic/" + key for key in own}
    for key, label in own.items():
        assert json.loads(found[b"attic/" + key].value or b"") == {
            "schema": 1,
            "federation": "house",
            "client": "attic",
            "model": "clusters",
            "time": label.time,
            "cluster": label.identity,
            "name": label.name,
            "novelty": label.novelty,
            "version": label.version,
            "outside": {},
            "new_here": False,
        }
    relabel_readings(config, CLIENT)
    with closing(open_log(config.log)) as log:
        assert latest(log, config.contract.labels_topic).keys() == found.keys()


def test_publishing_labels_needs_labels(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CLIENT_LABEL", "false")
    monkeypatch.setenv("SHOAL_CLIENT_PUBLISH_LABELS", "true")
    with pytest.raises(SettingsError, match="publish_labels needs label = true"):
        load_config(file)
