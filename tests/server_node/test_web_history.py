"""What the web interface and the command line show of the history: /clusters, /v1/history, `shoal
history export`."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from shoal.cli.main import shoal
from shoal.config.resolved import resolve
from shoal.config.settings import LogSettings, load_config
from shoal.protocol.history import COARSE_S, FINE_S, NO_CLUSTER, HistoryBin, HistoryNames
from shoal.protocol.topics import ensure_topics
from shoal.server_node.history import store as history_store
from shoal.server_node.history.store import (
    HISTORY_FILE,
    HistoryReader,
    HistoryRecord,
    HistoryStore,
)
from shoal.server_node.outputs.web import predict
from shoal.server_node.outputs.web.app import create_app
from shoal.server_node.outputs.web.history_json import COLUMNS_MAX
from shoal.server_node.outputs.web.page_renderer import PageRenderer
from shoal.server_node.report.build import Reports
from shoal.server_node.report.status import StatusBoard
from shoal.transports import open_log
from shoal.transports.sqlite.log import SqliteLog
from tests.server_node.web_client import WebClient
from tests.server_node.web_statuses import a_contract, a_snapshot, a_status, some_nodes

START = 1_800_000_000
CONTRACT = a_contract()
STATUS = a_status(CONTRACT, [a_snapshot(CONTRACT, some_nodes(2, 3, 30))])


def the_bins(contract: Any = CONTRACT) -> list[HistoryBin | HistoryNames]:
    origin = (contract.federation, contract.digest, "fcac")
    clusters = [[1, "night", "light low"], [2, "", "light high"]]
    return [
        HistoryBin.of(*origin, FINE_S, START, 1, [1, 30, 2, 10], [0, 40], [0, 1, 30, 0, 2, 10]),
        HistoryBin.of(
            *origin, FINE_S, START + 300, 2, [1, 10, NO_CLUSTER, 10], [0, 5, 1, 15], [1, 1, 10]
        ),
        HistoryBin.of(
            *origin, COARSE_S, START, 2, [1, 40, 2, 10, NO_CLUSTER, 10], [0, 45, 1, 15], []
        ),
        HistoryNames(*origin, ["attic", "cellar"], clusters),
    ]


def stored(folder: Path, messages: list[HistoryBin | HistoryNames]) -> HistoryReader:
    store = HistoryStore(resolve(CONTRACT), folder / HISTORY_FILE)
    with closing(SqliteLog(folder / "history_log.db", durable=False)) as log:
        ensure_topics(log, CONTRACT, LogSettings())
        store.catch_up(log)
    store.apply([HistoryRecord(message.record_key, message) for message in messages])
    store.close()
    return HistoryReader(folder / HISTORY_FILE)


def client_of(reader: HistoryReader | None) -> WebClient:
    return WebClient(create_app(StatusBoard(STATUS), CollectorRegistry(), predict, history=reader))


def test_the_history_has_a_row_for_each_cluster_and_client_and_a_column_for_each_bin(
    tmp_path: Path,
) -> None:
    body = client_of(stored(tmp_path, the_bins())).get(f"/v1/history?step={FINE_S}").json()
    assert (body["model"], body["step_s"], body["starts"]) == ("fcac", FINE_S, [START, START + 300])
    assert body["readings"] == [40, 20]
    assert body["clusters"] == [
        {"identity": None, "name": None, "label": None, "readings": [0, 10]},
        {"identity": 1, "name": "night", "label": "light low", "readings": [30, 10]},
        {"identity": 2, "name": "", "label": "light high", "readings": [10, 0]},
    ]
    assert body["clients"] == [
        {"client": "attic", "readings": [40, 5]},
        {"client": "cellar", "readings": [0, 15]},
    ]
    assert body["more_from"] is None


@pytest.mark.parametrize(
    ("query", "starts"),
    [
        ("", [START]),
        (f"?step={FINE_S}&from={START + 299}", [START, START + 300]),
        (f"?step={FINE_S}&from={START + 300}", [START + 300]),
        (f"?step={FINE_S}&to={START + 299}", [START]),
        (f"?step={FINE_S}&from=2027-01-15T08:05:00Z", [START + 300]),
        (f"?step={FINE_S}&to=2027-01-15T08:04:59", [START]),
        (f"?from={START + 10_000}", []),
    ],
)
def test_a_span_of_time_is_asked_for_in_seconds_or_as_a_time(
    tmp_path: Path, query: str, starts: list[int]
) -> None:
    body = client_of(stored(tmp_path, the_bins())).get(f"/v1/history{query}").json()
    assert body["starts"] == starts


@pytest.mark.parametrize(
    "query",
    [
        "?step=60",
        "?step=x",
        "?step=0",
        "?step=-300",
        "?step=2000",
        "?step=604801",
        "?step=9999999",
        "?of=clients",
        "?from=yesterday",
        "?to=nan",
        "?from=1e300",
    ],
)
def test_a_span_that_cannot_be_is_answered_with_what_can(tmp_path: Path, query: str) -> None:
    answer = client_of(stored(tmp_path, the_bins())).get(f"/v1/history{query}")
    assert answer.status_code == 400
    assert "is" in answer.json()["detail"]


def test_an_unknown_model_no_history_and_a_file_that_is_away(tmp_path: Path) -> None:
    assert client_of(stored(tmp_path, [])).get("/v1/history?model=other").status_code == 404
    assert client_of(None).get("/v1/history").status_code == 404
    assert client_of(HistoryReader(tmp_path / "away.db")).get("/v1/history").status_code == 503
    body = client_of(stored(tmp_path, [])).get("/v1/history").json()
    assert (body["starts"], body["clusters"], body["clients"]) == ([], [], [])


def test_a_history_that_is_made_again_is_left_out_until_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_store, "READ_AT_ONCE", 1)
    path = tmp_path / HISTORY_FILE
    with (
        closing(SqliteLog(tmp_path / "log.db", durable=False)) as log,
        closing(HistoryStore(resolve(CONTRACT), path)) as store,
    ):
        ensure_topics(log, CONTRACT, LogSettings())
        for message in the_bins():
            log.publish(
                CONTRACT.history_topic, message.encode(), message.record_key, message.headers()
            )
        log.flush()
        store.catch_up(log, 0.0)
        status = replace(STATUS, history_read=store.share_read)
        reports = Reports(HistoryReader(path))
        client = WebClient(
            create_app(StatusBoard(status), CollectorRegistry(), predict, history=reports.history)
        )
        assert client.get("/v1/history").status_code == 503
        ready = client.get("/readyz")
        assert ready.status_code == 200
        assert ready.text == "ready; the history is made again from the log, 25 % is there\n"
        report = reports.federation(status)
        assert report.history_read == 0.25
        without = Reports().federation(status).models
        assert report.models == without
        store.catch_up(log)
    assert client.get("/v1/history").status_code == 200
    whole = reports.federation(STATUS)
    assert whole.history_read == 1.0
    assert whole.models != without, "of the same snapshot, with its history"


def test_a_damaged_history_costs_the_page_no_cluster(tmp_path: Path) -> None:
    """It is made again from the log at the server's next use of it; the clusters are there."""
    path = tmp_path / HISTORY_FILE
    without = Reports().federation(STATUS).models
    reader = stored(tmp_path, the_bins())
    with closing(sqlite3.connect(path)) as file:
        file.execute(f"DROP TABLE bins_{COARSE_S}")
    assert Reports(reader).federation(STATUS).models == without
    path.write_bytes(b"not a database, and longer than a header" * 40)
    assert Reports(reader).federation(STATUS).models == without


