"""Where the readings of each cluster lay, in bins of time: the same in any batches, after a kill
and a rebuild."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.config.contract import Contract
from shoal.config.resolved import resolve
from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.codec import pack, unpack
from shoal.protocol.history import (
    FINE_S,
    PAIRS_MAX,
    PLACE_MIN,
    PLACE_UNKNOWN,
    PLACED_MAX,
    PLACES_MAX,
    PLACES_S,
    WITH_PLACES,
    HistoryBin,
    known_means,
    pack_table,
    triples,
)
from shoal.server_node.history.attribution import (
    READINGS_PLACED_MAX,
    SUM_UNKNOWN,
    WaitingUpdate,
    WaitingUpdates,
    attributed,
    sampled_points_of,
)
from shoal.server_node.history.bins import Bin, Places
from shoal.server_node.history.recorder import OPEN_MAX, Recorder
from shoal.server_node.history.sources import NOTHING_PUBLISHED
from shoal.server_node.history.store import (
    HISTORY_FILE,
    HistoryReader,
    HistoryRecord,
    HistoryStore,
)
from tests.server_node.test_history import EVER, START, site_in, updates_at
from tests.small_plant import plant

OF_NUMBER = {0: 10, 1: 11}
EVEN = START // PLACES_S * PLACES_S


def by_first_coordinate(points: Any) -> Any:
    """points (n, d) -> (n,) clusters: 0 below a half, 1 above, none beyond 1."""
    return np.where(points[:, 0] > 1.0, -1, (points[:, 0] > 0.5).astype(np.int64))


def an_update(
    number: int, at: float, points: Any, weights: Any, client: str = "attic", n: int = 100
) -> WaitingUpdate:
    return WaitingUpdate(
        at, client, n, number, np.array(points, float).reshape(-1, 2), np.array(weights, float)
    )


def counted(recorder: Recorder, *updates: WaitingUpdate) -> None:
    recorder.count(
        attributed(updates, sampled_points_of(updates, 128), by_first_coordinate, OF_NUMBER)
    )


def placed(recorder: Recorder, updates: int) -> list[HistoryBin]:
    """The bins with places that have changed."""
    messages = recorder.take_changed(updates)
    bins = [message for message in messages if isinstance(message, HistoryBin)]
    return [counted for counted in bins if counted.places is not None]


def ended(recorder: Recorder, updates: int) -> list[HistoryBin]:
    """The bins of all updates so far, once a day later another one has come."""
    counted(recorder, an_update(10**6, EVEN + 86_400, [(0.1, 0.1)], [1.0]))
    return placed(recorder, updates)


def a_recorder(published: Any = NOTHING_PUBLISHED) -> Recorder:
    return Recorder(plant(), "clusters", published)


def places_of(folder: Path, width: int = FINE_S) -> list[HistoryBin]:
    bins = HistoryReader(folder / HISTORY_FILE).each_bin("clusters", width, *EVER[:2])
    return [counted for counted in bins if counted.places is not None]


def test_the_mean_place_of_an_updates_points_stands_for_its_readings_in_a_cluster() -> None:
    recorder = a_recorder()
    points = [(0.1, 0.2), (0.3, 0.6), (0.9, 1.0), (7.0, 0.0)]
    weights = [1.0, 3.0, 4.0, 2.0]
    counted(
        recorder,
        an_update(1, EVEN, points, weights),
        an_update(2, EVEN + 1, [(0.2, 0.2)], [1.0], "cellar", 60),
    )
    assert placed(recorder, 2) == [], "the newest bin of each width is not over"
    fine, coarse = ended(recorder, 2)
    assert (fine.width_s, coarse.width_s) == (FINE_S, PLACES_S)
    for history_bin in (fine, coarse):
        # 40 readings at (.25, .5), 60 at (.2, .2); 40 at (.9, 1); the 20 of no known cluster lie
        # nowhere.
        expected = [[10, 2200, 3200, 100], [11, 9000, 10_000, 40]]
        assert history_bin.place_table().tolist() == expected
        assert triples(history_bin.cells) == [(0, -1, 20), (0, 10, 40), (0, 11, 40), (1, 10, 60)]


def test_updates_fall_into_the_bins_of_their_newest_readings_in_any_batches() -> None:
    rng = np.random.default_rng(1)
    found = []
    updates = [
        an_update(n, EVEN + 200 * n, rng.uniform(size=(9, 2)), rng.uniform(size=9))
        for n in range(1, 40)
    ]
    for batch in (1, 7, 40):
        recorder = a_recorder()
        bins = {}
        for first in range(0, len(updates), batch):
            counted(recorder, *updates[first : first + batch])
            bins |= {
                history_bin.key: replace(history_bin, updates=0)
                for history_bin in placed(recorder, first)
            }
        bins |= {
            history_bin.key: replace(history_bin, updates=0) for history_bin in ended(recorder, 40)
        }
        found.append(bins)
    assert found[0] == found[1] == found[2]
    assert [key.start - EVEN for key in found[0] if key.width_s == PLACES_S] == [0]
    assert {key.start for key in found[0] if key.width_s == FINE_S} == {
        int(update.at // FINE_S * FINE_S) for update in updates
    }


def test_a_bin_goes_on_from_its_state_and_from_what_was_published(tmp_path: Path) -> None:
    one = an_update(1, EVEN, [(0.1, 0.1)], [1.0])
    other = an_update(2, EVEN + 5, [(0.4, 0.3)], [1.0])
    whole = a_recorder()
    counted(whole, one, other)
    expected = ended(whole, 2)
    first = a_recorder()
    saved = a_recorder()
    counted(first, one)
    saved.restore(unpack(pack(first.state())))
    counted(saved, other)
    assert ended(saved, 2) == expected
    with closing(HistoryStore(resolve(plant()), tmp_path / HISTORY_FILE)) as store:
        store.apply(
            [HistoryRecord(history_bin.record_key, history_bin) for history_bin in ended(first, 1)]
        )
        again = a_recorder(store)
        counted(again, one, other)
        assert ended(again, 2) == expected, "what a published bin holds is not counted again"
        assert store.newest("clusters", PLACES_S) == EVEN


def test_few_bins_stay_in_memory_and_a_damaged_state_is_refused() -> None:
    recorder = a_recorder()
    for n in range(3 * OPEN_MAX):
        counted(recorder, an_update(n + 1, EVEN + FINE_S * n, [(0.1, 0.1)], [1.0]))
    state = recorder.state()
    assert len(state["bins"]) > 2 * OPEN_MAX
    recorder.take_changed(9)
    newest = FINE_S * (3 * OPEN_MAX - 1)
    saved = {(counted["width_s"], counted["start"] - EVEN) for counted in recorder.state()["bins"]}
    assert saved == {(FINE_S, newest), (PLACES_S, newest // PLACES_S * PLACES_S)}
    assert recorder.open_bins <= OPEN_MAX + len(saved)
    sums = state["bins"][0]["bin"]["places"]["sums"]
    state["bins"][0]["bin"]["places"]["sums"] = sums[:, :2]
    with pytest.raises(InvalidState, match="sums has shape"):
        recorder.restore(state)


def test_claims_beyond_all_numbers_and_points_far_away_keep_sums_within_64_bits() -> None:
    recorder = a_recorder()
    for n in range(3):
        counted(recorder, an_update(n + 1, EVEN, [(-1e300, 0.5)], [1e300], n=2**52))
    table = ended(recorder, 3)[0].place_table()
    assert table.tolist() == [[10, PLACE_MIN + 1, 5000, 3 * READINGS_PLACED_MAX]]
    full = Places.empty(2)
    for _ in range(2):
        full = full.plus(np.array([10]), np.array([[PLACED_MAX, 1, 1]]))
    assert full.table()[0, -1] == PLACED_MAX


def test_of_too_many_clusters_the_largest_stay_and_of_too_many_pairs_none() -> None:
    recorder = a_recorder()
    most = PLACES_MAX // 2
    numbers = np.arange(PLACES_MAX // 2 + 3)
    update = [an_update(1, EVEN, [(0.1, 0.1)], [1.0])]
    one = attributed(update, sampled_points_of(update, 128), by_first_coordinate, OF_NUMBER)
    assert one.placed is not None
    many = one.placed._replace(
        update=np.zeros(len(numbers), dtype=np.int64),
        cluster=numbers,
        sums=np.column_stack([10 + numbers, 10 + numbers, 10 + numbers]),
    )
    recorder.count(one._replace(identities=numbers, readings=10 + numbers[None], placed=many))
    fine, coarse = ended(recorder, 1)
    for message in (fine, coarse):
        assert message.place_table()[:, 0].tolist() == numbers[-most:].tolist()
    assert len(triples(fine.cells)) == len(numbers)
    assert triples(coarse.cells) == []
    counted(recorder, an_update(2, EVEN, [(0.1, 0.1)], [1.0]))
    assert triples(placed(recorder, 2)[1].cells) == [], (
        "part of the pairs would be taken for all of them"
    )
    assert len(numbers) > PAIRS_MAX


def test_a_server_that_is_killed_or_rebuilt_has_the_places_of_one_that_is_not(
    tmp_path: Path,
) -> None:
    found = []
    for folder in ("steady", "killed"):
        site = site_in(tmp_path / folder, snapshot_updates=4, batch_updates_max=1)
        site.send(*updates_at(site, *(START + 3600 * place for place in range(12))))
        for _ in range(12 * (folder == "killed")):
            with site.server() as server:
                server.step()
        site.run()
        found.append(
            [
                [replace(history_bin, updates=0) for history_bin in places_of(site.folder, width)]
                for width in WITH_PLACES
            ]
        )
    assert found[0] == found[1]
    assert all(found[0])
    before = [places_of(site.folder, width) for width in WITH_PLACES]
    site.delete_checkpoint()
    (site.folder / HISTORY_FILE).unlink()
    site.run(rebuild=True)
    assert [places_of(site.folder, width) for width in WITH_PLACES] == before


def test_messages_that_cannot_be_true_are_refused() -> None:
    def message(table: list[list[int]], **other: Any) -> HistoryBin:
        bare = HistoryBin.of("plant", "c", "clusters", FINE_S, 0, 1, [3, 2], [0, 2], [])
        packed = pack_table(np.array(table, dtype=np.int64).reshape(-1, 3))
        return replace(bare, **{"features": 1, "places": packed, **other})

    right = message([[3, 8000, 2]])
    assert HistoryBin.decode(right.encode(), right.headers()) == right
    assert right.without_places().place_table().tolist() == []
    for table in (
        [[-1, 0, 1]],
        [[3, 0, 0]],
        [[3, 110_001, 2]],
        [[3, -100_001, 2]],
        [[3, 0, PLACED_MAX + 1]],
    ):
        with pytest.raises(MessageRejected):
            message(table)
    for wrong in (
        {"width_s": 1800},
        {"start": 7},
        {"features": 129},
        {"features": 2},
        {"places": b""},
        {"places": None},
        {"places": "x"},
    ):
        with pytest.raises(MessageRejected):
            message([[3, 8000, 2]], **wrong)


def test_readings_on_both_sides_of_the_cut_of_a_circle_have_their_mean_between_them() -> None:
    features = [
        {"name": "share", "low": 0, "high": 1},
        {"name": "way", "kind": "circular", "period": 360},
    ]
    contract = Contract.model_validate({**plant().model_dump(), "features": features})
    recorder = Recorder(contract, "clusters", NOTHING_PUBLISHED)
    points = [(0.1, 0.97), (0.1, 0.01), (0.9, 0.3), (0.9, 0.4)]
    for number, at in ((1, EVEN), (2, EVEN + 1), (3, EVEN + 86_400)):
        waiting = WaitingUpdates(contract.bounds.circular)
        waiting.add(an_update(number, at, points, np.ones(4)))
        found = waiting.take(by_first_coordinate, OF_NUMBER)
        assert found is not None
        recorder.count(found)
    published = placed(recorder, 3)[0]
    table = published.place_table().tolist()
    assert table == [[10, 1000, 9900, 100], [11, 9000, 3500, 100]]
    again = Bin.of(published, 2, contract.bounds.circular).carried(FINE_S, 2, over=True)
    assert again.places is not None
    assert again.places.table().tolist() == table


def test_a_mean_with_an_unknown_part_is_unknown_in_any_batches_and_after_it_was_published() -> None:
    generator = np.random.default_rng(4)
    identities = generator.integers(0, 3, size=40)
    readings = generator.integers(1, 9, size=(40, 1))
    # One feature, the cosine of a circular one, and its sine.
    sums = np.column_stack([readings, generator.integers(-9, 9, size=(40, 3)) * readings])
    sums[identities == 1, 1] = SUM_UNKNOWN
    sums[7, [2, 3]] = SUM_UNKNOWN
    tables = []
    for batch in (1, 7, 40):
        places = Places.empty(2, [1])
        for first in range(0, 40, batch):
            places = places.plus(identities[first : first + batch], sums[first : first + batch])
            places = Places.at_means(places.table(), [1]) if first == 35 else places
        tables.append(places.table())
        known = np.isfinite(known_means(places.table()))
        assert known[:, 0].tolist() == [True, False, True]
        assert known[:, 1].tolist() == [identity != identities[7] for identity in range(3)]
        assert places.table()[:, -1].sum() == readings.sum(), "the readings count"
    assert tables[1].tolist() == tables[2].tolist()


def test_where_the_place_of_a_cluster_is_unknown_its_readings_count_all_the_same() -> None:
    recorder = a_recorder()
    update = [an_update(1, EVEN, [(0.1, 0.2), (0.9, 1.0)], [3.0, 1.0])]
    sample = sampled_points_of(update, 128)
    unknown = {10: np.array([False, True])}
    recorder.count(attributed(update, sample, by_first_coordinate, OF_NUMBER, (), unknown))
    for history_bin in ended(recorder, 1):
        expected = [[10, 1000, PLACE_UNKNOWN, 75], [11, 9000, 10_000, 25]]
        assert history_bin.place_table().tolist() == expected
        means = known_means(history_bin.place_table())
        assert np.isnan(means).tolist() == [[False, True], [False, False]]
        assert triples(history_bin.cells) == [(0, 10, 75), (0, 11, 25)]
