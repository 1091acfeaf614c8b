"""scikit-learn's own checks of an estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from shoal.errors import InvalidData
from shoal.estimators.cluster_tree import ClusterTree
from shoal.estimators.density_tree import DensityTree
from shoal.estimators.fcac import FCAC
from shoal.estimators.federated import (
    FederatedDBSCAN,
    FederatedFCM,
    FederatedGMM,
    FederatedKMeans,
    FederatedSpectral,
)
from shoal.estimators.rounds import KFED, MUFC
from shoal.estimators.states import States
from shoal.estimators.tsk import FederatedTSK

TOO_FEW_ROWS = {"check_clustering": "50 rows of three blobs are too few for a significant split"}
TEN_FEATURES = dict.fromkeys(
    ("check_dtype_object", "check_fit2d_1sample"), "ten features are more than a grid takes"
)
OTHER_START = {
    "check_sample_weight_equivalence_on_dense_data": "the first centres come from the rows alone, "
    "each once: the law of weights is of the same first centres"
}
NO_WEIGHTS = dict.fromkeys(
    (
        "check_sample_weights_pandas_series",
        "check_sample_weights_not_an_array",
        "check_sample_weights_list",
        "check_sample_weights_shape",
        "check_sample_weights_not_overwritten",
        "check_sample_weight_equivalence_on_dense_data",
    ),
    'only average="sums" takes weights',
)
EXPECTED_TO_FAIL = {
    repr(ClusterTree(clients=3)): TOO_FEW_ROWS,
    repr(DensityTree()): TOO_FEW_ROWS,
    repr(DensityTree(epsilon=None)): TOO_FEW_ROWS,
    repr(FederatedDBSCAN()): TEN_FEATURES,
    repr(FederatedKMeans(3)): OTHER_START,
    repr(FederatedFCM(3)): OTHER_START,
    repr(FederatedGMM(3)): OTHER_START,
    repr(FederatedKMeans(3, average="unweighted")): NO_WEIGHTS,
    repr(FederatedFCM(3, average="avg2")): NO_WEIGHTS,
    repr(FederatedGMM(3, average="weighted")): NO_WEIGHTS,
    repr(States()): {"check_clustering": "shuffled rows are no sequence: nothing stays"},
}
"""by estimator; ClusterTree finds the three blobs when the 50 rows come from one client"""
STREAMING = [
    FCAC(),
    FCAC(clients=3),
    ClusterTree(),
    ClusterTree(clients=3),
    DensityTree(),
    DensityTree(epsilon=None),
]
OF_SEQUENCES = [States()]
IN_ROUNDS = [
    FederatedKMeans(3),
    FederatedKMeans(3, average="unweighted"),
    FederatedFCM(3),
    FederatedFCM(3, average="avg2"),
    FederatedGMM(3),
    FederatedGMM(3, average="weighted"),
    KFED(3),
    MUFC(3),
    FederatedDBSCAN(),
    FederatedTSK(3),
    FederatedSpectral(3, landmarks=20),
    FederatedTSK(3, consequents="gradient", step=0.5, max_rounds=300),
]
"""every algorithm in rounds, of a single client"""


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
# scikit-learn's rows lie around 100
@pytest.mark.filterwarnings("ignore:values beyond low and high:UserWarning")
@parametrize_with_checks(  # type: ignore[untyped-decorator]  # scikit-learn's
    [*STREAMING, *OF_SEQUENCES, *IN_ROUNDS],
    expected_failed_checks=lambda estimator: EXPECTED_TO_FAIL.get(repr(estimator), {}),
)
def test_it_passes_scikit_learns_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_it_works_at_the_end_of_a_pipeline() -> None:
    rows = [[float(n % 7), 1000.0 * (n % 3)] for n in range(60)]
    model = make_pipeline(StandardScaler(), FCAC())
    labels = model.fit_predict(rows)
    assert labels.tolist() == model.predict(rows).tolist()


def test_a_clone_has_the_parameters_and_no_model() -> None:
    model = FCAC(clients=2, edge_factor=1.0).fit([[0.0], [1.0], [5.0]])
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        copy.predict([[0.0]])


def test_columns_are_known_by_name_and_may_come_in_any_order() -> None:
    frame = pd.DataFrame(
        {"warm": [float(n % 7) for n in range(40)], "dry": [100.0 * (n % 3) for n in range(40)]}
    )
    model = FCAC().fit(frame)
    assert model.feature_names_in_.tolist() == ["warm", "dry"]
    assert model.predict(frame[["dry", "warm"]]).tolist() == model.labels_.tolist()
    told = "dry, wet were given, warm, dry were learnt: warm missing, wet not learnt"
    with pytest.raises(InvalidData, match=told):
        model.predict(frame.rename(columns={"warm": "wet"})[["dry", "wet"]])