def test_a_history_that_is_known_is_not_sent_again_until_it_changes(tmp_path: Path) -> None:
    bins = the_bins()
    client = client_of(stored(tmp_path, bins))
    tags = {
        query: client.get(f"/v1/history{query}").headers["etag"]
        for query in ("", f"?step={FINE_S}", "?of=clusters")
    }
    assert len(set(tags.values())) == 3
    for query, tag in tags.items():
        again = client.get(f"/v1/history{query}", {"If-None-Match": tag})
        assert (again.status_code, again.content) == (304, b"")
    renamed = HistoryNames(
        CONTRACT.federation, CONTRACT.digest, "fcac", ["attic"], [[1, "dusk", "light low"]]
    )
    more = HistoryBin.of(
        CONTRACT.federation, CONTRACT.digest, "fcac", COARSE_S, START, 2, [1, 41], [0, 41], []
    )
    for place, changed in enumerate(([*bins[:3], renamed], [*bins[:2], more, bins[3]])):
        folder = tmp_path / str(place)
        folder.mkdir()
        answer = client_of(stored(folder, changed)).get("/v1/history", {"If-None-Match": tags[""]})
        assert (answer.status_code, answer.json()["starts"]) == (200, [START])


def test_a_long_history_comes_in_pieces(tmp_path: Path) -> None:
    origin = (CONTRACT.federation, CONTRACT.digest, "fcac")
    many = [
        HistoryBin.of(*origin, COARSE_S, START + COARSE_S * n, 1, [1, 1], [0, 1], [])
        for n in range(COLUMNS_MAX + 5)
    ]
    client = client_of(stored(tmp_path, [*many]))
    body = client.get("/v1/history").json()
    assert len(body["starts"]) == COLUMNS_MAX
    rest = client.get(f"/v1/history?from={body['more_from']}").json()
    assert [len(rest["starts"]), rest["more_from"]] == [5, None]


