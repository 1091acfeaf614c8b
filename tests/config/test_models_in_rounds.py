"""Models in rounds in a contract: their [models.rounds], options and policies."""

from __future__ import annotations

import re
from typing import Any

import pytest

from shoal.algorithms.registry import rounds_algorithm, rounds_names
from shoal.algorithms.rounds.policies import Policy
from shoal.config.contract import Contract, Rounds, parse_contract
from shoal.config.resolved import resolve
from shoal.errors import SettingsError

FEATURES = [{"name": "warm", "low": 0, "high": 1}, {"name": "damp", "low": 0, "high": 1}]


def agreed(*models: dict[str, Any]) -> Contract:
    tables = {"federation": {"name": "plant"}, "features": FEATURES, "privacy": {"mode": "off"}}
    return parse_contract(tables | {"models": list(models)})


def heaps(algorithm: str = "kmeans", **other: Any) -> dict[str, Any]:
    return {"name": "heaps", "algorithm": algorithm, "options": {"clusters": 2}, **other}


def policy_of(contract: Contract) -> Policy:
    rounds = resolve(contract).models["heaps"].rounds
    assert rounds is not None
    return rounds.policy


def test_a_model_that_predicts_a_feature_refuses_readings_that_may_lack_it() -> None:
    tables = {
        "federation": {"name": "plant"},
        "features": FEATURES,
        "privacy": {"mode": "off", "missing": "learn"},
    }
    predicts = {"name": "rules", "algorithm": "tsk", "options": {"target": "damp"}}
    with pytest.raises(
        SettingsError,
        match="predicts a feature, and cannot learn it from readings that may lack it",
    ):
        resolve(parse_contract(tables | {"models": [predicts]}))
    resolve(parse_contract(tables | {"models": [heaps()]}))


def test_a_rounds_table_left_out_empty_or_of_defaults_is_the_same() -> None:
    defaults = Rounds().model_dump(exclude_none=True)
    written: list[dict[str, Any]] = [{}, {"rounds": {}}, {"rounds": defaults}]
    digests = {agreed(heaps(**rounds)).digest for rounds in written}
    assert len(digests) == 1
    assert (
        agreed(heaps(rounds={"quorum": 1})).digest == agreed(heaps(rounds={"quorum": 1.0})).digest
    )


@pytest.mark.parametrize("name", sorted(Rounds.model_fields))
def test_every_difference_in_rounds_is_another_contract(name: str) -> None:
    other = {
        "between": "cache",
        "fraction": 0.5,
        "quorum": 0.5,
        "decay": 0.25,
        "robust": "clip",
    }.get(name, 7)
    assert agreed(heaps(rounds={name: other})).digest != agreed(heaps()).digest


@pytest.mark.parametrize(
    "wrong",
    [
        {"fraction": 0},
        {"fraction": 1.1},
        {"quorum": 0},
        {"deadline_s": 0},
        {"rows_min": 0},
        {"rounds_max": 0},
        {"rounds_max": 2.5},
        {"tolerance": -1},
        {"wake_s": 0},
        {"between": "never"},
        {"robust": "mean"},
        {"decay": 1},
        {"cache_rounds": -1},
        {"late_rounds": True},
        {"patience": 3},
    ],
)
def test_invalid_rounds_are_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        agreed(heaps(rounds=wrong))


@pytest.mark.parametrize("algorithm", rounds_names())
def test_every_algorithm_can_be_in_a_contract_and_has_a_policy(algorithm: str) -> None:
    options = {"clusters": 2} if rounds_algorithm(algorithm).takes("clusters") else {}
    contract = agreed({"name": "heaps", "algorithm": algorithm, "options": options})
    assert policy_of(contract).kind == (
        "decay" if rounds_algorithm(algorithm).additive else "cache"
    )


