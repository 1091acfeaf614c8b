"""A client killed at random moments: the ledger is never below what was spent, and no window has
two answers.

`make audit` runs the same with 1 000 kills.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.client_nodes import node
from shoal.config.contract import Model
from shoal.onebox.audit.kills import audit_kills
from shoal.onebox.audit.statistics import EventFinding
from shoal.privacy.ledger import Ledger, Release
from shoal.runtime.checkpoint import Outbox, OutboxRecord
from tests.privacy.audited import audited_config, draw_fresh_noise_for_every_release, model_of

KILLS = 50
KILLS_WITH_A_FAULT = 10
ANSWERS = 0
LEDGER = 1
"""places of the findings of an audit"""
SLOW_STORE_S = 0.02
"""how long a store takes that comes too late: most of a step, so that kills at random moments meet
it"""
pytestmark = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(),
    reason="a client is killed in a forked process",
)


def killed(folder: Path, kills: int, seed: int = 0) -> list[EventFinding]:
    config = audited_config(folder)
    run = folder / f"run-{seed}"
    return audit_kills(
        config, model_of(config, "density_tree"), run, kills, np.random.default_rng(seed)
    )


def audit_until_refuted(folder: Path, place: int) -> None:
    """As many audits as it takes: in some, no kill comes between the two steps that are in the
    wrong order. Without the fault none is ever refuted, and pytest's timeout ends them."""
    for seed in itertools.count():
        finding = killed(folder, KILLS_WITH_A_FAULT, seed)[place]
        print(finding.line())  # with a failure pytest shows what each audit saw
        if finding.refuted:
            return


def test_no_kill_leaves_two_answers_or_a_ledger_that_is_too_small(memory_folder: Path) -> None:
    answers, ledger = killed(memory_folder, KILLS)
    assert (answers.occurred, ledger.occurred) == (0, 0), [answers.line(), ledger.line()]
    assert ledger.trials == KILLS
    assert answers.trials > KILLS, "windows were released between the kills"


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("cluster_tree_from_counts", {}), ("states_from_counts", {"block_readings": 2})],
)
def test_clients_whose_counts_follow_no_tree_are_killed_too(
    algorithm: str, options: dict[str, int], memory_folder: Path
) -> None:
    config = audited_config(memory_folder)
    declared = Model(name="counted", algorithm=algorithm, options=options)
    config = config.model_copy(
        update={"contract": config.contract.model_copy(update={"models": (declared,)})}
    )
    found = audit_kills(
        config, model_of(config, algorithm), memory_folder / "run", 3, np.random.default_rng(0)
    )
    assert [(finding.occurred, finding.trials > 0) for finding in found] == [(0, True), (0, True)]


def test_a_ledger_that_is_charged_too_late_is_noticed(
    memory_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Ledger.charge
    waiting = list[Sequence[Release]]()

    def charge_the_one_before(self: Ledger, releases: Sequence[Release], now: float) -> None:
        waiting.append(releases)
        for earlier in waiting[:-1]:
            real(self, earlier, now)

    monkeypatch.setattr(Ledger, "charge", charge_the_one_before)
    monkeypatch.setattr(Ledger, "check_windows", lambda *_: None)
    audit_until_refuted(memory_folder, LEDGER)


def test_windows_published_before_they_are_stored_are_noticed(
    memory_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill such a window is counted again; with fresh noise, or another plan, that is a
    second answer."""
    draw_fresh_noise_for_every_release(monkeypatch)
    real = Outbox.store

    def publish_first(
        self: Outbox, state: dict[str, Any], records: Sequence[OutboxRecord], now: float
    ) -> None:
        for record in records:
            self._log.publish(record.topic, record.value, record.key, record.headers)
        self._log.flush()
        time.sleep(SLOW_STORE_S)
        real(self, state, records, now)

    monkeypatch.setattr(Outbox, "store", publish_first)
    # Otherwise the client itself notices that the server has refused a second answer, and does not
    # start.
    monkeypatch.setattr(node, "check_no_conflict", lambda *_: None)
    audit_until_refuted(memory_folder, ANSWERS)
