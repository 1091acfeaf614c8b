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
    PLACED_MAX,
    PLACES_KEPT,
    PLACES_MAX,
    PLACES_S,
    BinKey,
    HistoryPlaces,
    key_of,
    pack_table,
    triples,
)
from shoal.server_node.history.attribution import (
    READINGS_PLACED_MAX,
    WaitingUpdate,
    WaitingUpdates,
    attributed,
)
from shoal.server_node.history.places import OPEN_MAX, OpenPlaces, PlacesRecorder
from shoal.server_node.history.recorder import NOTHING_PUBLISHED, Summed
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


def counted(
    recorder: PlacesRecorder, *updates: WaitingUpdate, clients: dict[str, int] | None = None
) -> None:
    placed = attributed(updates, by_first_coordinate, OF_NUMBER, 128).placed
    assert placed is not None
    numbers = {"attic": 0, "cellar": 1} if clients is None else clients
    recorder.count(placed, np.array([numbers[one.client] for one in updates]), again=False)


def ended(recorder: PlacesRecorder, updates: int) -> list[HistoryPlaces]:
    """The bins of all updates so far, once a day later another one has come."""
    counted(recorder, an_update(10**6, EVEN + 86_400, [(0.1, 0.1)], [1.0]))
    return recorder.take_changed(updates)


def a_recorder(published: Any = NOTHING_PUBLISHED) -> PlacesRecorder:
    return PlacesRecorder(plant(), "clusters", published)


def places_of(folder: Path, width: int = FINE_S) -> list[HistoryPlaces]:
    return list(HistoryReader(folder / HISTORY_FILE).places("clusters", width, *EVER[:2]))


