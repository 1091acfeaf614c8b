"""The interface of river: one mapping at a time, features by name."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from shoal.errors import InvalidData
from shoal.estimators.cluster_tree import ClusterTree
from shoal.estimators.density_tree import DensityTree
from shoal.estimators.fcac import FCAC
from shoal.estimators.streaming import StreamingEstimator
from shoal.protocol.codec import pack


def readings(n: int = 200) -> pd.DataFrame:
    generator = np.random.default_rng(4)
    blob = generator.integers(0, 2, n)
    return pd.DataFrame(
        {"warm": blob * 9 + generator.normal(size=n), "dry": generator.normal(size=n)}
    )


def test_predicting_before_learning_gives_minus_one() -> None:
    assert FCAC().predict_one({"warm": 1.0}) == -1
    assert FCAC().predict_one({}) == -1


def test_one_reading_is_kept_and_predicted_as_minus_one() -> None:
    model = FCAC()
    model.learn_one({"warm": 1.0, "dry": 2.0})
    assert model.predict_one({"warm": 1.0, "dry": 2.0}) == -1
    assert model.n_features_in_ == 2
    assert model.feature_names_in_.tolist() == ["dry", "warm"]


def test_reading_by_reading_is_row_by_row() -> None:
    frame = readings()
    one = FCAC(clients=2)
    rows = FCAC(clients=2)
    for reading in frame.to_dict("records"):
        one.learn_one(reading)
        rows.partial_fit([[reading["dry"], reading["warm"]]])
    assert pack(one._federation.state()) == pack(rows._federation.state())
    assert one.predict_one({"warm": 9.0, "dry": 0.0}) == rows.predict([[0.0, 9.0]])[0] >= 0


def test_the_order_of_names_in_a_reading_does_not_matter() -> None:
    frame = readings()
    one = FCAC()
    other = FCAC()
    for number, reading in enumerate(frame.to_dict("records")):
        one.learn_one(reading)
        other.learn_one(dict(reversed(reading.items())) if number % 2 else reading)
    assert pack(one.state()) == pack(other.state())


def test_many_are_learnt_from_a_frame_or_an_array() -> None:
    frame = readings()
    by_name = FCAC()
    by_place = FCAC()
    by_hand = FCAC()
    by_name.learn_many(frame[["warm", "dry"]])
    by_place.learn_many(frame[["dry", "warm"]].to_numpy())
    by_hand.partial_fit(frame[["dry", "warm"]])
    assert pack(by_name.state()) == pack(by_hand.state())
    assert pack(by_name._federation.state()) == pack(by_place._federation.state())
    assert (
        by_name.predict_many(frame).tolist()
        == by_place.predict_many(frame[["dry", "warm"]].to_numpy()).tolist()
    )
    by_name.learn_many(frame[["warm", "dry"]])
    by_hand.partial_fit(frame[["dry", "warm"]])
    assert pack(by_name.state()) == pack(by_hand.state())


@pytest.mark.parametrize(
    "reading", [{}, {"warm": 1.0}, {"warm": 1.0, "dry": 2.0, "wet": 3.0}, {"warm": 1.0, "wet": 3.0}]
)
def test_other_features_than_those_learnt_are_refused_by_name(reading: dict[str, float]) -> None:
    model = FCAC()
    model.learn_many(readings())
    before = pack(model.state())
    with pytest.raises(InvalidData, match="dry, warm were learnt"):
        model.learn_one(reading)
    with pytest.raises(InvalidData, match="dry, warm were learnt"):
        model.predict_one(reading)
    assert pack(model.state()) == before


def test_a_reading_that_is_not_a_number_is_refused_without_its_value() -> None:
    model = FCAC()
    for value in ("13.7 secret", float("inf")):
        with pytest.raises(InvalidData) as rejected:
            model.learn_one({"warm": value})
        assert "13.7" not in str(rejected.value)
    assert model.predict_one({"warm": 1.0}) == -1
    assert not hasattr(model, "n_features_in_")


def test_it_works_at_the_end_of_rivers_pipeline() -> None:
    compose = pytest.importorskip("river.compose")
    preprocessing = pytest.importorskip("river.preprocessing")
    model = compose.Pipeline(preprocessing.StandardScaler(), FCAC())
    frame = readings()
    assert model.predict_one({"warm": 0.0, "dry": 0.0}) == -1
    for reading in frame.to_dict("records"):
        model.learn_one(reading)
    assert model.predict_one({"warm": 9.0, "dry": 0.0}) >= 0
    assert model.predict_one({"warm": 9.0, "dry": 0.0}) != model.predict_one(
        {"warm": 0.0, "dry": 0.0}
    )


@pytest.mark.parametrize(
    ("model", "least"),
    [
        (FCAC(), 0.05),
        (ClusterTree(), 0.6),
        (ClusterTree(scale="bounds", bounds=([-5, -5], [15, 5])), 0.6),
        (DensityTree(epsilon=None, window_readings=50, grow_readings=100, low=-5, high=15), 0.0),
    ],
    ids=["fcac", "cluster_tree", "scaled", "density_tree"],
)
def test_rivers_progressive_validation_scores_it(model: StreamingEstimator, least: float) -> None:
    evaluate = pytest.importorskip("river.evaluate")
    metrics = pytest.importorskip("river.metrics")
    frame = readings(400)
    rows = [(reading, int(reading["warm"] > 4.5)) for reading in frame.to_dict("records")]
    agreement = metrics.AdjustedRand()
    silhouette = metrics.Silhouette()
    evaluate.progressive_val_score(rows, model, agreement, print_every=400, show_memory=True)
    assert agreement.get() >= least
    # It asks for the centres by feature name; the first model has learnt all rows already.
    evaluate.progressive_val_score(rows[:20], model, silhouette)
    centers = model.centers
    assert centers is not None
    assert (silhouette.get() <= 1.0) == (len(centers) > 1)
    assert set(centers[model.predict_one(rows[0][0])]) == {"warm", "dry"}
