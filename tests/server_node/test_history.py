"""The history of clusters: bins by the times in the updates, the same after a restart, a kill and a
rebuild."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.config.resolved import resolve
from shoal.config.settings import load_config
from shoal.errors import InvalidState, LogUnavailable, MessageRejected
from shoal.kernels.constants import COUNT_MAX
from shoal.protocol.codec import pack, unpack
from shoal.protocol.history import (
    BINS_KEPT,
    CELLS_MAX,
    COARSE_S,
    DAY_S,
    FINE_S,
    NO_CLUSTER,
    PLACES_S,
    WITH_PLACES,
    BinKey,
    HistoryBin,
    HistoryNames,
    key_of,
    pack_table,
    pairs,
    triples,
)
from shoal.protocol.messages import Update
from shoal.runtime.service import resumed
from shoal.server_node import node as server_node
from shoal.server_node.bootstrap import open_server
from shoal.server_node.history import store as history_store
from shoal.server_node.history.attribution import (
    COORDINATES_MAX,
    LARGEST_WEIGHT,
    PARTS_MAX,
    POINTS_MAX,
    POINTS_MIN,
    UPDATES_MAX,
    Attribution,
    WaitingUpdate,
    WaitingUpdates,
    points_compared,
    sampled,
    whole_weights,
)
from shoal.server_node.history.bins import Bin, Cells, Counts, Summed
from shoal.server_node.history.recent import BINS_MIN, RecentHistory, recent_history
from shoal.server_node.history.recorder import OPEN_MAX, Recorder
from shoal.server_node.history.sources import NOTHING_PUBLISHED
from shoal.server_node.history.store import (
    DAMAGED_FILE,
    HISTORY_FILE,
    HistoryReader,
    HistoryRecord,
    HistoryStore,
)
from shoal.server_node.history.usual import usual
from shoal.server_node.ingest.requests import quarantine_records
from shoal.server_node.node import ServerNode
from shoal.transports.base import Positions, Record, latest
from shoal.transports.sqlite.log import SqliteLog
from tests.forked_python import nodes
from tests.house.rounds_federation import KMEANS, create_rounds_federation, run_in_rounds
from tests.house.small_federation import CLIENTS, clock
from tests.server_node.server_fixture import ServerFixture
from tests.small_plant import an_update, nodes_at, plant

START = 1_000_000_800
"""a time at which a bin of both widths begins"""
EVER = (-1e12, 1e12, 100_000)


def site_in(folder: Path, **settings: Any) -> ServerFixture:
    """A server whose clock is later than all times of the updates."""
    site = ServerFixture(folder, **settings)
    site.clock.now = START + 1e6
    return site


def updates_at(
    site: ServerFixture, *times: float, client: str = "attic", first: int = 1
) -> list[Update]:
    """Updates of one client, whose newest readings have these times."""
    return [
        an_update(site.contract, client, sequence, made_at=at + 1, newest_reading_at=at)
        for sequence, at in enumerate(times, first)
    ]


def bins_of(site: ServerFixture, width: int = FINE_S) -> list[HistoryBin]:
    return HistoryReader(site.folder / HISTORY_FILE).bins("clusters", width, *EVER)


def readings_in(one: HistoryBin) -> int:
    return sum(readings for _, readings in pairs(one.clusters))


# Bins.


def test_readings_are_counted_into_the_bins_of_their_times_by_cluster_and_by_client(
    tmp_path: Path,
) -> None:
    site = site_in(tmp_path)
    site.send(*updates_at(site, START, START + 299, START + 300, START + 1800))
    site.send(*updates_at(site, START + 10, client="cellar"))
    site.run()
    fine = bins_of(site)
    coarse = bins_of(site, COARSE_S)
    assert [(history_bin.start - START, readings_in(history_bin)) for history_bin in fine] == [
        (0, 120),
        (300, 40),
        (1800, 40),
    ]
    assert [(history_bin.start - START, readings_in(history_bin)) for history_bin in coarse] == [
        (0, 160),
        (1800, 40),
    ]
    assert pairs(fine[0].clients) == [(0, 80), (1, 40)]
    assert sum(readings for *_, readings in triples(fine[0].cells)) == 120
    assert triples(coarse[0].cells) == [], (
        "bins that are kept for a year hold no pairs of client and cluster"
    )
    names = HistoryReader(site.folder / HISTORY_FILE).names("clusters")
    assert names is not None
    assert names.clients == ["attic", "cellar"]


def test_the_readings_of_an_update_spread_over_the_time_that_they_span(tmp_path: Path) -> None:
    """An hourly sensor's 40 readings are in `PARTS_MAX` bins; hourly data of five years show five
    years."""
    site = site_in(tmp_path)
    hour = 3600
    site.clock.now = START + 2e8
    updates = [
        replace(update, oldest_reading_at=at - 39 * hour)
        for at in (START + 39 * hour, START + 1826 * 86_400)
        for update in updates_at(site, at, first=1 + (at > START + 39 * hour))
    ]
    # From the same day: a history begins with the first cluster.
    site.send(*updates_at(site, *[START - 10.0] * 5, client="cellar"))
    site.send(updates[0])
    site.run()
    moments = [n * 39 * hour // (PARTS_MAX - 1) // COARSE_S * COARSE_S for n in range(PARTS_MAX)]
    before, *counted = bins_of(site, COARSE_S)
    assert (before.start - START, readings_in(before)) == (-COARSE_S, 200)
    assert [history_bin.start - START for history_bin in counted] == moments
    assert sum(map(readings_in, counted)) == 40
    # The readings of each cluster are divided evenly, and rounded.
    assert all(3 <= readings_in(history_bin) <= 7 for history_bin in counted)
    site.send(updates[1])
    site.run()
    days = bins_of(site, DAY_S)
    assert sum(map(readings_in, days)) == 280
    assert days[-1].start - days[0].start == 1826 * 86_400
    found = usual(HistoryReader(site.folder / HISTORY_FILE), "clusters")
    assert found is not None
    assert found.oldest == days[0].start


def test_readings_fall_to_the_known_clusters_once_there_are_some(tmp_path: Path) -> None:
    site = site_in(tmp_path, batch_updates_max=1)
    site.send(*updates_at(site, *(START + 300 * place for place in range(40))))
    with site.server() as server:
        while server.step():
            pass
        known = {cluster.identity for cluster in server.models()["clusters"].lineage.known}
    bins = bins_of(site)
    assert known
    assert sum(map(readings_in, bins)) == 1600
    for history_bin in bins:
        assert {identity for identity, _ in pairs(history_bin.clusters)} <= known | {NO_CLUSTER}
    assert sum(readings for identity, readings in pairs(bins[0].clusters) if identity in known), (
        "the first ones waited for the first cluster"
    )


def test_readings_of_a_time_without_clusters_are_those_of_none_once_they_are_many(
    tmp_path: Path,
) -> None:
    """They wait for the first cluster, over a kill of the server too, but not in any number."""
    site = site_in(tmp_path)
    updates = updates_at(site, *(START for _ in range(UPDATES_MAX)))
    empty = nodes_at(np.empty((0, 2)))
    updates = [replace(update, arrays=empty) for update in updates]
    site.send(*updates[:9])
    site.run()
    assert bins_of(site) == []
    site.send(*updates[9:])
    site.run()
    (one,) = bins_of(site)
    assert pairs(one.clusters) == [(NO_CLUSTER, 40 * UPDATES_MAX)]


def test_an_update_without_readings_and_a_server_without_updates_make_no_bins(
    tmp_path: Path,
) -> None:
    site = site_in(tmp_path)
    site.run()
    assert bins_of(site) == []
    nothing = nodes_at(np.empty((0, 2)))
    site.send(an_update(site.contract, arrays=nothing, readings=0))
    site.run()
    assert bins_of(site) == []
    assert HistoryReader(site.folder / HISTORY_FILE).names("clusters") is None


def test_a_time_in_the_future_counts_as_now_and_one_before_1970_has_a_bin_too(
    tmp_path: Path,
) -> None:
    site = site_in(tmp_path)
    site.clock.now = START + 7200.0
    site.send(*updates_at(site, START + 1e8, client="cellar"))
    site.run()
    assert [history_bin.start for history_bin in bins_of(site)] == [START + 7200]
    early = site_in(tmp_path / "early")
    early.send(*updates_at(early, *[-1.0] * 5))
    early.run()
    assert [history_bin.start for history_bin in bins_of(early)] == [-300]


def test_the_rows_behind_the_answers_of_a_model_in_rounds_are_counted_too(tmp_path: Path) -> None:
    file = create_rounds_federation(tmp_path, KMEANS, readings=200)
    run_in_rounds(file)
    config = load_config(file)
    reader = HistoryReader(config.server.folder / HISTORY_FILE)
    bins = reader.bins("heaps", FINE_S, *EVER)
    found = recent_history(reader, "heaps")
    assert found is not None
    assert found.shares
    for history_bin in bins:
        assert readings_in(history_bin) == sum(
            readings for _, readings in pairs(history_bin.clients)
        )
    assert {client for shares in found.feeding.values() for client, _ in shares} <= set(CLIENTS)
    shutil.rmtree(config.server.folder)
    with resumed(open_server(config, rebuild=True, clock=clock)) as server:
        while server.step():
            pass
    assert reader.bins("heaps", FINE_S, *EVER) == bins, "though the rounds are not run again"


# Restarts.


def test_a_rebuild_from_the_log_alone_gives_the_same_bins(tmp_path: Path) -> None:
    site = site_in(tmp_path, snapshot_updates=3)
    site.send(*updates_at(site, *(START + 200 * place for place in range(20))))
    site.run()
    before = [bins_of(site, width) for width in BINS_KEPT]
    assert all(before)
    site.delete_checkpoint()
    for name in (HISTORY_FILE, f"{HISTORY_FILE}-wal", f"{HISTORY_FILE}-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    site.run(rebuild=True)
    assert [bins_of(site, width) for width in BINS_KEPT] == before
    site.send(*updates_at(site, *[START + 200 * 19 + 1] * 3, first=21))
    site.run()
    assert readings_in(bins_of(site)[-1]) == readings_in(before[0][-1]) + 120, (
        "and it goes on with these"
    )


def test_a_server_that_is_killed_after_every_update_has_the_bins_of_one_that_is_not(
    tmp_path: Path,
) -> None:
    found = []
    for folder, every_time in (("steady", False), ("killed", True)):
        site = site_in(tmp_path / folder, snapshot_updates=4, batch_updates_max=1)
        site.send(*updates_at(site, *(START + 250 * place for place in range(12))))
        if every_time:
            for _ in range(12):
                with site.server() as server:
                    server.step()
        site.run()
        found.append(
            [
                [replace(history_bin, updates=0) for history_bin in bins_of(site, width)]
                for width in BINS_KEPT
            ]
        )
    assert found[0] == found[1]


def test_readings_that_come_days_late_are_added_to_the_bin_that_was_published(
    tmp_path: Path,
) -> None:
    site = site_in(tmp_path)
    site.send(*updates_at(site, *(START + 300 * place for place in range(OPEN_MAX + 5))))
    site.run()
    site.send(*updates_at(site, START + 20, client="cellar"))
    site.run()
    assert [readings_in(history_bin) for history_bin in bins_of(site)][:2] == [80, 40]


def test_bins_that_are_too_old_are_removed_from_the_log_and_from_the_file(tmp_path: Path) -> None:
    site = site_in(tmp_path)
    kept_s = BINS_KEPT[FINE_S] * FINE_S
    site.send(*updates_at(site, START, START + 300))
    site.run()
    assert len(bins_of(site)) == 2
    site.send(*updates_at(site, START + 301, START + 300 + kept_s, first=3))
    site.run()
    assert [history_bin.start - START for history_bin in bins_of(site)] == [300 + kept_s]
    assert len(bins_of(site, COARSE_S)) == 2, "coarse bins are kept for longer"
    gone = [
        record.key
        for record in site.records_in(site.contract.history_topic)
        if record.value is None
    ]
    assert gone == [BinKey("clusters", FINE_S, START + later).encode() for later in (0, 300)]
    site.send(*updates_at(site, START, client="cellar"))
    site.run()
    assert [history_bin.start - START for history_bin in bins_of(site)] == [300 + kept_s], (
        "nor do they come back"
    )


def test_a_damaged_file_and_one_of_another_log_are_made_again_from_the_log(tmp_path: Path) -> None:
    site = site_in(tmp_path)
    site.send(*updates_at(site, START, START + 300))
    site.run()
    before = bins_of(site)
    (tmp_path / HISTORY_FILE).write_bytes(
        b"not a database, and longer than a header of one would be" * 40
    )
    site.run()
    assert bins_of(site) == before
    with sqlite3.connect(tmp_path / HISTORY_FILE) as file:
        file.execute("UPDATE about SET value = '00' WHERE name = 'log'")
        file.execute(f"DELETE FROM bins_{FINE_S}")
    site.run()
    assert bins_of(site) == before


def test_models_go_on_while_the_history_is_made_again_and_nothing_shows_a_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Updates, a new cluster's first readings and a kill in the middle: the bins are those of a
    server whose history was never away."""
    monkeypatch.setattr(history_store, "READ_AT_ONCE", 2)
    monkeypatch.setattr(server_node, "HISTORY_START_S", 0.0)
    monkeypatch.setattr(server_node, "HISTORY_STEP_S", 0.0)
    early = [START + 200 * place for place in range(20)]
    found = []
    for name in ("undisturbed", "disturbed"):
        site = site_in(tmp_path / name, snapshot_updates=1)
        later = updates_at(site, START + 3700, START + 3950, START + 900, first=21)
        site.send(*updates_at(site, *early))
        with site.server() as server:
            _step_to_the_end(server)
            for update in later if name == "undisturbed" else ():
                site.send(update)
                server.step()
        if name == "disturbed":
            path = site.folder / HISTORY_FILE
            path.write_bytes(b"not a database, and longer than a header of one would be" * 40)
            with monkeypatch.context() as during:
                during.setattr(HistoryStore, "bins_at", _whole_bins_at)
                _learn_beside_the_history(site, later)
        models = site.run()
        found.append(([bins_of(site, width) for width in BINS_KEPT], models))
    undisturbed, disturbed = found
    assert all(undisturbed[0])
    assert [_counts(bins) for bins in disturbed[0]] == [_counts(bins) for bins in undisturbed[0]]
    assert disturbed[1] == undisturbed[1]


