"""Rows whose tests run on the embedded log, once more on a real broker, as clients and operators
that sign."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.config.contract import Contract
from tests.hostile.test_row_a1_requests_again import (
    test_a_signed_request_that_is_published_again_changes_nothing as a1,
)
from tests.hostile.test_row_a6_hoarded_chunks import (
    test_an_honest_update_writes_nothing_of_the_chunks_that_wait as a6,
)
from tests.hostile.test_row_b1_names_of_regions import (
    test_the_names_of_regions_that_are_gone_leave_the_metrics as b1,
)
from tests.hostile.test_row_b2_places_for_clients import (
    test_unlearning_a_client_frees_its_place_and_a_rebuild_has_the_same as b2,
)
from tests.hostile.test_row_b3_replays_after_a_release import (
    test_updates_sent_in_quarantine_are_not_absorbed_after_the_release as b3,
)
from tests.hostile.test_row_b5_large_windows import (
    test_a_window_of_more_readings_than_the_contract_gives_one_is_rejected as b5,
)
from tests.hostile.test_row_b6_requests import (
    test_a_name_that_is_published_again_changes_nothing as b6,
)
from tests.server_node.server_fixture import ServerFixture

ROWS: dict[str, Callable[[Path], None]] = {
    "a1": a1,
    "a6": lambda folder: a6(folder, True),
    "b1": b1,
    "b2": lambda folder: b2(folder, True),
    "b3": lambda folder: b3(folder, True),
    "b5": lambda folder: b5(folder, True),
    "b6": lambda folder: b6(folder, True),
}


@pytest.mark.parametrize(
    "row",
    [
        name if name in ("a1", "b3") else pytest.param(name, marks=pytest.mark.integration)
        for name in ROWS
    ],
)
def test_the_row_holds_on_kafka(
    row: str, tmp_path: Path, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServerFixture, "broker", f"kafka://{kafka_bootstrap}")
    own = uuid.uuid4().hex[:12]
    for name in ("updates", "snapshots", "rejected", "events", "history"):
        # The broker is that of all tests, and all rows are of the federation `plant`.
        monkeypatch.setattr(Contract, f"{name}_topic", f"{own}.{name}")
    ROWS[row](tmp_path)
