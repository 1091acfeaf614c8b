"""Chaos of `tests/house/chaos.py`: every fault once on each log, the seeds that failed once, and
what the check of the history finds.

`SHOAL_CHAOS_S` is for how long a run on three brokers goes on: 600 for ten minutes.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.house.chaos import Seed, can_write, check_order, kept_seeds, run_chaos
from tests.small_plant import an_update, plant

CHAOS_S = float(os.environ.get("SHOAL_CHAOS_S", "0"))
STEPS = {"sqlite": 14, "kafka": 15}
"""every operation once"""


@pytest.mark.integration
@pytest.mark.timeout(20 * CHAOS_S + 1800)
@pytest.mark.parametrize(
    "seed",
    [Seed(29, "sqlite", STEPS["sqlite"], ""), Seed(29, "kafka", STEPS["kafka"], ""), *kept_seeds()],
    ids=lambda seed: f"{seed.on}-{seed.seed}",
)
def test_every_reading_counts_once_whatever_is_done_to_the_processes(
    seed: Seed, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if seed.on == "kafka":
        request.getfixturevalue("can_run_kafka")
    result = run_chaos(tmp_path, seed.seed, seed.on, seconds=CHAOS_S, steps=seed.steps)
    print(result["history"])
    if seed.steps >= STEPS[seed.on]:
        assert len(result["operations"]) == STEPS[seed.on], "each kind of fault"
    assert result["repeated"] > 0


def test_a_server_is_not_paused_for_long_while_it_holds_the_log(tmp_path: Path) -> None:
    """No other one could take over, and chaos would wait for it without an end."""
    database = tmp_path / "federation.db"
    with closing(sqlite3.connect(database, isolation_level=None)) as paused:
        paused.execute("PRAGMA journal_mode=WAL")
        assert can_write(database)
        paused.execute("BEGIN IMMEDIATE")
        assert not can_write(database, wait_s=0.0)
        paused.execute("ROLLBACK")
        assert can_write(database)


@pytest.mark.parametrize(
    ("sequences", "repeated"),
    [
        ((1, 2, 3), 0),
        ((1, 2, 1, 2, 3), 2),
        ((), 0),
        ((1, 3), "attic: 3 after 1"),
        ((2, 1), "attic: 2 after 0"),
    ],
    ids=["in order", "copies", "none", "one is lost", "the order is another one"],
)
def test_the_check_of_the_order_finds_what_is_lost_or_out_of_order(
    sequences: tuple[int, ...], repeated: int | str
) -> None:
    contract = plant()
    updates = [an_update(contract, "attic", sequence) for sequence in sequences]
    others = [an_update(contract, "cellar", sequence + 1) for sequence in range(len(sequences))]
    mixed = [update for pair in zip(updates, others, strict=True) for update in pair]
    if isinstance(repeated, str):
        with pytest.raises(AssertionError, match=repeated):
            check_order(mixed)
    else:
        assert check_order(mixed) == repeated
