"""The splits of the FCAC paper, to the row, and data that are too small for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from reproduction import datasets
from reproduction.datasets import FCAC_SPLITS, Split
from shoal.errors import InvalidData, SettingsError

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"


def test_no_rows_give_clients_without_rows() -> None:
    nothing = np.empty(0, dtype=np.int64)
    assert [len(part) for part in datasets.deal(nothing, 3, "iid", 0)] == [0, 0, 0]
    with pytest.raises(InvalidData):
        datasets.deal(nothing, 3, "niid", 0)


@pytest.mark.parametrize("split", FCAC_SPLITS)
def test_the_split_is_that_of_the_authors_to_the_row(split: Split) -> None:
    with (
        np.load(VECTORS / f"fcac_optdigits_{split}.npz") as golden,
        np.load(VECTORS / "optdigits.npz") as optdigits,
    ):
        parts = datasets.deal(optdigits["y"].astype(np.int64), 50, split, 3)
        np.testing.assert_array_equal(
            np.cumsum([len(part) for part in parts]), golden["client_end"]
        )
        np.testing.assert_array_equal(np.concatenate(parts), golden["client_rows"])


@given(
    labels=arrays.arrays(np.int64, st.integers(0, 60), elements=st.integers(0, 3)),
    clients=st.integers(1, 7),
    trial=st.integers(0, 5),
)
def test_every_row_goes_to_exactly_one_client_in_the_order_of_the_classes(
    labels: np.ndarray, clients: int, trial: int
) -> None:
    parts = datasets.deal(labels, clients, "iid", trial)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert all((np.diff(labels[part]) >= 0).all() for part in parts)


def test_the_non_iid_split_gives_every_client_its_rows_and_the_same_sizes_in_every_trial() -> None:
    labels = np.repeat([0, 1, 2], [300, 50, 100])
    trials = [datasets.deal(labels, 4, "niid", trial) for trial in range(3)]
    sizes = [[len(part) for part in parts] for parts in trials]
    assert min(sizes[0]) >= datasets.CLIENT_ROWS_MIN
    assert sizes[0] == sizes[1] == sizes[2]
    assert len(set(sizes[0])) > 1
    assert not np.array_equal(trials[0][0], trials[1][0])
    for parts in trials:
        assert sorted(np.concatenate(parts).tolist()) == list(range(450))


def test_data_too_small_for_its_clients_are_an_error_and_fewer_clients_are_found() -> None:
    one_class = np.zeros(90, dtype=np.int64)
    with pytest.raises(InvalidData, match="90 rows cannot be dealt to 5 clients"):
        datasets.deal(one_class, 5, "niid", 0)
    assert datasets.feasible_clients(one_class, 5) in (1, 2)
    with pytest.raises(InvalidData):
        datasets.feasible_clients(one_class[:39], 5)


def test_a_draw_that_cannot_succeed_ends() -> None:
    # 40 rows for each of 50 clients and not one to spare: no draw hits that.
    with pytest.raises(InvalidData):
        datasets.deal(np.repeat([0, 1], 1000), 50, "niid", 0)


def test_clients_are_at_least_one() -> None:
    with pytest.raises(SettingsError):
        datasets.deal(np.zeros(10, dtype=np.int64), 0, "iid", 0)


@pytest.mark.parametrize(("rows", "clients"), [(0, 2), (799, 2), (4000, 10), (10**6, 50)])
def test_unknown_data_get_a_client_per_400_rows(rows: int, clients: int) -> None:
    assert datasets.default_clients(rows) == clients