@pytest.mark.parametrize("step", [2 * FINE_S, 9 * COARSE_S])
def test_several_bins_are_added_up_in_one_column(tmp_path: Path, step: int) -> None:
    origin = (CONTRACT.federation, CONTRACT.digest, "fcac")
    width = COARSE_S if step % COARSE_S == 0 else FINE_S
    first = START // step * step
    bins = [
        HistoryBin.of(*origin, width, first + width * n, 1, [1, 2, 2 + n, n], [0, 2 + n], [])
        for n in range(120)
    ]
    client = client_of(stored(tmp_path, [*bins]))
    body = client.get(f"/v1/history?step={step}&from={first + 1}").json()
    together = step // width
    assert body["starts"] == list(range(first, first + 120 * width, step))
    assert body["step_s"] == step
    sums = [
        sum(2 + n for n in range(at, min(120, at + together))) for at in range(0, 120, together)
    ]
    assert body["readings"] == body["clients"][0]["readings"] == sums
    of_cluster = {row["identity"]: row["readings"] for row in body["clusters"]}
    assert of_cluster[1] == [2 * min(together, 120 - at) for at in range(0, 120, together)]
    assert of_cluster[121][-1] == 119
    assert sum(map(sum, of_cluster.values())) == sum(sums)
    assert client.get(f"/v1/history?step={step}&of=clusters").json()["clients"] == []


def test_long_columns_come_in_pieces_too_and_none_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.server_node.outputs.web.history_json.COLUMNS_MAX", 7)
    origin = (CONTRACT.federation, CONTRACT.digest, "fcac")
    step = 4 * FINE_S
    first = START // step * step
    bins = [
        HistoryBin.of(*origin, FINE_S, first + FINE_S * n, 1, [1, 1], [0, 1], []) for n in range(60)
    ]
    client = client_of(stored(tmp_path, [*bins]))
    body = client.get(f"/v1/history?step={step}").json()
    assert (len(body["starts"]), body["more_from"]) == (7, first + 7 * step)
    rest = client.get(f"/v1/history?step={step}&from={body['more_from']}").json()
    assert body["readings"] + rest["readings"] == [4] * 14
    last = client.get(f"/v1/history?step={step}&from={rest['more_from']}").json()
    assert (last["readings"], last["more_from"]) == ([4], None)


def test_which_client_feeds_which_cluster_is_counted_over_the_time_that_is_asked_for(
    tmp_path: Path,
) -> None:
    origin = (CONTRACT.federation, CONTRACT.digest, "fcac")
    bins: list[HistoryBin | HistoryNames] = [HistoryNames(*origin, ["attic", "cellar"], [])]
    for n in range(60):
        cells = [0, 1, 3, 0, 2, 1, 1, NO_CLUSTER, 5, 1, 2, 5] if n < 30 else [0, 2, 4]
        bins.append(HistoryBin.of(*origin, FINE_S, START + FINE_S * n, 1, [1, 9], [0, 9], cells))
    client = client_of(stored(tmp_path, bins))
    body = client.get("/v1/feeds").json()
    assert (body["model"], body["start"], body["end"]) == ("fcac", START, START + 60 * FINE_S)
    assert body["clients"] == {"attic": [[2, 63], [1, 37]], "cellar": [[2, 100]]}
    body = client.get(f"/v1/feeds?to={START + 29 * FINE_S}").json()
    assert body["clients"] == {"attic": [[1, 75], [2, 25]], "cellar": [[2, 100]]}
    body = client.get(f"/v1/feeds?from={START + 59 * FINE_S + 1}").json()
    assert (body["start"], body["clients"]) == (START + 59 * FINE_S, {"attic": [[2, 100]]})
    assert client.get(f"/v1/feeds?from={START + 90 * FINE_S}").json()["clients"] == {}
    assert client.get("/v1/feeds?from=x").status_code == 400
    assert client_of(None).get("/v1/feeds").status_code == 404


