"""Canaries: in `formal` none of them is in anything that leaves a client; in `off` the same search
finds them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.client_nodes.user_readings import UserReadings
from shoal.onebox.audit.canaries import audit_canaries, canary_readings, occurrences, traces
from shoal.privacy import Bounds
from shoal.protocol.messages import Update
from shoal.protocol.readings import USER_ID
from tests.privacy.audited import audited_config
from tests.privacy.canary_federation import READINGS, Left, run_with_canaries

NUMBER = rb"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.-])"
PLACES = ("records", "files", "pages", "logs", "metrics")


@pytest.mark.parametrize(("off", "found"), [(True, True), (False, False)], ids=["off", "formal"])
def test_the_audit_finds_canaries_without_noise_and_none_with_it(
    off: bool, found: bool, memory_folder: Path
) -> None:
    config = audited_config(memory_folder, off=off)
    finding = audit_canaries(config, memory_folder / "run", np.random.default_rng(0))
    assert finding.refuted == found, finding.line()


@pytest.fixture(scope="module")
def formal(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return run_with_canaries(tmp_path_factory.mktemp("formal"), "formal")


@pytest.mark.parametrize("place", PLACES)
def test_real_processes_with_every_algorithm_leave_no_canary_outside_the_client(
    formal: Left, place: str
) -> None:
    wanted = traces(formal.canaries, formal.config.contract.bounds)
    parts: dict[str, bytes] = getattr(formal, place)
    assert parts
    for name, content in parts.items():
        assert occurrences(content, wanted) == 0, name


def test_no_user_id_leaves_the_client_either(tmp_path: Path) -> None:
    left = run_with_canaries(tmp_path, "users")
    wanted = traces(left.canaries, left.config.contract.bounds) | left.user_ids
    for place in PLACES:
        parts: dict[str, bytes] = getattr(left, place)
        for name, content in parts.items():
            assert occurrences(content, wanted) == 0, name
    readings = (left.config.client.folder / "attic" / "readings.db").read_bytes()
    assert occurrences(readings, left.user_ids) > READINGS // 10, (
        "the search finds them where they are"
    )


def publish_user_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a header of every update, as a reading has it in the client's own log."""
    seen: list[bytes] = []
    admit = UserReadings.admit
    headers = Update.headers()

    def noting(
        self: UserReadings, valid: NDArray[np.bool_], users: Sequence[bytes], times: Sequence[float]
    ) -> NDArray[np.bool_]:
        seen.extend(users)
        return admit(self, valid, users, times)

    monkeypatch.setattr(UserReadings, "admit", noting)
    monkeypatch.setattr(Update, "headers", lambda: (*headers, (USER_ID, seen[-1])))


@pytest.mark.parametrize("faulty", [False, True])
def test_the_audit_seeks_user_ids(
    faulty: bool, memory_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if faulty:
        publish_user_ids(monkeypatch)
    config = audited_config(memory_folder, users=True)
    finding = audit_canaries(config, memory_folder / "run", np.random.default_rng(0))
    assert finding.refuted == faulty, finding.line()


RELEASED = (b'"cluster_changed"', b"shoal_cluster_centre{", b"shoal_cluster_event_")
"""what marks the lines of logs and metrics with the position of a cluster, which is released"""


def numbers_within(content: bytes, bounds: Bounds) -> list[float]:
    """Numbers in the content that lie within the bounds of a feature: those that are words of their
    own, in lines without a released position."""
    lines = [line for line in content.splitlines() if not any(mark in line for mark in RELEASED)]
    numbers = [float(word) for word in re.findall(NUMBER, b"\n".join(lines))]
    return [
        number for number in numbers if ((bounds.low <= number) & (number <= bounds.high)).any()
    ]


def test_logs_and_metrics_have_no_number_that_could_be_a_reading(formal: Left) -> None:
    """No other number in them lies within the bounds of the features, so that a canary shows
    however few of its digits are written."""
    bounds = formal.config.contract.bounds
    for name, content in (*formal.logs.items(), *formal.metrics.items()):
        assert numbers_within(content, bounds) == [], name


@pytest.mark.parametrize("text", ["-1101.355", "{-1.1e+03}", '"value":-8e3,', "warm=-1101\n"])
def test_a_number_within_the_bounds_is_found_however_it_is_written(text: str) -> None:
    bounds = Bounds([-2000.0, -9000.0], [-1000.0, -5000.0])
    assert len(numbers_within(text.encode(), bounds)) == 1
    for other in ("1795961101.355", "2026-1101", "1101.355", "f-1101", "-1101-4a", "-999.9"):
        assert numbers_within(other.encode(), bounds) == [], other


def test_every_place_that_is_searched_has_something_in_it(formal: Left) -> None:
    contract = formal.config.contract
    for topic in (contract.updates_topic, contract.snapshots_topic, contract.history_topic):
        assert formal.records[topic]
    assert {"federation.db", "server/checkpoint.db"} <= set(formal.files)
    for model in contract.models:
        assert model.name.encode() in formal.logs["attic"]
        assert model.name.encode() in formal.pages[f"/v1/snapshot?model={model.name}"]
    assert b"updates_published" in formal.logs["attic"]
    assert b"stopped" in formal.logs["cellar"]
    assert b"shoal_" in formal.metrics["attic"]


def test_without_noise_the_search_finds_canaries_where_they_are_published(tmp_path: Path) -> None:
    left = run_with_canaries(tmp_path, "off")
    wanted = traces(left.canaries, left.config.contract.bounds)
    contract = left.config.contract
    for content in (
        left.records[contract.updates_topic],
        left.records[contract.snapshots_topic],
        left.files["federation.db"],
        left.pages["/v1/snapshot?model=cluster-tree"],
    ):
        assert occurrences(content, wanted) > READINGS // 10


# The search.


@pytest.mark.parametrize("form", ["<f8", ">f8"])
def test_a_value_is_found_in_any_byte_order(form: str) -> None:
    bounds = Bounds([1000.0], [2000.0])
    readings = canary_readings(bounds, 3, np.random.default_rng(0))
    wanted = traces(readings, bounds)
    assert occurrences(b"..." + readings.astype(form).tobytes(), wanted) == 3
    assert occurrences(bounds.to_unit(readings).astype(form).tobytes(), wanted) == 3
    assert occurrences(np.random.default_rng(1).random(1000).tobytes(), wanted) == 0


def test_a_value_is_found_as_text_and_a_reading_in_single_precision() -> None:
    bounds = Bounds([1000.0, 0.0], [2000.0, 1.0])
    readings = np.array([[1234.56789012345, 0.0123456789012345]])
    wanted = traces(readings, bounds)
    for text in ("1234.56789012345", "[0.012345678901234]", "x=0.23456789012345"):
        assert occurrences(text.encode(), wanted) == 1, text
    assert occurrences(readings.astype("<f4").tobytes(), wanted) == 1
    assert occurrences(b"1234.5", wanted) == 0


def test_nothing_is_found_in_nothing() -> None:
    assert occurrences(b"", traces(np.empty((0, 2)), Bounds([0.0, 0.0], [1.0, 1.0]))) == 0