def test_the_mean_place_of_an_updates_points_stands_for_its_readings_in_a_cluster() -> None:
    recorder = a_recorder()
    points = [(0.1, 0.2), (0.3, 0.6), (0.9, 1.0), (7.0, 0.0)]
    weights = [1.0, 3.0, 4.0, 2.0]
    counted(
        recorder,
        an_update(1, EVEN, points, weights),
        an_update(2, EVEN + 1, [(0.2, 0.2)], [1.0], "cellar", 60),
    )
    assert recorder.take_changed(2) == [], "the newest bin of each width is not over"
    fine, coarse = ended(recorder, 2)
    assert (fine.width_s, coarse.width_s) == (FINE_S, PLACES_S)
    for one in (fine, coarse):
        # 40 readings at (.25, .5), 60 at (.2, .2); 40 at (.9, 1); the 20 of no known cluster lie
        # nowhere.
        expected = [[10, 2200, 3200, 100], [11, 9000, 10_000, 40]]
        assert one.table().tolist() == expected
        assert triples(one.cells) == [(0, -1, 20), (0, 10, 40), (0, 11, 40), (1, 10, 60)]


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
            bins |= {one.key: replace(one, updates=0) for one in recorder.take_changed(first)}
        bins |= {one.key: replace(one, updates=0) for one in ended(recorder, 40)}
        found.append(bins)
    assert found[0] == found[1] == found[2]
    assert [key.start - EVEN for key in found[0] if key.width_s == PLACES_S] == [0]
    assert {key.start for key in found[0] if key.width_s == FINE_S} == {
        int(one.at // FINE_S * FINE_S) for one in updates
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
        store.apply([HistoryRecord(each.record_key, each) for each in ended(first, 1)])
        again = a_recorder(store)
        counted(again, one, other)
        assert ended(again, 2) == expected, "what a published bin holds is not counted again"
        assert store.newest("clusters", PLACES_S, "places") == EVEN


def test_few_bins_stay_in_memory_and_a_damaged_state_is_refused() -> None:
    recorder = a_recorder()
    for n in range(3 * OPEN_MAX):
        counted(recorder, an_update(n + 1, EVEN + FINE_S * n, [(0.1, 0.1)], [1.0]))
    assert len(recorder.state()["bins"]) > 2 * OPEN_MAX
    recorder.take_changed(9)
    assert sorted(start - EVEN for _, start, *_ in recorder.state()["bins"]) == [
        0,
        FINE_S * (3 * OPEN_MAX - 1),
    ]
    with pytest.raises(InvalidState, match="places of clusters of clusters are damaged"):
        recorder.restore({"bins": [[FINE_S]], "newest": []})


def test_claims_beyond_all_numbers_and_points_far_away_keep_sums_within_64_bits() -> None:
    recorder = a_recorder()
    for n in range(3):
        counted(recorder, an_update(n + 1, EVEN, [(-1e300, 0.5)], [1e300], n=2**52))
    table = ended(recorder, 3)[0].table()
    assert table.tolist() == [[10, -100_000, 5000, 3 * READINGS_PLACED_MAX]]
    full = OpenPlaces.empty(2)
    one = np.array([[PLACED_MAX, 1, 1]])
    summed = attributed(
        [an_update(1, EVEN, [(0.1, 0.1)], [1.0])], by_first_coordinate, OF_NUMBER, 128
    )
    nothing = Summed.of(np.array([0]), summed.identities, summed.readings)
    for _ in range(2):
        full.add(np.array([10]), one, nothing)
    assert (
        HistoryPlaces("plant", "c", "clusters", FINE_S, 0, 1, *full.take(1)).table()[0, -1]
        == PLACED_MAX
    )


def test_of_too_many_clusters_the_largest_stay_and_of_too_many_pairs_none() -> None:
    recorder = a_recorder()
    most = PLACES_MAX // 2
    numbers = np.arange(PLACES_MAX // 2 + 3)
    placed = attributed(
        [an_update(1, EVEN, [(0.1, 0.1)], [1.0])], by_first_coordinate, OF_NUMBER, 128
    ).placed
    assert placed is not None
    many = placed._replace(
        identities=numbers,
        readings=10 + numbers[None],
        update=np.zeros(len(numbers), dtype=np.int64),
        cluster=numbers,
        sums=np.column_stack([10 + numbers, 10 + numbers, 10 + numbers]),
    )
    recorder.count(many, np.array([0]), again=False)
    for one in ended(recorder, 1):
        assert one.table()[:, 0].tolist() == numbers[-most:].tolist()
        assert triples(one.cells) == []
    counted(recorder, an_update(2, EVEN, [(0.1, 0.1)], [1.0]))
    assert triples(recorder.take_changed(2)[0].cells) == [], (
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
                [replace(one, updates=0) for one in places_of(site.folder, width)]
                for width in PLACES_KEPT
            ]
        )
    assert found[0] == found[1]
    assert all(found[0])
    before = [places_of(site.folder, width) for width in PLACES_KEPT]
    site.delete_checkpoint()
    (site.folder / HISTORY_FILE).unlink()
    site.run(rebuild=True)
    assert [places_of(site.folder, width) for width in PLACES_KEPT] == before


def test_messages_that_cannot_be_true_are_refused() -> None:
    def message(table: list[list[int]], **other: Any) -> HistoryPlaces:
        fields = {
            "width_s": FINE_S,
            "start": 0,
            "updates": 1,
            "features": 1,
            "cells": pack_table(np.empty((0, 3))),
        }
        packed = pack_table(np.array(table, dtype=np.int64).reshape(-1, 3))
        return HistoryPlaces("plant", "c", "clusters", **{**fields, "places": packed, **other})

    right = message([[3, 8000, 2]])
    assert HistoryPlaces.decode(right.encode(), right.headers()) == right
    assert key_of(right.record_key) == BinKey("clusters", FINE_S, 0, "places") == right.key
    assert key_of(b"clusters/shares/300/0") is None
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
        {"cells": b"x"},
    ):
        with pytest.raises(MessageRejected):
            message([[3, 8000, 2]], **wrong)


def test_readings_on_both_sides_of_the_cut_of_a_circle_have_their_mean_between_them() -> None:
    features = [
        {"name": "share", "low": 0, "high": 1},
        {"name": "way", "kind": "circular", "period": 360},
    ]
    contract = Contract.model_validate({**plant().model_dump(), "features": features})
    recorder = PlacesRecorder(contract, "clusters", NOTHING_PUBLISHED)
    points = [(0.1, 0.97), (0.1, 0.01), (0.9, 0.3), (0.9, 0.4)]
    for number, at in ((1, EVEN), (2, EVEN + 1), (3, EVEN + 86_400)):
        waiting = WaitingUpdates(contract.bounds.circular)
        waiting.add(an_update(number, at, points, np.ones(4)))
        found = waiting.take(by_first_coordinate, OF_NUMBER)
        assert found is not None
        assert found.placed is not None
        recorder.count(found.placed, np.array([0]), again=False)
    published = recorder.take_changed(3)[0]
    assert published.table().tolist() == [[10, 1000, 9900, 100], [11, 9000, 3500, 100]]
    again = OpenPlaces.of(published, contract.bounds.circular).take(2)
    assert (
        HistoryPlaces("plant", "c", "clusters", FINE_S, 0, 2, *again).table().tolist()
        == published.table().tolist()
    )
