"""Row 3: an answer that claims more rows than its readings must not move a model, in this round or
in any later one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.hostile.attacked_rounds import AttackedRounds, filled, step_all, within_the_box
from tests.server_node.rounds_harness import SITES


def test_an_answer_with_more_rows_than_readings_is_set_aside_and_moves_nothing(
    tmp_path: Path,
) -> None:
    site = AttackedRounds(tmp_path)
    with site.server() as node:
        step_all(node)
        first = site.newest()
        honest = site.honest_arrays(first)
        corner = filled(honest, count=1e149) | {"sum": np.full((3, 2), 1e149)}
        site.send(*(site.make_answer(first, client) for client in SITES))
        site.send(site.make_answer(first, "liar", corner, readings=100))
        step_all(node)
        for _ in range(3):
            newest = site.run_round(node)
        assert newest.round >= 4
        assert newest.clients == len(SITES)
        assert within_the_box(newest)
    assert site.reasons() == ["claims"]


def test_a_client_does_not_weigh_more_than_the_contract_allows(tmp_path: Path) -> None:
    site = AttackedRounds(tmp_path)
    most = site.contract.models[0].readings_max
    with site.server() as node:
        step_all(node)
        first = site.newest()
        forged = filled(site.honest_arrays(first), count=most, inertia=0.0) | {
            "sum": np.full((3, 2), float(most))
        }
        site.send(site.make_answer(first, "liar", forged, readings=3 * most))
        step_all(node)
        assert within_the_box(site.run_round(node))
    assert site.reasons() == ["bounds"]


def test_a_sum_without_rows_is_set_aside_and_the_rounds_go_on(tmp_path: Path) -> None:
    site = AttackedRounds(tmp_path)
    with site.server() as node:
        step_all(node)
        first = site.newest()
        forged = filled(site.honest_arrays(first), count=0.0, sum=1e9, inertia=0.0)
        site.send(site.make_answer(first, "liar", forged, readings=100))
        step_all(node)
        newest = site.run_round(node)
        assert (newest.round, newest.clients) == (2, len(SITES))
    assert site.reasons() == ["claims"]