def test_the_policy_is_the_one_of_the_contract() -> None:
    rounds = {"between": "cache", "decay": 0.25, "cache_rounds": 2, "late_rounds": 1}
    assert policy_of(agreed(heaps(rounds=rounds))) == Policy(
        "cache", decay=0.25, cache_rounds=2, late_rounds=1
    )


def test_answers_that_are_not_sums_cannot_decay() -> None:
    with pytest.raises(SettingsError, match=r"models\.heaps.*cannot decay"):
        resolve(agreed(heaps("kmeans_local", rounds={"between": "decay"})))


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"models\.heaps.*no option"):
        resolve(agreed(heaps(options={"clusters": 2, "k": 3})))


def test_clusters_auto_needs_a_streaming_model() -> None:
    alone = heaps(options={})
    with pytest.raises(
        SettingsError, match=r"add one of cluster_tree, .*density_tree, fcac, .*or give a number"
    ):
        resolve(agreed(alone))
    found = {"name": "clusters", "algorithm": "fcac"}
    with pytest.raises(SettingsError, match='name it: source = "clusters"; or give a number'):
        resolve(agreed(alone, found))
    resolve(agreed(alone | {"source": "clusters"}, found))


@pytest.mark.parametrize("source", ["more", "heaps", "nothing"])
def test_a_source_is_a_streaming_model_of_the_file(source: str) -> None:
    found = {"name": "clusters", "algorithm": "fcac"}
    more = heaps("gmm") | {"name": "more"}
    with pytest.raises(
        SettingsError,
        match=f'source = "{source}", must be a streaming model of this file: "clusters"',
    ):
        resolve(agreed(heaps() | {"source": source}, found, more))


@pytest.mark.parametrize("algorithm", ["fcac", "dbscan"])
def test_a_model_that_starts_from_nothing_has_no_source(algorithm: str) -> None:
    named = {"name": "alone", "algorithm": algorithm, "source": "clusters"}
    with pytest.raises(
        SettingsError, match=f"{algorithm} starts from no other model; leave out source"
    ):
        resolve(agreed(named, {"name": "clusters", "algorithm": "fcac"}))


@pytest.mark.parametrize("algorithm", ["kmeans", "fcm", "gmm"])
@pytest.mark.parametrize("criterion", ["gap", "silhouette"])
def test_a_criterion_needs_a_streaming_model(algorithm: str, criterion: str) -> None:
    alone = heaps(algorithm, options={"clusters": criterion})
    with pytest.raises(
        SettingsError,
        match=f'clusters = "{criterion}" starts from the clusters of another model: add',
    ):
        resolve(agreed(alone))
    resolve(
        agreed(alone | {"source": "clusters"}, {"name": "clusters", "algorithm": "cluster_tree"})
    )


def test_only_mixtures_have_a_likelihood_to_choose_by() -> None:
    found = {"name": "clusters", "algorithm": "cluster_tree"}
    resolve(
        agreed(
            heaps("gmm", options={"clusters": "bic", "clusters_max": 5}) | {"source": "clusters"},
            found,
        )
    )
    for algorithm, options in (
        ("kmeans", {"clusters": "bic"}),
        ("kfed", {"clusters": "gap"}),
        ("gmm", {"clusters_max": 0}),
    ):
        with pytest.raises(SettingsError, match="must be a whole number, 1 to"):
            resolve(agreed(heaps(algorithm, options=options), found))


def test_a_streaming_algorithm_has_no_rounds_table() -> None:
    with pytest.raises(SettingsError, match="fcac has no rounds"):
        resolve(agreed({"name": "clusters", "algorithm": "fcac", "rounds": {}}))


def test_a_model_whose_answers_cannot_be_combined_robustly_is_refused_with_the_reason() -> None:
    reason = re.escape('models.heaps: robust = "median" does not go with kfed: its server clusters')
    with pytest.raises(SettingsError, match=reason):
        resolve(agreed(heaps("kfed", rounds={"robust": "median"})))
    resolve(agreed(heaps("kmeans", rounds={"robust": "median"})))
