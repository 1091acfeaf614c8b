"""The open window of a checkpoint: refused where its rows are none that a client counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.errors import InvalidState
from shoal.protocol.codec import StoredPart
from tests.client_nodes.site import Site
from tests.counted_contract import COUNTED, agreed

DAMAGED: dict[str, dict[str, Any]] = {
    "a row that is not a number": {"rows": np.array([[0.5, np.nan], [0.5, 0.5]])},
    "a row outside the bounds": {"rows": np.array([[0.5, 0.5], [0.5, 1e300]])},
    "a row too few": {"rows": np.full((1, 2), 0.5)},
    "rows of another type": {"rows": np.zeros((2, 2), dtype=np.int64)},
    "validity of every value": {"valid": np.ones((2, 2), dtype=np.bool_)},
    "more rows than a window": {
        "rows": np.full((60, 2), 0.5),
        "valid": np.ones(60, dtype=np.bool_),
    },
    "fewer windows than none": {"closed": -1},
    "a part of a reading": {"places": 0.5},
}


@pytest.mark.parametrize("name", DAMAGED)
def test_an_open_window_that_no_readings_have_made_is_refused(name: str, tmp_path: Path) -> None:
    site = Site(tmp_path, agreed(COUNTED, mode="off", window_readings=50))
    site.add_readings(np.full((2, 2), 0.5))
    with site.node() as node:
        while node.step():
            pass
        windows = node._windows
        state = windows.state()
        assert len(state["rows"]) == 2
        windows.restore(state)
        with pytest.raises(InvalidState):
            windows.restore({**state, **DAMAGED[name]})


def test_where_no_model_counts_the_state_is_one_part_that_a_checkpoint_stores_once(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path)
    site.add_readings(np.full((2, 2), 0.5))
    with site.node() as node:
        before = node._windows.state()
        assert isinstance(before, StoredPart)
        while node.step():
            pass
        assert node._windows.state() is before
        node._windows.restore({**before.value, "closed": 2})
        assert node._windows.state().value["closed"] == 2
