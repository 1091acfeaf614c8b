"""Kills of `tests/house/host_kills.py` at some seeds."""

from __future__ import annotations

import pytest

from tests.house.host_kills import federation, run_kills

KILLS_MIN = 5
"""a run in which no kill falls would show nothing"""


@pytest.mark.integration
@pytest.mark.parametrize("seed", range(4))
def test_kills_at_any_call_of_three_hosts_lose_and_repeat_nothing(
    kafka_bootstrap: str, seed: int
) -> None:
    with federation(kafka_bootstrap, seed) as (config, folder, monkeypatch):
        kills = run_kills(config, folder, seed, monkeypatch, KILLS_MIN)
    assert kills.done.total() >= KILLS_MIN
