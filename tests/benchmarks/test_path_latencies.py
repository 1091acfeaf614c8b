"""Latencies: the first snapshot with a reading counts, and late readings are not left out."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.path.latencies import (
    NEVER,
    LoggedUpdate,
    SeenSnapshot,
    SnapshotContents,
    StoredReadings,
    due_at,
    percentiles,
)


def said(*updates: tuple[str, int, int]) -> list[LoggedUpdate]:
    return [LoggedUpdate(client, sequence, readings, 100) for client, sequence, readings in updates]


def seen(*snapshots: tuple[float, int]) -> list[SeenSnapshot]:
    return [
        SeenSnapshot(at, version, position, 50)
        for version, (at, position) in enumerate(snapshots, 1)
    ]


def test_a_reading_is_seen_with_the_first_snapshot_that_has_read_its_update() -> None:
    contents = SnapshotContents(
        said(("a", 1, 2), ("b", 1, 1), ("a", 2, 1)), seen((10.0, 1), (11.0, 2), (12.5, 3))
    )
    assert contents.seen_at("a", 3).tolist() == [10.0, 10.0, 12.5]
    assert contents.seen_at("b", 1).tolist() == [11.0]


def test_a_reading_that_no_snapshot_holds_is_never_seen_and_stops_the_figures() -> None:
    contents = SnapshotContents(said(("a", 1, 2)), seen((10.0, 1)))
    assert contents.seen_at("a", 3).tolist() == [10.0, 10.0, NEVER]
    assert contents.seen_at("b", 1).tolist() == [NEVER]
    with pytest.raises(ValueError, match="1 readings are in no snapshot"):
        percentiles(contents.seen_at("a", 3))


def test_an_update_that_is_repeated_after_a_kill_holds_nothing_new() -> None:
    contents = SnapshotContents(
        said(("a", 1, 2), ("a", 1, 2), ("a", 2, 1)), seen((10.0, 2), (11.0, 3))
    )
    assert contents.readings_in("a").tolist() == [2, 3]


def test_a_snapshot_that_was_replaced_before_it_was_seen_makes_its_readings_later_not_fewer() -> (
    None
):
    contents = SnapshotContents(said(("a", 1, 2), ("a", 2, 1)), [SeenSnapshot(12.0, 2, 2, 50)])
    assert contents.seen_at("a", 3).tolist() == [12.0, 12.0, 12.0]
    assert contents.snapshot_bytes == 100


def test_a_snapshot_is_not_seen_before_it_is_read_though_an_older_one_is_read_after_it() -> None:
    contents = SnapshotContents(
        said(("a", 1, 2), ("a", 2, 1)), [SeenSnapshot(12.0, 2, 2, 50), SeenSnapshot(13.0, 1, 1, 50)]
    )
    assert contents.seen_at("a", 3).tolist() == [12.0, 12.0, 12.0]


def test_a_reading_is_due_by_the_rate_however_late_it_is_stored() -> None:
    first = StoredReadings(np.array([0, 2, 4]), np.array([100.0, 100.2, 103.0]))
    second = StoredReadings(np.array([1, 3, 5]), np.array([100.15, 103.0, 103.0]))
    due = due_at([first, second], rate=10)
    assert np.concatenate(due) == pytest.approx([100.0, 100.2, 100.4, 100.1, 100.3, 100.5])


def test_one_late_reading_in_a_hundred_is_the_ninety_ninth_percentile_and_the_most() -> None:
    latencies = np.full(100, 0.1)
    latencies[17] = 9.0
    assert percentiles(latencies) == {"readings": 100, "p50_s": 0.1, "p99_s": 9.0, "max_s": 9.0}
