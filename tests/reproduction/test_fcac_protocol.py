"""Single trials of FCAC against those of its authors' program, and data that the paper does not
have."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from reproduction.datasets import FCAC_SPLITS, Split, stem
from reproduction.experiment import SCORES, Setting, with_laplace_noise
from reproduction.experiments.fcac import contribution, federated, run

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"


@pytest.fixture(scope="module")
def optdigits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "optdigits.csv.gz"
    with (
        np.load(VECTORS / "optdigits.npz") as stored,
        gzip.open(path, "wt", compresslevel=1) as file,
    ):
        file.write(",".join(f"pixel{number}" for number in range(64)) + ",label\n")
        np.savetxt(file, np.column_stack([stored["X"], stored["y"]]), fmt="%d", delimiter=",")
    return path


@pytest.fixture(scope="module")
def phoneme() -> Path:
    folder = os.environ.get("SHOAL_DATA")
    path = Path(folder) / "phoneme.csv.gz" if folder else None
    if path is None or not path.exists():
        reason = "set SHOAL_DATA to a folder that holds phoneme.csv.gz"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


def authors(dataset: str, split: Split, trial: int, epsilon: float = -1.0) -> dict[str, float]:
    with np.load(VECTORS / "trials.npz") as trials:
        one = (trials["dataset"] == dataset) & (trials["niid"] == (split == "niid"))
        one &= (trials["trial"] == trial) & (trials["eps"] == epsilon)
        assert one.sum() == 1
        return {key: trials[key][one][0] for key in ("ARI", "AMI", "NMI", "n_nodes", "n_clusters")}


def trial_of(
    path: Path, split: Split, clients: int, trial: int, epsilon: float | None = None
) -> dict[str, float]:
    return run(Setting("fcac", stem(path), split, clients, path=path, epsilon=epsilon), trial)


def assert_same(measures: dict[str, float], expected: dict[str, float]) -> None:
    assert (measures["nodes"], measures["clusters"]) == (
        expected["n_nodes"],
        expected["n_clusters"],
    )
    ours = [measures[score] for score in SCORES]
    np.testing.assert_allclose(
        ours, [expected[key] for key in ("ARI", "AMI", "NMI")], rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("trial", [0, 1])
@pytest.mark.parametrize("split", FCAC_SPLITS)
def test_optdigits_gives_the_figures_of_the_authors(
    optdigits: Path, split: Split, trial: int
) -> None:
    assert_same(trial_of(optdigits, split, 50, trial), authors("optdigits", split, trial))


@pytest.mark.needs("data")
@pytest.mark.parametrize("trial", [0, 1])
@pytest.mark.parametrize("split", FCAC_SPLITS)
def test_phoneme_gives_the_figures_of_the_authors(phoneme: Path, split: Split, trial: int) -> None:
    assert_same(trial_of(phoneme, split, 10, trial), authors("phoneme", split, trial))


def test_a_trial_with_noise_gives_the_figures_of_the_authors(optdigits: Path) -> None:
    assert_same(trial_of(optdigits, "niid", 50, 0, 25.0), authors("optdigits", "niid", 0, 25.0))


def test_the_noise_is_that_of_the_authors() -> None:
    with np.load(VECTORS / "fcac_blobs2d_eps25.npz") as golden:
        clients = np.split(golden["X"], golden["client_end"][:-1])
        ours = np.concatenate(
            [with_laplace_noise(rows, float(golden["epsilon"]), seed=7) for rows in clients]
        )
        np.testing.assert_allclose(ours, golden["noised"], rtol=1e-12, atol=1e-12)


def test_no_rows_need_no_noise() -> None:
    assert with_laplace_noise(np.empty((0, 3)), 1.0, 0).shape == (0, 3)


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_a_client_with_few_rows_contributes_each_of_them_as_a_node(n: int) -> None:
    rows = np.arange(2.0 * n).reshape(n, 2)
    arrays = contribution(rows)
    np.testing.assert_array_equal(arrays["weight"], rows)
    np.testing.assert_array_equal(arrays["count"], np.ones(n))


def test_clients_without_rows_change_nothing() -> None:
    rows = np.random.default_rng(1).normal(size=(60, 2))
    with_empty = federated([np.empty((0, 2)), rows[:30], np.empty((0, 2)), rows[30:]])
    without = federated([rows[:30], rows[30:]])
    np.testing.assert_array_equal(with_empty.weights, without.weights)


def awkward() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(range(12), range(12)), -1).reshape(-1, 2).astype(float)
    return {
        "all_features_constant": np.ones((120, 3)),
        "most_features_constant": np.column_stack(
            [generator.normal(size=(120, 2)), np.full((120, 7), 5.0)]
        ),
        "one_feature": generator.normal(size=(120, 1)),
        "few_rows": generator.normal(size=(5, 2)),
        "integer_grid_with_ties": np.repeat(grid, 2, axis=0),
        "huge_and_tiny_scales": generator.normal(size=(120, 3)) * [1e12, 1.0, 1e-12],
        "wide": generator.random((90, 1776)),
    }


@pytest.mark.parametrize("name", awkward())
@pytest.mark.parametrize("classes", [1, 2])
def test_awkward_data_give_finite_scores(tmp_path: Path, name: str, classes: int) -> None:
    rows = awkward()[name]
    path = tmp_path / f"{name}.csv"
    labels = np.arange(len(rows)) % classes
    header = ",".join([f"f{number}" for number in range(rows.shape[1])] + ["label"])
    np.savetxt(path, np.column_stack([rows, labels]), delimiter=",", header=header, comments="")
    splits: tuple[Split, ...] = FCAC_SPLITS if len(rows) >= 40 else ("iid",)
    for split in splits:
        measures = trial_of(path, split, 1 if split == "niid" else 3, 0)
        assert -1 <= measures["ari"] <= 1
        assert -1 <= measures["ami"] <= 1 + 1e-9
        assert 0 <= measures["nmi"] <= 1 + 1e-9
        assert 1 <= measures["clusters"] <= measures["nodes"] <= len(rows)
