"""Row B5: a window of private counts has at most the readings that the contract gives one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.algorithms.density_tree.plan import CountingPlan
from tests.hostile.test_row_a5_a_false_region import CONTRACT, WINDOW, CountedSite


@pytest.mark.parametrize("keyed", [False, True])
def test_a_window_of_more_readings_than_the_contract_gives_one_is_rejected(
    tmp_path: Path, keyed: bool
) -> None:
    site = CountedSite(tmp_path, keyed, CONTRACT)
    site.find_clusters()
    model = site.run()
    plan = CountingPlan.from_arrays(site.plan(), 2)
    rows = np.random.default_rng(1).random((WINDOW + 1, 2))
    counted = plan.count(rows, np.ones(len(rows), dtype=np.bool_), b"cellar", 1)
    site.send(site.update("cellar", counted.update(counted.counts), len(rows)))
    assert site.run() == model
    assert site.reasons() == ["claims"]
