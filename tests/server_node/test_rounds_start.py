"""What a model in rounds starts from: what another model has found, or the box of the contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.algorithms.registry import streaming_algorithm, streaming_names
from shoal.algorithms.rounds.choice import Landmarks, choose_clusters
from shoal.config.contract import Contract, parse_contract
from shoal.config.resolved import resolve
from shoal.config.sections import ServerSettings
from shoal.protocol.messages import Update
from shoal.protocol.validation import Validator
from shoal.server_node.models.factory import make_models
from shoal.server_node.models.rounds import RoundsModel, init_hint_for, known_clusters
from shoal.server_node.models.streaming import StreamingModel
from tests.server_node.rounds_harness import FEATURES, HEAPS, RoundsHarness, rows_of

SETTINGS = ServerSettings(pool_clients=1, snapshot_updates=1)
SITES = ("attic", "cellar", "garden")


def agreed(clusters: int | str, **more: int) -> Contract:
    fcac = {"name": "found", "algorithm": "fcac"}
    rounds = {"rows_min": 5, "quorum": 1, "wake_s": 60, "deadline_s": 10}
    heaps = {
        "name": "heaps",
        "algorithm": "kmeans",
        "source": "found",
        "options": {"clusters": clusters, **more},
        "rounds": rounds,
    }
    tables = {"federation": {"name": "plant"}, "features": FEATURES, "privacy": {"mode": "off"}}
    return parse_contract(tables | {"models": [fcac, heaps]})


class Source:
    """A streaming model of a federation, fed by one client that learns whatever it is given."""

    def __init__(self, contract: Contract, model: StreamingModel | None = None) -> None:
        self._contract = contract
        self.model = model or StreamingModel(
            resolve(contract), resolve(contract).models["found"], SETTINGS
        )
        self._declared = resolve(contract).models[self.model.name]
        self._half = streaming_algorithm(self._declared.algorithm.name).client({}, contract.width)
        self._sequence = 0

    def find(self) -> int:
        """Learn three heaps until each is at least one known cluster. Single nodes, as at first,
        are none."""
        for seed in range(100):
            if (known := self.learn(rows_of(seed, 400))) >= len(HEAPS):
                return known
        raise AssertionError("the heaps are not found")

    def learn(self, rows: NDArray[np.float64]) -> int:
        """How many known clusters there are now."""
        self._half.learn(rows)
        self._sequence += 1
        update = Update(
            federation="plant",
            contract=self._contract.digest,
            model=self._declared.name,
            algorithm=self._declared.algorithm.name,
            client="attic",
            sequence=self._sequence,
            readings=len(rows),
            privacy=resolve(self._contract).statement,
            arrays=self._half.contribute(),
            made_at=0.0,
        )
        assert self.model.process(update, 0.0).new
        return self.model.take_snapshot({0: 0}, {}, 0.0).snapshot.known


def answer_until_asleep(harness: RoundsHarness, clients: Sequence[str] = SITES) -> None:
    for _ in range(100):
        if harness.model.sleeping:
            return
        for seed, client in enumerate(clients):
            harness.answer(client, rows_of(seed))
        harness.tick()
    raise AssertionError("it never came to rest")


def test_without_found_clusters_a_model_starts_in_the_bounds_the_same_every_time() -> None:
    contract = agreed(4)
    firsts = []
    for _ in range(2):
        first = RoundsHarness(contract, source=Source(contract).model).tick(0.0)
        assert first is not None
        assert first.nodes == 4
        firsts.append(first.arrays["centre"])
    assert np.array_equal(firsts[0], firsts[1])
    assert ((firsts[0] >= 0) & (firsts[0] <= 1)).all()


def test_a_model_with_clusters_auto_waits_until_some_are_found() -> None:
    contract = agreed("auto")
    source = Source(contract)
    harness = RoundsHarness(contract, source=source.model)
    assert harness.tick(0.0) is None
    assert "none has been found yet" in harness.model.status().waiting_for
    assert harness.model.idle
    assert not harness.model.sleeping
    found = source.find()
    assert not harness.model.idle, "it starts with the next look at the clock"
    first = harness.tick(1.0)
    assert first is not None
    assert first.nodes == found
    assert np.array_equal(first.arrays["centre"], known_clusters(source.model)[0])


def test_found_clusters_are_grouped_to_the_configured_number() -> None:
    contract = agreed(3)
    source = Source(contract)
    source.find()
    first = RoundsHarness(contract, source=source.model).tick(0.0)
    assert first is not None
    apart = np.linalg.norm(first.arrays["centre"][:, None] - HEAPS[None], axis=2)
    assert (apart.min(axis=0) < 0.2).all()


def test_before_any_answer_a_model_restarts_from_clusters_found_meanwhile() -> None:
    contract = agreed(3)
    source = Source(contract)
    harness = RoundsHarness(contract, source=source.model)
    boxed = harness.tick(0.0)
    source.find()
    again = harness.tick(10.0)
    assert boxed is not None
    assert again is not None
    assert again.round == (boxed.round or 0) + 1
    assert not np.array_equal(again.arrays["centre"], boxed.arrays["centre"])
    assert again.round_request is not None
    assert again.round_request["deadline"] == 30.0, "looked at again soon, as more may be found"
    # An answer to the centres of before is about other centres.
    assert not harness.answer("attic", rows_of(0), to=boxed)
    assert not harness.model.pending


def test_a_model_restarts_when_the_number_of_found_clusters_has_changed() -> None:
    contract = agreed("auto")
    source = Source(contract)
    harness = RoundsHarness(contract, source=source.model)
    before = source.find()
    harness.tick(0.0)
    answer_until_asleep(harness)
    last_request = next(
        snapshot for snapshot in reversed(harness.published) if snapshot.round_request is not None
    )
    after = before
    n = 0
    while after == before:
        n += 1
        assert n < 50
        after = source.learn(rows_of(n, 200, np.array([[0.1, 0.9], [0.9, 0.9], [0.9, 0.05]])))
    woken = harness.tick(60.0)
    assert woken is not None
    assert woken.nodes == after
    assert not harness.answer("shed", rows_of(9), to=last_request)
    assert harness.answer("shed", rows_of(9))
    # What was summed about the centres of before is of no use to these.
    answer_until_asleep(harness, (*SITES, "shed"))
    assert harness.newest.nodes == after


def test_a_model_that_wakes_to_the_same_number_of_clusters_keeps_its_parameters() -> None:
    contract = agreed("auto")
    source = Source(contract)
    harness = RoundsHarness(contract, source=source.model)
    source.find()
    harness.tick(0.0)
    answer_until_asleep(harness)
    sleeping = harness.newest
    woken = harness.tick(60.0)
    assert woken is not None
    assert np.array_equal(woken.arrays["centre"], sleeping.arrays["centre"])


def test_found_clusters_are_grouped_by_their_mass() -> None:
    contract = agreed(2)
    source = Source(contract)
    source.find()
    given = init_hint_for(resolve(contract), resolve(contract).models["heaps"], source.model)
    assert given is not None
    assert given.weights is not None
    assert np.array_equal(given.weights, known_clusters(source.model)[1])
    assert len(set(given.weights.tolist())) > 1


def test_single_nodes_that_come_and_go_start_no_model_anew() -> None:
    contract = agreed("auto")
    source = Source(contract)
    harness = RoundsHarness(contract, source=source.model)
    source.find()
    harness.tick(0.0)
    answer_until_asleep(harness)
    known = []
    published = []
    restarts = 0
    for wake in range(1, 11):
        known.append(source.learn(rows_of(wake, 200)))
        assert source.model.snapshot is not None
        published.append(source.model.snapshot.clusters)
        first = harness.tick(60.0 * wake)
        assert first is not None
        restarts += first.nodes != harness.published[-2].nodes
        answer_until_asleep(harness)
    assert len(set(published)) > 1, "FCAC's own number moves"
    assert restarts <= len(set(known)) - 1


def test_every_model_has_its_own_seed() -> None:
    contract = resolve(agreed(4))
    model = contract.models["heaps"]
    hints = [init_hint_for(contract, configured, None) for configured in (model, replace(model))]
    assert hints[0] is not None
    assert hints[1] is not None
    assert hints[0].seed == hints[1].seed
    named = replace(model, declared=model.declared.model_copy(update={"name": "others"}))
    other = init_hint_for(contract, named, None)
    assert other is not None
    assert other.seed != hints[0].seed


@pytest.mark.parametrize("criterion", ["gap", "silhouette"])
def test_a_criterion_chooses_the_number_from_the_nodes_of_the_other_model(criterion: str) -> None:
    contract = agreed(criterion)
    source = Source(contract)
    harness = RoundsHarness(contract, source=source.model)
    assert harness.tick(0.0) is None
    assert harness.model.idle
    source.find()
    assert not harness.model.idle, "it starts with the next look at the clock"
    first = harness.tick(1.0)
    assert first is not None
    assert source.model.view is not None
    landmarks = Landmarks(source.model.view.nodes, source.model.view.mass.astype(np.float64))
    seed = init_hint_for(resolve(contract), resolve(contract).models["heaps"], source.model)
    assert seed is not None
    expected = choose_clusters(criterion, landmarks, 20, seed.seed)
    assert np.array_equal(first.arrays["centre"], expected.centres)
    answer_until_asleep(harness)
    assert harness.newest.nodes == len(expected.centres)


def test_a_model_with_a_criterion_restarts_when_another_number_is_clearly_better() -> None:
    contract = agreed("silhouette")
    source = Source(contract)
    harness = RoundsHarness(contract, source=source.model)
    source.find()
    harness.tick(0.0)
    answer_until_asleep(harness)
    before = harness.newest.nodes
    harness.tick(60.0)
    assert harness.newest.nodes == before, "nothing has changed"
    answer_until_asleep(harness)
    far = np.array([[0.05, 0.95], [0.95, 0.95], [0.95, 0.05], [0.5, 0.95]])
    now = 60.0
    for seed in range(50):
        source.learn(rows_of(seed, 200, far))
        now += 60.0
        harness.tick(now)
        if harness.newest.nodes != before:
            break
        answer_until_asleep(harness)
    assert harness.newest.nodes > before


def test_at_most_clusters_max_are_chosen() -> None:
    contract = agreed("silhouette", clusters_max=2)
    source = Source(contract)
    source.find()
    first = RoundsHarness(contract, source=source.model).tick(0.0)
    assert first is not None
    assert first.nodes == 2


SOURCED = {"name": "heaps", "algorithm": "kmeans", "source": "found", "rounds": {"rows_min": 5}}
BESIDE = [
    *({"name": "beside", "algorithm": name} for name in streaming_names()),
    *(
        {"name": "beside", "algorithm": name, "source": "found"}
        for name in ("kmeans", "gmm", "kfed")
    ),
    *({"name": "beside", "algorithm": name} for name in ("dbscan",)),
]


@pytest.fixture(scope="module")
def started_alone() -> dict[object, NDArray[np.float64]]:
    """source, clusters -> the first centres of a model beside its source alone."""
    return {(source, how): first_centres(source, how, None) for source in SOURCES for how in HOW}


SOURCES = ("cluster_tree", "fcac")
HOW = ("silhouette",)


def first_centres(
    source: str, how: object, beside: dict[str, Any] | None, last: bool = False
) -> NDArray[np.float64]:
    """The first centres of "heaps" from a source that found three heaps, beside a model that found
    four."""
    models = [{"name": "found", "algorithm": source}, SOURCED | {"options": {"clusters": how}}]
    if beside is not None:
        models = [*models, beside] if last else [beside, *models]
    tables = {"federation": {"name": "plant"}, "features": FEATURES, "models": models}
    contract = parse_contract(tables | {"privacy": {"mode": "off"}})
    resolved = resolve(contract)
    served = make_models(resolved, SETTINGS, Validator(resolved))
    for name, heaps in (("beside", np.vstack([HEAPS, [[0.1, 0.9]]])), ("found", HEAPS)):
        model = served.get(name)
        if isinstance(model, StreamingModel) and resolved.models[name].family.takes_rows:
            fed = Source(contract, model)
            # Rows in no order are of one state.
            is_one = resolved.models[name].declared.algorithm == "states"
            times = 3 if is_one else 50
            found = any(fed.learn(rows_of(seed, 400, heaps)) >= 2 for seed in range(times))
            assert found or is_one
    served["heaps"].on_timer(0.0)
    assert isinstance(served["heaps"], RoundsModel)
    assert served["heaps"].params is not None
    return served["heaps"].params["centre"]


@pytest.mark.parametrize("beside", BESIDE, ids=lambda model: model["algorithm"])
def test_the_start_of_a_model_depends_on_no_other_model_than_its_source(
    beside: dict[str, Any], started_alone: dict[object, NDArray[np.float64]]
) -> None:
    for (source, how), alone in started_alone.items():
        for last in (False, True):
            assert np.array_equal(first_centres(source, how, beside, last), alone)
