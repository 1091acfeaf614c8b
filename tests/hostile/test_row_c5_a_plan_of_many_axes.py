"""Row C5: a plan of very many axes costs a client neither time nor bytes: it is refused, and the
client counts on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.algorithms.density_tree import DENSITY_TREE
from shoal.algorithms.density_tree.arrays import SHARE_ONE
from shoal.algorithms.streaming import Arrays
from shoal.config.resolved import resolve
from shoal.errors import InvalidData, MessageRejected
from shoal.protocol.validation import Validator
from tests.hostile.test_row_a5_a_false_region import CONTRACT, CountedSite

OPTIONS = {"noise_variance": 4.0, "leaves_max": 8, "axes_per_window": 1}


def plan(times: int, share: int, leaves: int = 1) -> Arrays:
    """An empty tree's plan with its axes repeated; with more leaves, each but the first has the
    axes of the first."""
    arrays: dict[str, Any] = dict(DENSITY_TREE.server(OPTIONS, 2).snapshot())
    axes = {name: values for name, values in arrays.items() if name.startswith("axis_")}
    arrays |= {name: np.concatenate([values] * times * leaves) for name, values in axes.items()}
    arrays["axis_leaf"] = np.repeat(np.arange(leaves), 2 * times)
    arrays["axis_share"] = np.full(2 * times * leaves, share)
    cuts = np.arange(leaves - 1)
    arrays["leaf_id"] = np.arange(leaves)
    arrays["cut_parts"] = np.stack(
        [-1 - cuts, np.where(cuts + 1 < leaves - 1, cuts + 1, -leaves)], axis=1
    )
    arrays["cut_first"] = arrays["cut_second"] = np.zeros(leaves - 1, dtype=np.int64)
    arrays["cut_first_weight"], arrays["cut_second_weight"] = (
        np.ones(leaves - 1),
        np.zeros(leaves - 1),
    )
    arrays["cut_at"] = np.linspace(0.1, 0.9, leaves - 1)
    return arrays


def test_a_plan_that_the_contract_allows_is_adopted() -> None:
    counter = DENSITY_TREE.counter(OPTIONS, 2)
    counter.adopt(plan(1, SHARE_ONE // 2, leaves=8))


MANY_AXES = plan(32_768, 1)
MANY_LEAVES = plan(1, SHARE_ONE // 2, leaves=9)
MANY_SAMPLED = plan(1, SHARE_ONE, leaves=8)


@pytest.mark.parametrize("hostile", [MANY_AXES, MANY_LEAVES, MANY_SAMPLED])
def test_a_plan_of_more_than_the_contract_allows_is_refused(hostile: Arrays) -> None:
    counter = DENSITY_TREE.counter(OPTIONS, 2)
    before = counter.plan_digest
    with pytest.raises(InvalidData, match="too large"):
        counter.adopt(hostile)
    assert counter.plan_digest == before


def test_a_client_rejects_the_snapshot_that_such_a_plan_is_in(tmp_path: Path) -> None:
    site = CountedSite(tmp_path, False, CONTRACT)
    site.send_windows(2)
    honest = site.snapshots()[-1]
    names = [name for name in honest.arrays if name.startswith("axis_")]
    arrays = {**honest.arrays, **{name: np.repeat(honest.arrays[name], 1000) for name in names}}
    arrays["axis_share"][:] = SHARE_ONE
    validator = Validator(resolve(CONTRACT))
    validator.check_snapshot(honest)
    with pytest.raises(MessageRejected, match="too large"):
        validator.check_snapshot(replace(honest, arrays=arrays))