def _whole_bins_at(store: HistoryStore, *_: Any) -> list[HistoryBin]:
    """In place of the reads by which events of shares, and times of clusters, are found."""
    assert store.whole, "nothing is found in a part"
    return []


def _learn_beside_the_history(site: ServerFixture, later: Sequence[Update]) -> None:
    """Absorb and publish these, one in each step, before the history is whole."""
    reader = HistoryReader(site.folder / HISTORY_FILE)
    shares = []
    for place, update in enumerate(later, 21):
        site.send(update)
        # A server that was killed: what it had read of the history is not read again.
        with site.server() as server:
            assert server.step()
            assert site.snapshots()[-1].updates == place, "the model has not waited"
            status = server.status()
            assert 0.0 < status.history_read < 1.0
            shares.append(reader.share_read())
            with pytest.raises(LogUnavailable, match="made again from the log"):
                reader.bins("clusters", FINE_S, *EVER)
    assert shares == sorted(set(shares)), "each goes on where the one before was killed"
    assert shares[-1] < 1.0


def test_before_a_new_history_has_looked_into_the_log_it_is_not_said_to_be_empty(
    tmp_path: Path,
) -> None:
    HistoryStore(resolve(plant()), tmp_path / HISTORY_FILE).close()
    with pytest.raises(LogUnavailable, match="0% of which has been read"):
        HistoryReader(tmp_path / HISTORY_FILE).extent("clusters", FINE_S)


