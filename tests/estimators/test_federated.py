"""The estimators of algorithms in rounds: a table per client in, one clustering out."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import StandardScaler

from shoal.algorithms.registry import rounds_algorithm, rounds_names
from shoal.algorithms.rounds.arrays import row_blocks
from shoal.algorithms.rounds.policies import Policy
from shoal.errors import InvalidData, SettingsError
from shoal.estimators.federated import (
    FederatedDBSCAN,
    FederatedFCM,
    FederatedGMM,
    FederatedKMeans,
    FederatedSpectral,
)
from shoal.estimators.rounds import KFED, MUFC, RoundsEstimator
from shoal.estimators.tsk import FederatedTSK
from shoal.kernels.matching import matched_distance

CENTRES = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]])
FORMS = [
    FederatedKMeans(3),
    FederatedKMeans(3, average="weighted"),
    FederatedFCM(3),
    FederatedFCM(3, average="avg2"),
    FederatedFCM(3, average="avg1", local="step", support="powers"),
    FederatedGMM(3),
    FederatedGMM(3, average="weighted", covariance="diag"),
    FederatedGMM(3, average="weighted", match="place", local_steps=1, max_rounds=300, tol=1e-6),
    KFED(3, local_clusters=2),
    MUFC(3, local_clusters=2),
    FederatedDBSCAN(8),
    FederatedSpectral(),
    FederatedSpectral(3, landmarks=20),
]


def clients(seed: int = 0) -> list[NDArray[np.float64]]:
    """Each lacks one of the three clusters, and one has no rows at all."""
    generator = np.random.default_rng(seed)
    blobs = [generator.normal(size=(80, 2)) * 0.4 + centre for centre in CENTRES]
    return [np.concatenate([blobs[i][:40], blobs[(i + 1) % 3][40:]]) for i in range(3)] + [
        np.empty((0, 2))
    ]


@pytest.mark.parametrize("estimator", FORMS, ids=repr)
def test_it_finds_the_clusters_of_all_clients(estimator: RoundsEstimator) -> None:
    tables = clients()
    fitted = clone(estimator).fit(tables)
    assert matched_distance(CENTRES, fitted.cluster_centers_) < 1.5
    assert [len(labels) for labels in fitted.labels_by_client_] == [80, 80, 80, 0]
    np.testing.assert_array_equal(fitted.labels_, fitted.predict(np.concatenate(tables)))
    assert fitted.n_rounds_ == len(fitted.shifts_) >= 1
    again = clone(estimator).fit(tables)
    np.testing.assert_array_equal(again.cluster_centers_, fitted.cluster_centers_)


def test_one_table_with_client_names_gives_the_same_result_in_the_order_of_the_table() -> None:
    tables = clients()
    rows = np.concatenate(tables)
    owner = np.repeat(["a", "b", "c"], 80)
    order = np.random.default_rng(3).permutation(240)
    dealt = FederatedKMeans(3).fit(rows[order], clients=owner[order])
    assert (
        matched_distance(FederatedKMeans(3).fit(tables).cluster_centers_, dealt.cluster_centers_)
        < 1e-9
    )
    np.testing.assert_array_equal(dealt.labels_, dealt.predict(rows[order]))
    np.testing.assert_array_equal(
        dealt.fit_predict(rows[order], clients=owner[order]), dealt.labels_
    )


def test_sums_are_scikit_learns_kmeans_from_the_same_start() -> None:
    tables = clients()
    start = CENTRES + 1.0
    ours = FederatedKMeans(3, init=start, tol=0.0).fit(tables)
    theirs = KMeans(3, init=start, n_init=1, tol=0.0).fit(np.concatenate(tables))
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, atol=1e-9)


def test_a_mixture_has_weights_and_covariances() -> None:
    fitted = FederatedGMM(3, covariance="spherical").fit(clients())
    assert fitted.weights_.sum() == pytest.approx(1)
    np.testing.assert_allclose(
        fitted.covariances_, 0.16 * np.eye(2)[None].repeat(3, axis=0), atol=0.05
    )


def test_every_algorithm_has_an_estimator_and_every_option_a_parameter() -> None:
    # n_clusters; the tolerance of FFCM's fits, which the paper does not give; and y of a regressor.
    shared = {"clusters", "tolerance", "target"}
    renamed = {"steps": "local_steps", "clusters_max": "max_clusters"}
    reached = {}
    for estimator in FORMS:
        reached.setdefault(estimator._algorithm().name, estimator.get_params())
    reached["tsk"] = FederatedTSK().get_params()
    assert set(reached) == set(rounds_names())
    for name, params in reached.items():
        wanted = {
            renamed.get(option, option)
            for option in set(rounds_algorithm(name).options.model_fields) - shared
        }
        assert wanted <= set(params), name


def test_one_step_of_avg1_weighed_by_powers_is_the_sums() -> None:
    exact = FederatedFCM(3, max_rounds=9, tol=0.0).fit(clients())
    one_step = FederatedFCM(
        3, average="avg1", local="step", support="powers", max_rounds=9, tol=0.0
    ).fit(clients())
    whole_fit = FederatedFCM(3, average="avg1", max_rounds=9, tol=0.0).fit(clients())
    np.testing.assert_allclose(one_step.cluster_centers_, exact.cluster_centers_, atol=1e-9)
    assert matched_distance(whole_fit.cluster_centers_, exact.cluster_centers_) > 1e-3


# Of centres that begin at random some are far from every row.
@pytest.mark.filterwarnings("ignore:. of 3 centres have no rows:UserWarning")
@pytest.mark.parametrize("bounds", [(-5, 20), ([-5, -6], [20, 30])])
def test_random_centres_within_given_bounds_do_not_depend_on_the_rows(bounds: Any) -> None:
    tables = clients()
    starts = [
        FederatedKMeans(3, init="box", bounds=bounds, max_rounds=1).fit(some).params_["centre"]
        for some in ([np.zeros((1, 2))], [np.zeros((1, 2)), tables[3]])
    ]
    np.testing.assert_array_equal(starts[0], starts[1])
    cells = [MUFC(1, bounds=bounds).fit(some).params_["step"] for some in (tables, tables[:2])]
    np.testing.assert_array_equal(cells[0], cells[1])
    for wrong in ((0, 1), 7, (0, np.inf), (-5, [20, 30, 40]), ("a", "b")):
        with pytest.raises(SettingsError, match="bounds"):
            FederatedKMeans(3, bounds=wrong).fit(tables)


def test_a_part_of_the_clients_and_a_policy_can_be_asked_for() -> None:
    fitted = FederatedFCM(3, fraction=0.5, policy=Policy("decay"), max_rounds=40, tol=0.0).fit(
        clients()
    )
    assert fitted.n_rounds_ == 40
    assert matched_distance(CENTRES, fitted.cluster_centers_) < 1.5


@pytest.mark.parametrize(
    "wrong", [[], [np.empty((0, 2))], [np.ones((2, 2)), np.ones((2, 3))], [[[np.nan, 1.0]]]]
)
def test_rows_that_cannot_be_learnt_from_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidData):
        FederatedKMeans(2).fit(wrong)


def test_invalid_parameters_are_refused_by_fit() -> None:
    for wrong in (
        FederatedKMeans(0),
        FederatedKMeans(2, average="median"),
        FederatedKMeans(2, init="middle"),
        FederatedFCM(2, fuzzifier=1.0),
        FederatedGMM(2, covariance="round"),
        KFED(2, local_clusters=5),
        MUFC(2, cells=0),
    ):
        with pytest.raises(SettingsError):
            wrong.fit(clients())
    with pytest.raises(SettingsError, match="call fit before predict"):
        KFED(2).predict(np.ones((1, 2)))
    with pytest.raises(InvalidData):
        FederatedKMeans(2).fit(np.ones((4, 2)), clients=[1, 2])
    with pytest.raises(InvalidData):
        FederatedKMeans(2).fit(clients(), clients=[1])


@pytest.mark.parametrize("estimator", [FederatedKMeans, FederatedGMM, KFED])
def test_a_number_of_clusters_that_cannot_be_is_called_as_its_parameter(estimator: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(80, 2)) + 9.0 * (np.arange(80) % 2)[:, None]
    for number in (0, -1, 2.5):
        with pytest.raises(SettingsError, match=rf"^n_clusters = {number}, must be"):
            estimator(number).fit(rows)
    # The type of a label.
    assert len(set(estimator(np.int64(2)).fit(rows).labels_)) == 2


@pytest.mark.parametrize("estimator", [FederatedKMeans, FederatedFCM, FederatedGMM])
@pytest.mark.parametrize("criterion", ["gap", "silhouette", "bic"])
def test_a_criterion_chooses_the_number_of_clusters(estimator: Any, criterion: str) -> None:
    generator = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
    # each client has one cluster
    tables = [centre + generator.normal(size=(120, 2)) for centre in centres]
    chosen = estimator(criterion, max_clusters=6)
    if criterion == "bic" and estimator is not FederatedGMM:
        with pytest.raises(SettingsError, match="must be a number or gap or silhouette"):
            chosen.fit(tables)
        return
    chosen.fit(tables)
    assert chosen.n_clusters_ == len(chosen.cluster_centers_) == 3
    assert chosen.n_clusters == criterion, "a parameter stays as it was given"
    assert estimator(2).fit(tables).n_clusters_ == 2


@pytest.mark.parametrize("seed", range(3))
def test_clusters_in_a_row_five_deviations_apart_are_counted(seed: int) -> None:
    """Two of them for one are hardly better than one, and three are."""
    generator = np.random.default_rng(seed)
    table = 5.0 * generator.integers(0, 3, (400, 1)) + generator.normal(size=(400, 1))
    assert FederatedKMeans("gap", max_clusters=10).fit([table]).n_clusters_ == 3


def test_a_criterion_that_chooses_the_largest_number_says_that_there_are_at_least_as_many() -> None:
    generator = np.random.default_rng(0)
    tables = []
    for place in range(6):
        centre = np.array([9.0 * (place % 3), 9.0 * (place // 3)])
        tables.append(centre + generator.normal(size=(120, 2)))
    with pytest.warns(UserWarning, match="at least 5 clusters"):
        chosen = FederatedKMeans("gap", max_clusters=5).fit(tables)
    assert chosen.n_clusters_ == 5


def test_a_warning_counts_centres_that_have_no_rows() -> None:
    with pytest.warns(UserWarning, match="1 of 3 centres have no rows"):
        FederatedKMeans(3, init=[[0.0, 0.0], [1.0, 1.0], [90.0, 90.0]]).fit(clients())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FederatedKMeans(3).fit(clients())


def test_a_number_of_clusters_that_cannot_be_is_an_error() -> None:
    for wrong in (
        FederatedKMeans("nonsense"),
        FederatedKMeans("auto"),
        FederatedKMeans("gap", max_clusters=0),
        KFED("gap"),
    ):
        with pytest.raises(SettingsError):
            wrong.fit(clients())


def test_few_rows_far_from_all_others_are_no_spectral_cluster_of_their_own() -> None:
    """Without regularisation their clusters take the place of groups: an ARI near 0."""
    wine = load_wine()
    rows = StandardScaler().fit_transform(wine.data)
    model = FederatedSpectral(n_clusters=3).fit(rows)
    assert adjusted_rand_score(wine.target, model.labels_) >= 0.75


def test_a_warning_names_spectral_clusters_of_few_rows() -> None:
    rows = StandardScaler().fit_transform(load_breast_cancer().data)
    with pytest.warns(UserWarning, match=r"1 of 2 clusters have fewer rows \(\d\) than the \d "):
        FederatedSpectral(n_clusters=2).fit(rows)
    group = np.random.default_rng(5).normal(0.0, 1.0, (400, 2))
    apart = np.vstack([group, group + 20.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FederatedSpectral(n_clusters=2).fit(apart)


def test_scikit_learn_and_scipy_are_not_needed() -> None:
    program = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['sklearn', 'sklearn.base', 'scipy']))\n"
        "import numpy as np\n"
        "from shoal.estimators.federated import *\n"
        "from shoal.estimators.rounds import *\n"
        "rows = [np.arange(20.0).reshape(10, 2), np.ones((3, 2))]\n"
        "for each in (FederatedKMeans(2), FederatedFCM(2), FederatedGMM(2), KFED(2), MUFC(2)):\n"
        "    each.fit(rows)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=900)


@pytest.mark.parametrize("n_clusters", [10, "bic"])
def test_more_full_covariances_than_memory_holds_are_refused_with_what_to_do(
    n_clusters: int | str,
) -> None:
    rows = np.repeat(np.arange(4.0)[:, None], 50_000, axis=1)
    with pytest.raises(
        SettingsError, match=r'full covariances of 50000 features.*GiB.*covariance="diag"'
    ):
        FederatedGMM(n_clusters, init="box").fit([rows[:2], rows[2:]])


def test_diagonal_covariances_take_as_many_features_as_the_refusal_says() -> None:
    rows = np.repeat(np.arange(4.0)[:, None], 50_000, axis=1)
    assert (
        FederatedGMM(2, covariance="diag", init="box", max_rounds=2)
        .fit([rows[:2], rows[2:]])
        .n_rounds_
        <= 2
    )


def test_blocks_have_at_least_as_many_rows_as_the_algorithm_asks_for() -> None:
    rows = np.zeros((2000, 784))
    assert [len(block) for block in row_blocks(rows, 784, 10, 784)] == [784, 784, 432]
    assert len(next(row_blocks(rows, 784, 10))) < 100
