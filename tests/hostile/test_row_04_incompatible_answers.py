"""Row 4: an answer that keeps the others from being combined is found, and its client named and
quarantined."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.algorithms.registry import rounds_algorithm
from shoal.algorithms.rounds.base import Params, Stats
from shoal.config import resolved
from shoal.errors import InvalidData
from shoal.server_node.models.base import incompatible_clients
from tests.hostile.attacked_rounds import AttackedRounds, step_all, within_the_box

KMEANS = rounds_algorithm("kmeans")


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """As k-means, but no answer may come together with one of 77 rows in its first cluster."""
    if len(answers) > 1 and any(answer["count"][0] == 77 for answer in answers):
        raise InvalidData("these answers do not fit together")
    return KMEANS.combine(params, answers)


@pytest.mark.parametrize("between", ["fresh", "cache"])
def test_the_incompatible_answer_is_found_and_its_client_quarantined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, between: str
) -> None:
    monkeypatch.setattr(resolved, "load_algorithm", lambda name: replace(KMEANS, combine=combine))
    site = AttackedRounds(tmp_path, pool_clients=4, between=between)
    with site.server() as node, caplog.at_level(logging.WARNING, "shoal"):
        step_all(node)
        first = site.newest()
        odd = {
            "count": np.array([77.0, 0.0, 0.0]),
            "sum": np.zeros((3, 2)),
            "inertia": np.array([1.0]),
        }
        odd["sum"][0] = 77 * 0.5
        site.send(site.make_answer(first, "odd", odd, readings=77))
        newest = site.run_round(node)
        assert newest.round == 2, "the round closes with the answers of the others"
        assert within_the_box(newest)
        assert [entry.client for entry in node.status().quarantined] == ["odd"]
        site.send(site.make_answer(newest, "odd", odd, readings=77))
        assert site.run_round(node).round >= 2
        assert caplog.text.count("round_failed") == 1, "it counts no more"
    named = [
        record.__dict__["fields"]["client"]
        for record in caplog.records
        if record.getMessage() == "incompatible_client"
    ]
    assert named == ["odd"]
    with site.server() as node:
        assert [entry.client for entry in node.status().quarantined] == ["odd"], (
            "also after a restart"
        )
        assert within_the_box(site.run_round(node))


def answers_of(n: int, **odd: float) -> dict[str, dict[str, np.ndarray]]:
    return {f"client-{i}": {"sum": np.array([1.0 + i / 100])} for i in range(n)} | {
        name: {"sum": np.array([size])} for name, size in odd.items()
    }


def test_no_client_is_blamed_for_what_all_fail_at() -> None:
    assert incompatible_clients(answers_of(5), lambda clients: not clients) == []


def test_of_two_answers_that_exclude_each_other_the_unusual_one_is_incompatible() -> None:
    answers = answers_of(6, odd=500.0)
    assert incompatible_clients(
        answers, lambda clients: not {"odd", "client-0"} <= set(clients)
    ) == ["odd"]


def test_several_incompatible_answers_are_found_together() -> None:
    answers = answers_of(6, odd=500.0, strange=900.0)
    found = incompatible_clients(
        answers, lambda clients: len(clients) == 1 or not {"odd", "strange"} & set(clients)
    )
    assert found == ["odd", "strange"]