def _counts(bins: Sequence[HistoryBin]) -> list[HistoryBin]:
    """Without the number of updates: what was held is published with a later snapshot."""
    return [replace(counted, updates=0) for counted in bins]


def test_a_history_that_is_held_in_large_numbers_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for it is in each checkpoint, and must not grow without end."""
    monkeypatch.setattr(history_store, "READ_AT_ONCE", 1)
    monkeypatch.setattr(server_node, "HISTORY_START_S", 0.0)
    monkeypatch.setattr(server_node, "HISTORY_STEP_S", 0.0)
    monkeypatch.setattr(server_node, "HELD_MAX", 0)
    site = site_in(tmp_path)
    site.send(*updates_at(site, *(START + 300 * place for place in range(9))))
    site.run()
    (tmp_path / HISTORY_FILE).write_bytes(b"not a database, and longer than a header" * 40)
    site.send(*updates_at(site, START + 2700, first=10))
    with site.server() as server:
        server.step()
        assert server.status().history_read < 1.0
        server.step()
        assert server.status().history_read == 1.0
        assert server.models()["clusters"].held_history == 0
    assert [readings_in(counted) for counted in bins_of(site)] == [40] * 10


def test_a_start_reads_nothing_of_the_history_that_the_server_has_written_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_in(tmp_path)
    monkeypatch.setattr(history_store, "NOTE_S", 0.0)
    with site.server() as server:
        for update in updates_at(site, START, START + 300, START + 310):
            site.send(update)
            server.step()
    topic = site.contract.history_topic
    end = _end_of(site, topic)
    read: list[int] = []
    read_log = SqliteLog.read

    def counted(
        log: SqliteLog, name: str, *options: Any, **named: Any
    ) -> tuple[Sequence[Record], Positions]:
        records, at = read_log(log, name, *options, **named)
        read.extend([len(records)] * (name == topic))
        return records, at

    monkeypatch.setattr(SqliteLog, "read", counted)
    site.run()
    assert sum(read) == _end_of(site, topic) - end < end, "what its outbox has published again"
    # What another writer has written meanwhile is read all the same.
    foreign = a_bin(START + 600, {0: 5})
    with site.server() as server:
        with site.log() as log:
            log.publish(topic, foreign.encode(), foreign.record_key, foreign.headers())
            log.flush()
        site.send(*updates_at(site, START + 900, first=4))
        server.step()
        assert foreign not in bins_of(site)
    site.run()
    assert foreign in bins_of(site)


def _end_of(site: ServerFixture, topic: str) -> int:
    with site.log() as log:
        return sum(end for _, end in log.bounds(topic).values())


UNPRIVILEGED = """
import os, sys
from pathlib import Path
from shoal.server_node.history.store import HistoryStore
from shoal.config.contract import parse_contract
from shoal.config.resolved import resolve
from shoal.errors import ShoalError
contract = parse_contract({
    "federation": {"name": "plant"}, "features": [{"name": "warm", "low": 0, "high": 1}],
    "privacy": {"mode": "off"}, "models": [{"name": "clusters", "algorithm": "fcac"}],
})
if os.geteuid() == 0:  # root may write everything
    os.setgid(65534); os.setuid(65534)
try:
    HistoryStore(resolve(contract), Path(sys.argv[1]))
except ShoalError as refused:
    print(type(refused).__name__, refused)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


@pytest.mark.skipif(os.name != "posix", reason="rights as POSIX has them")
@pytest.mark.parametrize(
    "case", ["new file", "file", "file in a folder that may be written", "damaged file"]
)
def test_a_file_that_this_user_may_not_write_ends_the_server_with_advice(
    open_folder: Path, case: str
) -> None:
    path = open_folder / HISTORY_FILE
    if case == "damaged file":
        path.write_bytes(b"not a database, and longer than a header of one would be" * 40)
    elif case != "new file":
        HistoryStore(resolve(plant()), path).close()
    for file in open_folder.iterdir():
        file.chmod(0o444)
    open_folder.chmod(0o777 if case == "file in a folder that may be written" else 0o555)
    result = nodes().run_text(path, program=UNPRIVILEGED, cwd=Path("/"))
    assert result.stdout.startswith(f"SettingsError {path}: cannot be written"), result
    assert "that this user may write" in result.stdout