def test_the_clusters_say_what_they_are_which_clients_feed_them_and_how_their_shares_moved(
    tmp_path: Path,
) -> None:
    body = client_of(stored(tmp_path, the_bins())).get("/v1/clusters").json()
    assert len(body["clusters"]) == 3
    (one,) = [cluster for cluster in body["clusters"] if cluster["identity"] == 1]
    assert one["trend"] == [750, 500]
    assert one["trend_text"] == "50 to 75 % in 10 minutes"
    assert one["fed_by"] == [
        {"client": "attic", "share": 0.75},
        {"client": "cellar", "share": 0.25},
    ]
    assert one["fed_by_text"] == "attic 75 %, cellar 25 %"
    assert one["text"]
    assert len(one["centre"]) == len(one["spread"]) == CONTRACT.width
    assert one["spread"][0]["low"] <= one["spread"][0]["middle"] <= one["spread"][0]["high"]
    assert (body["trend_from"], body["trend_step_s"]) == (START, FINE_S)


def test_clusters_without_a_history_and_a_model_without_a_snapshot(tmp_path: Path) -> None:
    (one, *_) = client_of(None).get("/v1/clusters").json()["clusters"]
    assert (one["trend"], one["fed_by"], one["trend_text"], one["fed_by_text"]) == ([], [], "", "")
    empty = WebClient(create_app(StatusBoard(a_status(CONTRACT)), CollectorRegistry(), predict))
    assert empty.get("/v1/clusters").json()["clusters"] == []


def test_the_page_gets_the_same(tmp_path: Path) -> None:
    body = json.loads(PageRenderer("", Reports(stored(tmp_path, the_bins()))).render(STATUS).body)
    one = body["models"][0]["clustering"]["clusters"]["1"]
    assert (one["trend_text"], one["fed_by_text"]) == (
        "50 to 75 % in 10 minutes",
        "attic 75 %, cellar 25 %",
    )


