"""Landmark spectral clustering by sums: any split, epochs of landmarks, and clusters that keep
their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.algorithms.claims import Box, Claims
from shoal.algorithms.rounds.base import InitHint, Params, Stats
from shoal.algorithms.rounds.policies import Answer, Policy, PolicyState, select_answers
from shoal.algorithms.rounds.spectral import SPECTRAL
from shoal.errors import InvalidData, SettingsError
from shoal.kernels.arrays import Floats
from shoal.protocol.codec import pack
from shoal.simulation.rounds import run_rounds
from tests.examples import examples

UNIT = InitHint(np.zeros(2), np.ones(2))
CLAIMS = Claims(300, Box(np.zeros(2), np.ones(2)))


def rings(
    seed: int = 0, rows: int = 600, centre: float = 0.5, size: float = 1.0
) -> tuple[Floats, Floats]:
    """Rows of two rings around one centre, and the ring of each row."""
    generator = np.random.default_rng(seed)
    ring = np.arange(rows) % 2
    angle = generator.uniform(0, 2 * np.pi, rows)
    radius = size * (np.where(ring, 0.45, 0.2) + generator.normal(0, 0.01, rows))
    return centre + radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)]), ring


def one_round(params: Params, parts: Sequence[Floats]) -> Params:
    return SPECTRAL.combine(params, [SPECTRAL.answer(params, part) for part in parts])


def clustered(parts: Sequence[Floats], **options: Any) -> Params:
    return run_rounds(SPECTRAL, SPECTRAL.start({"landmarks": 40, **options}, 2, UNIT), parts).params


def same_clusters(labels: Floats, classes: Floats) -> bool:
    pairs = set(zip(labels.tolist(), classes.tolist(), strict=True))
    return len(pairs) == len(set(labels.tolist())) == len(set(classes.tolist()))


@pytest.mark.parametrize("clusters", [2, "eigengap"])
def test_it_tells_two_rings_apart_with_their_number_told_or_not(clusters: int | str) -> None:
    rows, ring = rings()
    params = clustered(np.array_split(rows, 5), clusters=clusters)
    assert same_clusters(SPECTRAL.predict(params, rows), ring)
    assert len(params["weight"]) == 2
    np.testing.assert_allclose(params["weight"].sum(), len(rows))


def test_one_ring_is_one_cluster() -> None:
    rows, ring = rings()
    assert len(clustered([rows[ring == 1]])["weight"]) == 1


@settings(max_examples=examples(25), deadline=None)
@given(owners=st.lists(st.integers(0, 5), min_size=300, max_size=300), seed=st.integers(0, 99))
def test_labels_on_the_same_landmarks_are_those_of_pooled_rows_for_any_split(
    owners: list[int], seed: int
) -> None:
    rows, _ = rings(seed, 300)
    asking = one_round(SPECTRAL.start({"landmarks": 30}, 2, UNIT), [rows[:100], rows[100:]])
    parts = [rows[np.array(owners) == client] for client in range(6)]
    split = one_round(asking, parts)
    pooled = one_round(asking, [rows])
    sums = [
        sum(SPECTRAL.answer(asking, part)["gram"] for part in parts),
        SPECTRAL.answer(asking, rows)["gram"],
    ]
    np.testing.assert_allclose(sums[0], sums[1], atol=1e-9)
    np.testing.assert_array_equal(SPECTRAL.predict(split, rows), SPECTRAL.predict(pooled, rows))


def test_each_client_may_hold_one_ring_only() -> None:
    rows, ring = rings()
    params = clustered([rows[ring == 0], rows[ring == 1]])
    assert same_clusters(SPECTRAL.predict(params, rows), ring)


def test_a_replayed_answer_changes_nothing() -> None:
    rows, _ = rings()
    params = one_round(SPECTRAL.start({"landmarks": 30}, 2, UNIT), [rows])
    answers = [
        Answer(name, 2, SPECTRAL.answer(params, part))
        for name, part in zip("ab", (rows[:200], rows[200:]), strict=True)
    ]
    policy = Policy("cache")
    state, counted = select_answers(policy, PolicyState(), answers, 2)
    once = SPECTRAL.combine(params, counted)
    _, counted = select_answers(policy, state, [answers[1], answers[0], answers[1]], 3)
    assert pack(dict(SPECTRAL.combine(once, counted))) == pack(dict(once))


# Epochs.


def test_landmarks_have_an_epoch_and_answers_to_another_one_do_not_count() -> None:
    rows, _ = rings()
    first = SPECTRAL.start({"landmarks": 30}, 2, UNIT)
    prototypes = SPECTRAL.answer(first, rows)
    landmarks = SPECTRAL.combine(first, [prototypes])
    gram = SPECTRAL.answer(landmarks, rows)
    assert (
        prototypes["epoch"].tolist() == gram["epoch"].tolist() == landmarks["epoch"].tolist() == [1]
    )
    assert (len(prototypes["count"]), len(prototypes["gram"])) == (60, 0)
    assert (len(gram["count"]), len(gram["gram"])) == (0, 30 * 31 // 2)
    found = SPECTRAL.combine(landmarks, [gram])
    # A late answer with prototypes changes no graph, and one of an earlier epoch changes nothing at
    # all.
    assert pack(dict(SPECTRAL.combine(landmarks, [prototypes, gram]))) == pack(dict(found))
    later = {**landmarks, "epoch": np.array([2])}
    assert pack(dict(SPECTRAL.combine(later, [gram, prototypes]))) == pack(dict(later))
    with pytest.raises(InvalidData, match="epoch"):
        SPECTRAL.combine(landmarks, [{**gram, "epoch": np.array([2])}])
    with pytest.raises(InvalidData, match="number of landmarks"):
        SPECTRAL.combine(landmarks, [{**gram, "gram": gram["gram"][:-1]}])


def test_a_graph_without_mass_gives_no_clusters() -> None:
    rows, _ = rings()
    landmarks = one_round(SPECTRAL.start({"landmarks": 30}, 2, UNIT), [rows])
    gram = SPECTRAL.answer(landmarks, rows)
    # Weights of rows add up to 1, but those of decayed answers do not, and a client may send any.
    for mass in (0.0, 1e-300, 1e-12):
        faint = {**gram, "gram": mass * gram["gram"]}
        assert pack(dict(SPECTRAL.combine(landmarks, [faint]))) == pack(dict(landmarks))


def moved_federation() -> tuple[list[Params], Floats, Floats]:
    """The parameters of the rounds in which two rings, left and right, have grown out of their
    landmarks."""
    _, side = rings()
    small, rows = (
        np.where(
            side[:, None] == 0,
            rings(size=size)[0] - [0.2, 0.0],
            rings(1, size=size)[0] + [0.3, 0.0],
        )
        for size in (0.1, 0.4)
    )
    ring = side
    params = clustered(np.array_split(small, 3), clusters=2)
    history = [params]
    for _ in range(4):
        history.append(one_round(history[-1], np.array_split(rows, 3)))
    return history, rows, ring


def test_a_new_epoch_begins_when_rows_have_left_the_landmarks() -> None:
    history, rows, ring = moved_federation()
    stages = ["prototypes" if params["stage"][0] == 0 else "gram" for params in history]
    assert stages == ["gram", "prototypes", "gram", "gram", "gram"]
    assert [int(params["epoch"][0]) for params in history] == [1, 2, 2, 2, 2]
    assert same_clusters(SPECTRAL.predict(history[-1], rows), ring)
    shifts = [SPECTRAL.shift(before, after) for before, after in pairwise(history)]
    assert shifts[:3] == [np.inf] * 3, (
        "a model must not sleep before its new landmarks have clusters"
    )
    assert shifts[3] == 0.0


def test_every_row_has_a_cluster_and_clusters_their_identities_while_landmarks_are_renewed() -> (
    None
):
    history, rows, _ = moved_federation()
    for params in history:
        assert set(SPECTRAL.predict(params, rows).tolist()) <= {0, 1}
        assert params["identity"].tolist() == [1, 2]
        view = SPECTRAL.view(params)
        assert view.identity is not None
        assert view.active.all()
    ids = [set(SPECTRAL.view(params).node_id.tolist()) for params in history]
    assert ids[0] == ids[1]
    assert not ids[1] & ids[2], "a node of a new epoch is another node"


def test_places_of_clients_that_do_not_answer_keep_landmarks_in_a_new_epoch() -> None:
    left, right = (rings(size=0.3, centre=centre)[0] for centre in (0.2, 0.8))
    params = clustered([left, right], clusters=2)
    asking = {**params, "stage": np.array([0]), "epoch": np.array([2])}
    renewed = one_round(asking, [left])
    assert (renewed["landmark"] > 0.6).all(axis=1).sum() >= 3


def test_clusters_keep_their_numbers_and_new_ones_get_new_identities() -> None:
    rows, ring = rings()
    parts = [rows[ring == 0], rows[ring == 1]]
    params = clustered(parts)
    expected = SPECTRAL.predict(params, rows)
    swapped = {**params, "cluster": 1 - params["cluster"], "identity": np.array([7, 4])}
    found = one_round(swapped, parts)
    np.testing.assert_array_equal(SPECTRAL.predict(found, rows), 1 - expected)
    assert found["identity"].tolist() == [7, 4]
    more = one_round({**found, "clusters": np.array([3])}, parts)
    assert sorted(more["identity"].tolist()) == [4, 7, 8]
    fewer = one_round({**more, "clusters": np.array([1])}, parts)
    assert len(fewer["identity"]) == 1
    assert fewer["identity"][0] in more["identity"]


# Claims.


@pytest.fixture
def asked() -> tuple[Params, Stats]:
    rows, _ = rings(rows=300)
    params = one_round(SPECTRAL.start({"landmarks": 10}, 2, UNIT), [rows])
    return params, SPECTRAL.answer(params, rows)


def test_honest_claims_are_accepted(asked: tuple[Params, Stats]) -> None:
    params, stats = asked
    assert SPECTRAL.check_claims is not None
    SPECTRAL.check_claims(params, stats, CLAIMS)


@pytest.mark.parametrize(
    ("name", "forge"),
    [
        ("gram", lambda array: array * 1.01),
        ("gram", lambda array: array[:-1]),
        ("gram", lambda array: np.where(np.arange(len(array)) == 1, 9.0, 0.0)),
        ("error", lambda array: array + 1e3),
    ],
    ids=["more rows than readings", "no triangle", "a tie without rows", "rows outside the box"],
)
def test_claims_that_no_rows_can_have_are_refused(
    asked: tuple[Params, Stats], name: str, forge: Any
) -> None:
    params, stats = asked
    assert SPECTRAL.check_claims is not None
    with pytest.raises(InvalidData, match="do not agree"):
        SPECTRAL.check_claims(params, {**stats, name: forge(stats[name])}, CLAIMS)


@pytest.mark.parametrize(
    "wrong",
    [{"clusters": 0}, {"clusters": "auto"}, {"landmarks": 1}, {"near": 1}, {"prototypes": 0}],
)
def test_options_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        SPECTRAL.start(wrong, 2, UNIT)