def _drop_tables(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        for table in (*(f"bins_{width}" for width in BINS_KEPT), "names", "about"):
            other.execute(f"DROP TABLE {table}")


def test_a_file_that_fails_while_the_server_runs_is_set_aside_and_retriable(
    tmp_path: Path,
) -> None:
    """Whatever it is asked for; the topic is there to make the file again."""
    path = tmp_path / HISTORY_FILE
    uses: list[Callable[[HistoryStore], object]] = [
        lambda store: store.bin(BinKey("clusters", FINE_S, START)),
        lambda store: store.names("clusters"),
        lambda store: store.newest("clusters", FINE_S),
        lambda store: store.forgotten(["clusters"], []),
        lambda store: store.expired([HistoryRecord(b"", a_bin(START, {0: 1}))]),
    ]
    for use in uses:
        with closing(HistoryStore(resolve(plant()), path)) as store:
            _drop_tables(path)
            with pytest.raises(LogUnavailable, match="made again from the log"):
                use(store)
        assert (tmp_path / DAMAGED_FILE).exists()
        (tmp_path / DAMAGED_FILE).unlink()


@pytest.mark.parametrize("found_by", ["the server at its start", "the server", "the page"])
def test_a_flipped_bit_in_a_bin_costs_no_update_and_no_bin(tmp_path: Path, found_by: str) -> None:
    """The service builds its node again after a retriable error, as it does after an outage."""
    site = site_in(tmp_path)
    site.send(*updates_at(site, START, START + 300))
    site.run()
    before = bins_of(site)
    path = tmp_path / HISTORY_FILE
    with site.server() if found_by != "the server at its start" else nullcontext() as server:
        _flip_a_bit(path)
        site.send(*updates_at(site, START + 310, first=3))
        if found_by == "the page":
            with pytest.raises(LogUnavailable, match="damaged"):
                bins_of(site)
        if server is not None:
            with pytest.raises(LogUnavailable, match="made again from the log"):
                _step_to_the_end(server)
    after = site.run()
    assert (tmp_path / DAMAGED_FILE).exists()
    assert bins_of(site)[0] == before[0]
    assert [readings_in(counted) for counted in bins_of(site)] == [40, 80]
    undisturbed = site_in(tmp_path / "undisturbed")
    undisturbed.send(*updates_at(undisturbed, START, START + 300))
    undisturbed.run()
    undisturbed.send(*updates_at(undisturbed, START + 310, first=3))
    assert undisturbed.run() == after


def _step_to_the_end(server: ServerNode) -> None:
    while server.step():
        pass


def _flip_a_bit(path: Path) -> None:
    """In a count of every bin, so that SQLite finds nothing wrong with the file."""
    with closing(sqlite3.connect(path)) as file:
        for width in BINS_KEPT:
            for start, value in file.execute(f"SELECT start, value FROM bins_{width}").fetchall():
                flipped = value[:-1] + bytes([value[-1] ^ 1])
                update = f"UPDATE bins_{width} SET value = ? WHERE start = ?"
                file.execute(update, (flipped, start))
        file.commit()


def test_a_full_disk_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / HISTORY_FILE
    first = a_bin(START, {0: 1})
    more = [a_bin(START + FINE_S * place, {0: 1}) for place in range(1, 500)]
    with closing(HistoryStore(resolve(plant()), path)) as store:
        store.apply([HistoryRecord(first.record_key, first)])
        (pages,) = store._file.execute("PRAGMA page_count").fetchone()
        store._file.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(LogUnavailable, match="make room"):
            store.apply([HistoryRecord(message.record_key, message) for message in more])
        assert store.bin(BinKey("clusters", FINE_S, START)) == first
    assert not (tmp_path / DAMAGED_FILE).exists()


def _site_that_does_not_wait(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ServerFixture:
    """One with two bins whose server does not wait for a file that another process holds."""
    monkeypatch.setattr(history_store, "WAIT_S", 0.0)
    site = site_in(folder)
    site.send(*updates_at(site, START, START + 300))
    site.run()
    return site


def test_models_do_not_wait_for_a_history_that_another_process_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What can be made again stops nothing: the history is in memory until the file is free."""
    site = _site_that_does_not_wait(tmp_path, monkeypatch)
    before = bins_of(site)
    assert len(before) == 2
    with closing(sqlite3.connect(tmp_path / HISTORY_FILE, isolation_level=None)) as other:
        with site.server() as server:
            other.execute("BEGIN IMMEDIATE")
            site.send(*updates_at(site, START + 310, first=3))
            with pytest.raises(LogUnavailable, match="another process holds it"):
                _step_to_the_end(server)
        # The service builds its node again, as after an outage.
        with site.server() as server:
            site.send(*updates_at(site, START + 600, first=4))
            _step_to_the_end(server)
            assert "history_in_memory" in caplog.messages
            assert bins_of(site) == before, "the file is as it was"
            other.execute("ROLLBACK")
            history_store._UNUSABLE_UNTIL[tmp_path / HISTORY_FILE] = 0.0
            site.send(*updates_at(site, START + 900, first=5))
            with pytest.raises(LogUnavailable, match="can be used again"):
                _step_to_the_end(server)
    after = site.run()
    assert [readings_in(counted) for counted in bins_of(site)] == [40, 80, 40, 40]
    undisturbed = site_in(tmp_path / "undisturbed")
    undisturbed.send(*updates_at(undisturbed, START, START + 300))
    undisturbed.run()
    later = updates_at(undisturbed, START + 310, START + 600, START + 900, first=3)
    undisturbed.send(*later)
    assert undisturbed.run() == after


def test_a_server_starts_while_another_process_holds_its_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = _site_that_does_not_wait(tmp_path, monkeypatch)
    before = bins_of(site)
    with closing(sqlite3.connect(tmp_path / HISTORY_FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        site.send(*updates_at(site, START + 600, first=3))
        site.run()
        assert "history_in_memory" in caplog.messages
        assert bins_of(site) == before, "the file is as it was"
    history_store._UNUSABLE_UNTIL[tmp_path / HISTORY_FILE] = 0.0
    site.run()
    assert [readings_in(counted) for counted in bins_of(site)] == [40, 40, 40]


def test_small_bins_that_stay_lie_side_by_side_though_large_ones_between_them_are_removed(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(1)
    origin = ("plant", plant().digest, "clusters")
    kept = 3

    def counts(columns: int, rows: int) -> list[int]:
        table = [np.arange(rows)] * (columns - 1) + [rng.poisson(1000, rows)]
        return [int(number) for number in np.column_stack(table).ravel()]

    lengths = []
    with closing(HistoryStore(resolve(plant()), tmp_path / HISTORY_FILE)) as store:
        for place in range(300):
            coarse = HistoryBin.of(
                *origin, COARSE_S, COARSE_S * place, 1, counts(2, 60), counts(2, 200), []
            )
            fine = HistoryBin.of(*origin, FINE_S, FINE_S * place, 1, [], [], counts(3, CELLS_MAX))
            records = [
                HistoryRecord(history_bin.record_key, history_bin) for history_bin in (coarse, fine)
            ]
            if place >= kept:
                records.append(
                    HistoryRecord(
                        BinKey("clusters", FINE_S, FINE_S * (place - kept)).encode(), None
                    )
                )
            store.apply(records)
            lengths.append((len(coarse.encode()), len(fine.encode())))
    needed = sum(coarse for coarse, _ in lengths) + sum(fine for _, fine in lengths[-kept:])
    with closing(sqlite3.connect(tmp_path / HISTORY_FILE)) as file:
        # Those of the other widths, which are empty here: a page for each table and for its index.
        empty = 2 * (len(BINS_KEPT) - 2) * int(file.execute("PRAGMA page_size").fetchone()[0])
    assert (tmp_path / HISTORY_FILE).stat().st_size - empty < 1.5 * needed


def test_foreign_records_in_the_topic_are_left_alone(tmp_path: Path) -> None:
    site = site_in(tmp_path)
    site.send(*updates_at(site, *[START] * 5))
    site.run()
    before = bins_of(site)
    (record,) = [
        record
        for record in site.records_in(site.contract.history_topic)
        if record.key == before[0].record_key
    ]
    foreign = replace(before[0], contract="0" * 32, start=START + 300)
    with site.log() as log:
        for key, value in (
            (b"junk", b"junk"),
            (b"\xff/1/x", None),
            (foreign.record_key, foreign.encode()),
        ):
            log.publish(site.contract.history_topic, value, key, HistoryBin.headers())
        log.publish(
            site.contract.history_topic, record.value, b"clusters/300/0", HistoryBin.headers()
        )
        log.flush()
    site.run()
    assert bins_of(site) == before


# Parts.


OF_NUMBER = {0: 10, 1: 11, 2: 11}


def by_first_coordinate(points: Any) -> Any:
    """points (n, d) -> (n,) clusters."""
    return points[:, 0].astype(np.int64)


def parts_of(*updates: WaitingUpdate) -> list[dict[int, int]]:
    """The readings of each update by identity."""
    waiting = WaitingUpdates()
    for update in updates:
        waiting.add(update)
    found = waiting.take(by_first_coordinate, OF_NUMBER)
    return [] if found is None else parts_in(found)


def parts_in(found: Attribution) -> list[dict[int, int]]:
    return [
        dict(zip(found.identities[row > 0].tolist(), row[row > 0].tolist(), strict=True))
        for row in found.readings
    ]


def attribution(at: float, client: str, parts: dict[int, int], number: int) -> Attribution:
    """The readings of one update."""
    row = np.array([list(dict(sorted(parts.items())).values())])
    return Attribution(np.array([at]), [client], np.array([number]), np.array(sorted(parts)), row)


@given(
    st.integers(0, 10_000) | st.integers(0, 2**53),
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1e6) | st.floats(0, 1.7e308)), max_size=300),
)
def test_the_parts_of_an_update_are_whole_and_add_up(
    readings: int, points: list[tuple[int, float]]
) -> None:
    places = np.array([[float(number)] for number, _ in points])
    weights = np.array([weight for _, weight in points])
    (parts,) = parts_of(WaitingUpdate(1e9, "attic", readings, 1, places.reshape(-1, 1), weights))
    assert sum(parts.values()) == readings
    assert all(part > 0 for part in parts.values())
    assert set(parts) <= {10, 11, NO_CLUSTER}


def test_readings_are_divided_by_the_weights_of_points() -> None:
    places = np.array([[0.0], [1.0], [2.0], [7.0]])
    one = WaitingUpdate(1e9, "attic", 1000, 1, places, np.array([1.0, 2.0, 3.0, 4.0]))
    assert parts_of(one) == [{10: 100, 11: 500, NO_CLUSTER: 400}]


@given(
    st.lists(st.lists(st.integers(0, 1000), max_size=300), min_size=1, max_size=4),
    st.integers(1, 200),
    st.integers(1, 2**40),
)
def test_points_of_a_large_update_are_looked_at_as_often_as_their_share_of_the_weights(
    weights: list[list[int]], number: int, first: int
) -> None:
    having = np.array([len(of_update) for of_update in weights])
    flat = np.array([weight for of_update in weights for weight in of_update], dtype=np.int64)
    sample = sampled(flat, having, first + np.arange(len(weights)), number)
    for update, start in enumerate((np.cumsum(having) - having).tolist()):
        own = sample.update == update
        times = np.bincount(sample.place[own] - start, minlength=having[update])
        total = max(1, sum(weights[update]))
        assert len(times) == having[update], "no point of another update"
        if having[update] <= number:
            assert (times == 1).all()
            assert (sample.weight[own] == weights[update]).all()
        elif sum(weights[update]):
            assert (len(sample.place[own]), set(sample.weight[own].tolist())) == (number, {1})
            assert (abs(times - number * np.array(weights[update]) / total) < 1 + 1e-9).all()
        else:
            assert not own.any(), "none says that readings fell there"


def test_points_with_small_weights_get_their_shares_over_many_updates() -> None:
    weights = np.array([997] + [2] * 500 + [3] * 1000)
    sample = sampled(
        np.tile(weights, 2000), np.full(2000, len(weights)), np.arange(1, 2001), POINTS_MIN
    )
    times = np.bincount(sample.place % len(weights), minlength=len(weights))
    parts = [times[0], times[1:501].sum(), times[501:].sum()]
    np.testing.assert_allclose(
        np.array(parts) / times.sum(), np.array([997, 1000, 3000]) / weights.sum(), atol=1e-4
    )


def test_weights_that_clients_claim_become_whole_numbers() -> None:
    claimed = [
        [],
        [1.0, 2.0, 0.0, 4.0],
        [],
        [1e308, 1e308],
        [0.0, 0.0],
        [np.inf, 1.0],
        [np.nan, 1.0],
        [3e-320],
    ]
    found = whole_weights(np.concatenate(claimed), np.array([len(weights) for weights in claimed]))
    fourth = LARGEST_WEIGHT // 4
    assert found.tolist() == [
        fourth,
        2 * fourth,
        0,
        4 * fourth,
        4 * fourth,
        4 * fourth,
        0,
        0,
        0,
        0,
        0,
        0,
        4 * fourth,
    ]
    assert not len(whole_weights(np.empty(0), np.array([0, 0])))


def test_fewer_points_are_looked_at_where_each_is_compared_with_many_nodes() -> None:
    found = [points_compared(np.zeros((nodes, 4))) for nodes in (0, 10, 200, 1000, 10_000)]
    assert found[:2] == [POINTS_MAX, POINTS_MAX]
    assert POINTS_MIN < found[2] < POINTS_MAX
    assert found[3:] == [POINTS_MIN, POINTS_MIN]


def an_update_that_waits(number: int, points: int) -> WaitingUpdate:
    rng = np.random.default_rng(number)
    return WaitingUpdate(
        1e9 + number,
        f"c{number}",
        10 * number,
        number,
        4 * rng.random((points, 2)),
        rng.random(points),
    )


def test_updates_that_waited_are_counted_as_each_would_have_been_alone() -> None:
    waiting = WaitingUpdates()
    updates = [an_update_that_waits(n, points) for n, points in enumerate((3, 0, 300, 1, 9))]
    for update in updates:
        assert not waiting.add(update)
    taken = waiting.take(by_first_coordinate, OF_NUMBER)
    assert taken is not None
    assert list(zip(taken.at.tolist(), taken.clients, taken.numbers.tolist(), strict=True)) == [
        (update.at, update.client, update.number) for update in updates
    ]
    assert parts_in(taken) == [parts_of(update)[0] for update in updates]
    assert waiting.take(by_first_coordinate, OF_NUMBER) is None


def test_updates_do_not_wait_in_any_number() -> None:
    for update, most in (
        (
            an_update_that_waits(1, POINTS_MAX)._replace(points=np.zeros((POINTS_MAX, 64))),
            COORDINATES_MAX // 64 // POINTS_MAX,
        ),
        (an_update_that_waits(1, 0), UPDATES_MAX),
    ):
        waiting = WaitingUpdates()
        added = [waiting.add(update) for _ in range(most)]
        assert not any(added[:-1])
        assert added[-1]


def counts_of(readings: dict[int, int]) -> Counts:
    counts = Counts.empty()
    for key, number in readings.items():
        counts = counts.plus(np.array([key]), np.array([number]))
    return counts


@pytest.mark.parametrize(
    ("readings", "kept"),
    [
        ({1: 5, 2: 7, 3: 1}, {1: 5, 2: 7, 3: 1}),
        ({1: 5, 2: 7, 3: 1, 4: 1}, {1: 5, 2: 7, NO_CLUSTER: 2}),
        ({3: 5, 2: 5, 1: 5, NO_CLUSTER: 1}, {1: 5, 2: 5, NO_CLUSTER: 6}),
        ({}, {}),
    ],
)
def test_the_smallest_of_too_many_are_added_up(
    readings: dict[int, int], kept: dict[int, int]
) -> None:
    counts = counts_of(readings)
    assert counts.largest(3, NO_CLUSTER).table().tolist() == [
        list(pair) for pair in sorted(kept.items())
    ]


def test_no_number_of_claimed_readings_that_are_added_up_is_beyond_what_can_be_encoded() -> None:
    counts = counts_of(dict.fromkeys(range(1500), COUNT_MAX))
    assert counts.largest(2, NO_CLUSTER).table().tolist() == [
        [NO_CLUSTER, COUNT_MAX],
        [0, COUNT_MAX],
    ]


def test_a_saved_recorder_goes_on_and_a_damaged_one_is_rejected() -> None:
    recorder = Recorder(plant(), "clusters", NOTHING_PUBLISHED)
    recorder.count(attribution(START, "attic", {0: 3, NO_CLUSTER: 1}, 1))
    recorder.name(0, "warm", "warm high")
    restored = Recorder(plant(), "clusters", NOTHING_PUBLISHED)
    restored.restore(unpack(pack(recorder.state())))
    assert pack(restored.state()) == pack(recorder.state())
    assert restored.take_changed(1) == recorder.take_changed(1)
    assert recorder.take_changed(1) == [], "nothing has changed since"
    for name in recorder.state():
        with pytest.raises(InvalidState):
            restored.restore({key: value for key, value in recorder.state().items() if key != name})


def apart_since(recorder: Recorder) -> list[list[int]]:
    """What is published of it; nothing where the names have not changed."""
    names = [message for message in recorder.take_changed(1) if isinstance(message, HistoryNames)]
    return names[0].apart_since if names else []


def test_clusters_that_were_not_told_apart_are_published_and_kept_with_the_latest_time() -> None:
    recorder = Recorder(plant(), "clusters", NOTHING_PUBLISHED)
    recorder.count(attribution(START, "attic", {0: 3, 1: 1}, 1))
    recorder.name(0, "warm", "")
    recorder.name(1, "cold", "")
    recorder.tell_apart(0, START + 0.5)
    assert apart_since(recorder) == [[0, START + 1]], "no part of a second before"
    recorder.tell_apart(0, START)
    assert apart_since(recorder) == [], "nothing is published again"
    recorder.tell_apart(1, START - 3 * DAY_S)
    restored = Recorder(plant(), "clusters", NOTHING_PUBLISHED)
    restored.restore(unpack(pack(recorder.state())))
    for kept in (recorder, restored):
        # A window of an earlier plan that comes within a day moves the time, and none much later.
        kept.still_mixed(START + 0.5 * DAY_S, START + 0.75 * DAY_S)
        kept.still_mixed(START + 9 * DAY_S, START + 9.5 * DAY_S)
        since = [[0, START + int(0.75 * DAY_S)], [1, START - 3 * DAY_S]]
        assert apart_since(kept) == since
    saved = recorder.state()
    for damaged in ([[7, START]], [[0, START], [0, START]], [[0]]):
        with pytest.raises(InvalidState):
            restored.restore(saved | {"apart_since": np.array(damaged)})


def test_the_span_of_updates_is_published_to_half_an_hour_and_follows_what_they_span() -> None:
    recorder = Recorder(plant(), "clusters", NOTHING_PUBLISHED)
    recorder.count(attribution(START, "attic", {0: 3}, 1))
    recorder.follow_span(8.2 * 3600, 100)
    changed = recorder.take_changed(1)
    [names] = [message for message in changed if isinstance(message, HistoryNames)]
    assert names.update_s == 8 * 3600
    restored = Recorder(plant(), "clusters", NOTHING_PUBLISHED)
    restored.restore(unpack(pack(recorder.state())))
    for kept in (recorder, restored):
        kept.follow_span(600.0, 4)
        assert kept.take_changed(1) == [], "a short one at the end changes nothing"
        for _ in range(100):
            kept.follow_span(600.0, 100)
        [names] = kept.take_changed(1)
        assert isinstance(names, HistoryNames)
        assert names.update_s == 0


def test_a_recorder_without_its_state_goes_on_from_the_times_that_were_published() -> None:
    recorder = Recorder(plant(), "clusters", NOTHING_PUBLISHED)
    recorder.count(attribution(START, "attic", {0: 3}, 1))
    recorder.name(0, "warm", "")
    recorder.tell_apart(0, START)
    store = HistoryStore(resolve(plant()))
    records = [HistoryRecord(message.record_key, message) for message in recorder.take_changed(1)]
    with closing(store):
        store.apply(records)
        again = Recorder(plant(), "clusters", store)
        again.name(0, "warmer", "")
        assert apart_since(again) == [[0, START]]


def test_a_cluster_is_that_of_the_client_from_which_nearly_all_its_readings_come() -> None:
    recorder = Recorder(plant(), "clusters", NOTHING_PUBLISHED)
    assert not recorder.feeding_client(7), "nothing is counted yet"
    recorder.count(attribution(START, "pump-7", {0: 10, 7: 18}, 1))
    recorder.count(attribution(START, "pump-1", {0: 30, 7: 2}, 2))
    assert not recorder.feeding_client(7), "of two clients neither is one of several"
    recorder.count(attribution(START + PLACES_S, "pump-2", {0: 30}, 3))
    restored = Recorder(plant(), "clusters", NOTHING_PUBLISHED)
    restored.restore(unpack(pack(recorder.state())))
    for kept in (recorder, restored):
        assert kept.feeding_client(7) == "pump-7", "of 90 %, in the bin before the newest"
        assert not kept.feeding_client(0)
        assert not kept.feeding_client(8), "which has no readings"
        # 20 of 90 readings of these hours are of the cluster.
        assert kept.feeding_client(7, 0.4) == "pump-7"
        assert not kept.feeding_client(7, 0.5), "most of its readings are of other hours"
        assert kept.feeding_client(7, 0.5, 60.0) == "pump-7", "of the newest 60 readings it has 30"
    recorder.count(attribution(START + PLACES_S, "pump-2", {7: 1}, 4))
    assert not recorder.feeding_client(7)


def test_a_recorder_keeps_few_bins_in_memory() -> None:
    recorder = Recorder(plant(), "clusters", NOTHING_PUBLISHED)
    for update in range(1, 200):
        recorder.count(attribution(START + FINE_S * update, "attic", {0: 1}, update))
        assert sum(bool(saved["bin"]) for saved in recorder.state()["bins"]) == len(BINS_KEPT)
        recorder.take_changed(update)
        left = recorder.state()["bins"]
        assert not any(saved["bin"] for saved in left), "published counts are no part of it"
        assert {saved["width_s"] for saved in left} == set(WITH_PLACES), "places of the newest are"
        assert recorder.open_bins <= OPEN_MAX + len(WITH_PLACES)


@given(
    st.lists(
        st.tuples(
            st.integers(-1, 6), st.dictionaries(st.integers(-1, 9), st.integers(0, 5), min_size=1)
        )
    ),
    st.integers(1, 9),
)
def test_cells_are_the_largest_sums_and_the_first_of_equal_ones(
    updates: list[tuple[int, dict[int, int]]], largest: int
) -> None:
    cells = Cells.empty()
    sums = Counter[tuple[int, int]]()
    for client, parts in updates:
        found = attribution(START, "", parts, 1)
        cells = cells.plus(np.array([client]), found.identities, found.readings)
        sums.update({(client, identity): readings for identity, readings in parts.items()})
    there = sorted((+sums).items(), key=lambda cell: (-cell[1], cell[0]))[:largest]
    expected = sorted((*cell, readings) for cell, readings in there)
    kept = cells.largest(largest).table()
    assert list(map(tuple, kept.tolist())) == expected
    for again in (Cells.of(kept), Cells.read(unpack(pack(cells.saved()))), cells):
        assert again.largest(largest).table().tolist() == kept.tolist()


def message_of(counted: Bin) -> HistoryBin:
    carried = counted.carried(FINE_S, updates=1, over=False)
    return carried.message(("plant", "c", "clusters"), FINE_S, 0, over=False, known={})


READINGS = st.lists(
    st.tuples(st.integers(-1, 5), st.lists(st.integers(0, 9), min_size=3, max_size=3)), min_size=1
)


@given(READINGS)
def test_updates_are_counted_into_a_bin_together_as_one_by_one(
    updates: list[tuple[int, list[int]]],
) -> None:
    clients = np.array([client for client, _ in updates])
    readings = np.array([row for _, row in updates])
    identities = np.array([NO_CLUSTER, 3, 8])
    empty = Bin.empty(FINE_S, features=2)
    together = empty.plus(Summed.of(clients, identities, readings))
    alone = empty
    for place in range(len(updates)):
        here = slice(place, place + 1)
        alone = alone.plus(Summed.of(clients[here], identities, readings[here]))
    assert message_of(together) == message_of(alone)
    sums = dict(pairs(message_of(together).clusters))
    assert sums == {
        int(key): int(total)
        for key, total in zip(identities, readings.sum(axis=0), strict=True)
        if total
    }


def test_sums_of_claimed_readings_end_at_what_can_be_encoded() -> None:
    counted = Bin.empty(FINE_S, features=2)
    most = Summed.of(
        np.zeros(UPDATES_MAX, np.int64), np.array([1]), np.full((UPDATES_MAX, 1), COUNT_MAX)
    )
    for _ in range(12):
        counted = counted.plus(most)
    message = message_of(counted)
    assert pairs(message.clusters) == [(1, COUNT_MAX)]
    assert pairs(message.clients) == [(0, COUNT_MAX)]
    assert triples(message.cells) == [(0, 1, COUNT_MAX)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"width_s": 60},
        {"start": 1},
        {"start": 0.0},
        {"updates": -1},
        {"clusters": pack_table(np.array([[1]]))},
        {"clusters": pack_table(np.array([[1, -5]]))},
        {"clients": pack_table(np.array([[-2, 5]]))},
        {"clients": pack_table(np.array([[0, 2**53 + 1]]))},
        {"cells": pack_table(np.array([[1, 2]]))},
        {"cells": pack_table(np.ones((CELLS_MAX + 1, 3), np.int64))},
        {"cells": [1, 2, 3]},
        {"cells": b""},
        {"cells": None},
    ],
)
def test_a_bin_that_cannot_be_true_cannot_be_built(wrong: dict[str, object]) -> None:
    right = HistoryBin.of("plant", "c", "clusters", 300, 300, 5, [0, 40], [0, 40], [0, 0, 40])
    assert HistoryBin.decode(right.encode(), HistoryBin.headers()) == right
    with pytest.raises(MessageRejected, match="malformed"):
        replace(right, **wrong)


def test_names_that_cannot_be_true_cannot_be_built() -> None:
    right = HistoryNames("plant", "c", "clusters", ["attic"], [[0, "warm", "warm high"]])
    assert HistoryNames.decode(right.encode(), HistoryNames.headers()) == right
    for wrong in (
        {"clients": ["No Name"]},
        {"clusters": [[0, "a"]]},
        {"clusters": [[-1, "", ""]]},
        {"clients": None},
        {"apart_since": [[0]]},
        {"apart_since": [[0, 1.5]]},
        {"apart_since": [[-1, 1]]},
        {"apart_since": None},
        {"update_s": -1},
    ):
        with pytest.raises(MessageRejected, match="malformed"):
            replace(right, **wrong)


def test_the_key_of_a_bin_says_which_it_is() -> None:
    key = BinKey("clusters", 300, -600)
    assert key_of(key.encode()) == key
    assert key_of(b"clusters/names") is None
    assert key_of(b"\xff") is None


# What is shown of it.


def store_of(
    folder: Path, *bins: HistoryBin, clients: tuple[str, ...] = ("attic", "cellar")
) -> HistoryReader:
    names = HistoryNames("plant", plant().digest, "clusters", list(clients), [])
    store = HistoryStore(resolve(plant()), folder / HISTORY_FILE)
    store.apply([HistoryRecord(message.record_key, message) for message in (*bins, names)])
    store.close()
    assert store.reader is not None
    return store.reader


def a_bin(
    start: int, clusters: dict[int, int], width: int = FINE_S, cells: tuple[int, ...] = ()
) -> HistoryBin:
    flat = [value for pair in clusters.items() for value in pair]
    return HistoryBin.of(
        "plant", plant().digest, "clusters", width, start, 1, flat, [0, 1], list(cells)
    )


def test_nothing_is_known_of_late_before_the_first_bin_and_without_a_file(tmp_path: Path) -> None:
    assert recent_history(HistoryReader(tmp_path / "none.db"), "clusters") is None
    assert recent_history(store_of(tmp_path), "clusters") is None
    with pytest.raises(LogUnavailable):
        HistoryReader(tmp_path / "none.db").names("clusters")


def test_a_young_history_is_shown_in_fine_bins_with_gaps_where_nothing_came(tmp_path: Path) -> None:
    both = [a_bin(START + 300 * place, {0: 1, 1: 3 - place}) for place in (0, 2)]
    reader = store_of(tmp_path, *both, a_bin(START, {0: 2, 1: 4}, COARSE_S))
    found = recent_history(reader, "clusters")
    assert found is not None
    assert (found.start, found.step_s) == (START, FINE_S)
    assert found.shares == {0: [0.25, None, 0.5], 1: [0.75, None, 0.5]}
    assert found.trend_text(0) == "25 to 50 % in 15 minutes"
    assert found.trend_text(7) == ""


def test_a_day_of_bins_is_shown_as_a_day_and_a_few_bins_of_a_month_as_a_month(
    tmp_path: Path,
) -> None:
    (tmp_path / "sparse").mkdir()
    days = [a_bin(START + COARSE_S * place, {0: 1}, COARSE_S) for place in range(100)]
    found = recent_history(store_of(tmp_path, *days, a_bin(START, {0: 1})), "clusters")
    assert found is not None
    assert (found.step_s, len(found.shares[0])) == (COARSE_S, 48)
    sparse = [a_bin(START + 86_400 * 2 * place, {0: 1}, COARSE_S) for place in range(BINS_MIN)]
    found = recent_history(store_of(tmp_path / "sparse", *sparse, a_bin(START, {0: 1})), "clusters")
    assert found is not None
    assert found.step_s == 30 * COARSE_S
    assert found.trend_text(0) == "100 % in 22 days"


def test_the_clients_that_feed_a_cluster_come_from_its_newest_bins(tmp_path: Path) -> None:
    cells = (0, 5, 30, 1, 5, 60, 2, 5, 10, 0, NO_CLUSTER, 7)
    reader = store_of(
        tmp_path, a_bin(START, {5: 100}, cells=cells), a_bin(START, {5: 100}, COARSE_S)
    )
    found = recent_history(reader, "clusters")
    assert found is not None
    assert found.feeding == {5: [("cellar", 0.6), ("attic", 0.3), ("other clients", 0.1)]}
    assert found.feeding_text(5, {"attic": "Büro Süd"}) == "cellar 60 %, Büro Süd 30 % and 1 other"
    assert found.feeding_text(6, {}) == ""
    assert found.by_client == {
        "cellar": [(5, 1.0)],
        "attic": [(5, 1.0)],
        "other clients": [(5, 1.0)],
    }
    assert RecentHistory(0, 300, {}, {1: [("attic", 1.0)]}, {}).feeding_text(1, {}) == "attic 100 %"


@pytest.mark.parametrize(
    ("clients", "shares", "found"),
    [
        (4, (70, 10, 10, 10), ("attic", 0.7)),
        (4, (50, 50, 0, 0), None),
        (3, (60, 20, 20), ("attic", 0.6)),
        (2, (70, 30), None),
        (2, (80, 20), ("attic", 0.8)),
        (1, (100,), None),
        (4, (), None),
    ],
)
def test_a_client_is_named_that_supplies_most_of_the_newest_readings_of_several(
    clients: int, shares: tuple[int, ...], found: tuple[str, float] | None, tmp_path: Path
) -> None:
    flat = [number for pair in enumerate(shares) for number in pair]
    origin = "plant", plant().digest, "clusters"
    bins = [
        HistoryBin.of(*origin, width, START, 1, [5, 100], flat, []) for width in (FINE_S, COARSE_S)
    ]
    recent = recent_history(
        store_of(tmp_path, *bins, clients=("attic", "cellar", "roof", "yard")[:clients]), "clusters"
    )
    assert recent is not None
    assert recent.most_from == found


def test_the_readings_of_a_client_are_divided_among_the_clusters_that_they_fell_to(
    tmp_path: Path,
) -> None:
    older = (0, 6, 10, 1, 6, 5)
    newer = (0, 5, 30, 1, 5, 10)
    fine = a_bin(START, {6: 15}, cells=older), a_bin(START + FINE_S, {5: 40}, cells=newer)
    found = recent_history(
        store_of(tmp_path, *fine, a_bin(START, {5: 40, 6: 15}, COARSE_S)), "clusters"
    )
    assert found is not None
    assert list(found.by_client) == ["attic", "cellar"], (
        "the client with the most readings is the first"
    )
    assert found.by_client["attic"] == [(5, 0.75), (6, 0.25)]
    assert [identity for identity, _ in found.by_client["cellar"]] == [5, 6]


def test_a_history_that_begins_again_holds_nothing_of_before(tmp_path: Path) -> None:
    recorder = Recorder(plant(), "clusters", NOTHING_PUBLISHED)
    recorder.count(attribution(START, "attic", {0: 3}, 1))
    recorder.begin_again()
    restored = Recorder(plant(), "clusters", NOTHING_PUBLISHED)
    restored.restore(recorder.state())
    for kept in (recorder, restored):
        kept.count(attribution(START, "cellar", {0: 2}, 1))
        assert kept.begins_again
        fine, *_, names = kept.take_changed(1)
        assert isinstance(fine, HistoryBin)
        assert isinstance(names, HistoryNames)
        assert (pairs(fine.clients), names.clients) == ([(0, 2)], ["cellar"])
        assert not kept.begins_again


def test_the_history_of_a_client_that_is_unlearned_is_removed_from_the_log_and_the_file(
    tmp_path: Path,
) -> None:
    site = site_in(tmp_path)
    site.send(
        *updates_at(site, START, START + 900),
        *updates_at(site, START + 300, START + 900, client="cellar"),
    )
    site.run()
    requests = quarantine_records(site.contract, "cellar", "unlearn", "", START + 1e6)
    site.publish(
        *(
            (record.key.decode(), record.value, record.headers)
            for record in requests
            if record.key is not None
        )
    )
    site.run()
    assert [history_bin.start - START for history_bin in bins_of(site)] == [0, 900]
    assert [pairs(history_bin.clients) for history_bin in bins_of(site)] == [[(0, 40)], [(0, 40)]]
    names = HistoryReader(site.folder / HISTORY_FILE).names("clusters")
    assert names is not None
    assert names.clients == ["attic"]
    with site.log() as log:
        assert BinKey("clusters", FINE_S, START + 300).encode() not in latest(
            log, site.contract.history_topic
        )