# The command.


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A federation file whose log has the history of `the_bins`."""
    file = tmp_path / "plant.toml"
    features = "".join(
        f'[[features]]\nname = "{name}"\nlow = 0.0\nhigh = 1.0\n' for name in ("warm", "damp")
    )
    model = '[[models]]\nname = "fcac"\nalgorithm = "fcac"\n[log]\naddress = "sqlite:log.db"\n'
    file.write_text(
        f'[federation]\nname = "plant"\n{features}[privacy]\nmode = "off"\n{model}',
        encoding="utf-8",
    )
    config = load_config(file)
    log = open_log(config.log)
    ensure_topics(log, config.contract, config.log)
    for history_bin in the_bins(config.contract):
        log.publish(
            config.contract.history_topic,
            history_bin.encode(),
            history_bin.record_key,
            history_bin.headers(),
        )
    log.flush()
    log.close()
    return file


def export(file: Path, *options: str) -> str:
    ran = CliRunner().invoke(shoal, ["history", "export", "--config", str(file), *options])
    assert ran.exception is None, ran.output
    if "--out" in options:
        out = Path(options[options.index("--out") + 1])
        rows = (
            pyarrow.parquet.read_table(out).num_rows
            if out.suffix == ".parquet"
            else out.read_text().count("\n") - 1
        )
        assert (ran.stdout, ran.stderr) == ("", f"{out}: {rows} row{'s' * (rows != 1)}\n")
    return ran.output


def test_the_history_is_exported_as_csv_oldest_bin_first_and_largest_cluster_first(
    file: Path,
) -> None:
    rows = list(csv.DictReader(io.StringIO(export(file, "--step", "300"))))
    assert [
        (row["time"], row["cluster"], row["name"], row["readings"], row["share"]) for row in rows
    ] == [
        ("2027-01-15T08:00:00Z", "1", "night", "30", "0.75"),
        ("2027-01-15T08:00:00Z", "2", "", "10", "0.25"),
        ("2027-01-15T08:05:00Z", "", "", "10", "0.5"),
        ("2027-01-15T08:05:00Z", "1", "night", "10", "0.5"),
    ]
    assert {row["seconds"] for row in rows} == {"300"}
    assert len(export(file, "--step", "300", "--from", "2027-01-15T08:05").splitlines()) == 3
    assert len(export(file, "--step", "300", "--to", "2027-01-15T08:00:00Z").splitlines()) == 3
    export(file, "--step", "300", "--out", str(file.with_name("history.csv")))


def test_it_is_exported_by_client_and_as_json_lines(file: Path) -> None:
    with file.open("a", encoding="utf-8") as text:
        text.write('[server.client_names]\ncellar = "Keller Süd"\n')
    rows = [
        json.loads(line)
        for line in export(file, "--of", "clients", "--format", "jsonl").splitlines()
    ]
    row = {"time": "2027-01-15T08:00:00Z", "seconds": 1800}
    assert rows == [
        {**row, "client": "attic", "client_name": "", "readings": 45, "share": 0.75},
        {**row, "client": "cellar", "client_name": "Keller Süd", "readings": 15, "share": 0.25},
    ]


@pytest.mark.parametrize("what", ["clusters", "clients"])
def test_it_is_exported_as_parquet_with_times_and_whole_numbers(file: Path, what: str) -> None:
    out = file.with_name("history.parquet")
    export(file, "--format", "parquet", "--out", str(out), "--of", what)
    table = pyarrow.parquet.read_table(out)
    assert str(table.schema.field("time").type).startswith("timestamp")
    assert sum(table.column("readings").to_pylist()) == 60
    assert table.column("time").to_pylist()[0].timestamp() == START


def test_events_of_a_model_that_is_not_there_are_not_an_empty_list(file: Path) -> None:
    ran = CliRunner().invoke(shoal, ["events", "list", "--config", str(file), "--model", "other"])
    assert "there are fcac" in str(ran.exception)


def test_an_empty_history_is_a_header(file: Path) -> None:
    assert (
        export(file, "--from", "2030-01-01") == "time,seconds,cluster,name,label,readings,share\n"
    )


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["--model", "other"], "there are fcac"),
        (["--format", "parquet"], "--out FILE"),
        (["--out", "no/such/folder/h.csv"], "cannot be written"),
    ],
)
def test_a_mistake_is_answered_with_advice(file: Path, options: list[str], advice: str) -> None:
    ran = CliRunner().invoke(shoal, ["history", "export", "--config", str(file), *options])
    assert advice in str(ran.exception)


def test_changes_are_those_of_the_command_and_spans_that_cannot_be_are_refused(
    tmp_path: Path,
) -> None:
    client = client_of(stored(tmp_path, the_bins()))
    body = client.get(f"/v1/changes?before_from={START}&from={START + 300}&to={START + 600}").json()
    assert (body["before"]["end"], body["after"]["start"], body["bin_s"]) == (
        START + 300,
        START + 300,
        FINE_S,
    )
    assert [
        (cluster["cluster"], cluster["kind"], cluster["share"]) for cluster in body["gone"]
    ] == [(2, "quiet", 0.25)]
    assert (body["new"], body["moved"], body["share_moved"], body["compared"]) == ([], [], [], 0)
    assert client.get("/v1/changes").status_code == 200, "the halves of the history"
    for query in (
        f"?from={START + 600}&to={START}",
        "?from=x",
        "?chance=2",
        "?chance=x",
        f"?to={START - 1}",
    ):
        assert client.get(f"/v1/changes{query}").status_code == 400, query
    assert client_of(stored(tmp_path / "new", [])).get("/v1/changes").status_code == 400
    assert client_of(None).get("/v1/changes").status_code == 404
    nothing = {"model": body["model"], "cycles": [], "hidden": []}
    assert client.get("/v1/cycles").json() == nothing, "the history is too short"
    assert client_of(None).get("/v1/cycles").status_code == 404
