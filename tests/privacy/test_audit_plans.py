"""The audit of plans made to hurt: the counters pass it, and one whose readings move each other is
refuted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.algorithms.density_tree.gaps import LeafFacts
from shoal.kernels.arrays import Floats, Ints, Words32
from shoal.onebox.audit.plans import audit_plans
from shoal.onebox.audit.statistics import EventFinding
from tests.privacy.audited import audited_config, model_of


def audited(folder: Path) -> EventFinding:
    config = audited_config(folder)
    model = model_of(config, "density_tree")
    return audit_plans(config.resolved, model, np.random.default_rng(0))


def test_under_no_plan_does_one_reading_move_others(memory_folder: Path) -> None:
    finding = audited(memory_folder)
    assert not finding.refuted, finding.line()
    assert finding.trials > 20, "counters take most of these plans"


def drawn_by_one_running_sum(
    self: LeafFacts, rows: Floats, which: Ints, leaf: Ints, words: Words32
) -> Ints:
    """A sum over all readings of a window, which is rounded: the readings before decide on those
    that lie on a boundary."""
    order = np.lexsort((leaf, which))
    weight = self._weights(rows, which, leaf)[order]
    first = np.searchsorted(which[order], np.arange(len(rows)))
    last = np.append(first[1:], len(order)) - 1
    reached = np.cumsum(weight)
    before = reached[first] - weight[first]
    share = words * 2.0**-32
    place = np.searchsorted(reached, before + share * (reached[last] - before), side="right")
    return np.asarray(leaf[order[np.clip(place, first, last)]])


def test_a_sum_over_all_readings_of_a_window_is_noticed(
    memory_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LeafFacts, "drawn", drawn_by_one_running_sum)
    assert audited(memory_folder).refuted
