"""Plans of counting that are damaged or forged: rejected when they are received or restored, in
both forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.algorithms.density_tree import DENSITY_TREE
from shoal.algorithms.density_tree.arrays import SHARE_ONE
from shoal.algorithms.density_tree.plan import PLAN_ARRAYS
from shoal.algorithms.density_tree.server import DensityTreeServer
from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.streaming import Contribution, State
from shoal.config.contract import Contract
from shoal.config.resolved import resolve
from shoal.config.sections import ServerSettings
from shoal.errors import InvalidData, InvalidState, MessageRejected
from shoal.protocol.codec import pack
from shoal.protocol.messages import Snapshot
from shoal.protocol.validation import Validator
from shoal.server_node.models.streaming import StreamingModel
from shoal.server_node.regions.following import FollowedSnapshot
from tests.client_nodes.site import Site
from tests.counted_contract import COUNTED, agreed
from tests.small_plant import snapshot_with

WINDOW = 400
D = 2
Plan = dict[str, NDArray[Any]]


def grown(oblique_axes: int = 2) -> DensityTreeServer:
    """A tree with some cuts, fine bins and oblique axes."""
    generator = np.random.default_rng(0)
    rows = np.array([[0.2, 0.2], [0.5, 0.8], [0.8, 0.3]])[generator.integers(3, size=20 * WINDOW)]
    rows = rows + generator.normal(0, 0.02, rows.shape)
    options = {"window_readings": WINDOW, "oblique_axes": oblique_axes}
    counter = DENSITY_TREE.counter(options, D)
    server = DensityTreeServer(D, **options)
    for number, window in enumerate(np.split(rows, 20)):
        counted: Any = counter.count(window, np.ones(WINDOW, dtype=np.bool_), b"client", number)
        server.absorb([Contribution("client", number, counted.update(counted.counts))], b"")
        counter.adopt(server.snapshot())
    return server


TREE = grown()


def put(name: str, value: Any, at: Any = 0) -> Callable[[Plan], None]:
    """Set one number of an array."""

    def forge(plan: Plan) -> None:
        plan[name][at] = value

    return forge


def zoom_of(zoom: int, span: int) -> Callable[[Plan], None]:
    """Set the fine bins of the first axis."""

    def forge(plan: Plan) -> None:
        plan["axis_zoom"][0], plan["axis_span"][0] = zoom, span

    return forge


def last_cut_twice(plan: Plan) -> None:
    plan["cut_parts"][0] = len(plan["cut_at"]) - 1


def leaf_without_axes(plan: Plan) -> None:
    plan["axis_leaf"][plan["axis_leaf"] == 1] = 0


def too_few_leaves(plan: Plan) -> None:
    for name in (
        "cut_first",
        "cut_second",
        "cut_first_weight",
        "cut_second_weight",
        "cut_at",
        "cut_parts",
    ):
        plan[name] = plan[name][:-1]


def all_of_one_axis(plan: Plan) -> None:
    """The shares of the first leaf sum to what they did, on one axis."""
    own = plan["axis_leaf"] == 0
    plan["axis_share"][own] = np.where(np.arange(own.sum()) == 0, plan["axis_share"][own].sum(), 0)


FORGED: dict[str, Callable[[Plan], None]] = {
    "a feature far beyond the row": put("cut_first", 10**12),
    "a feature before the row": put("cut_second", -1),
    "a feature of an axis beyond the row": put("axis_first", D),
    "a feature of an axis before the row": put("axis_second", -(10**12)),
    "a cut far beyond the tree": put("cut_parts", 10**9, (0, 0)),
    "a leaf far before the tree": put("cut_parts", -(10**9), (0, 0)),
    "a cut that is its own part": put("cut_parts", 0, (0, slice(None))),
    "a cut that is the part of two": last_cut_twice,
    "a leaf that is the part of two": put("cut_parts", -1, (-1, slice(None))),
    "a cut too few": too_few_leaves,
    "a leaf that does not exist": put("axis_leaf", 10**6, -1),
    "a leaf before the first": put("axis_leaf", -1),
    "leaves that do not ascend": put("axis_leaf", 1),
    "a leaf without axes": leaf_without_axes,
    "fine bins over more than there is": zoom_of(0, 1000),
    "fine bins beyond the last": zoom_of(15, 8),
    "fine bins before the first": zoom_of(-2, 8),
    "fine bins over three coarse ones": zoom_of(0, 3),
    "fine bins over no coarse one": zoom_of(0, 0),
    "no fine bins over some coarse ones": zoom_of(-1, 2),
    "an axis without range": lambda plan: put("axis_end", plan["axis_start"][0])(plan),
    "an axis that ends before it begins": put("axis_start", 2.0),
    "an axis from far away": put("axis_start", -1e308),
    "a cut far away": put("cut_at", 1e308),
    "a weight above 1": put("axis_first_weight", 1e308),
    "weights that sum to more than 1": put("cut_second_weight", -1.0),
    "a feature that is turned round": put("axis_first_weight", -1.0),
    "an axis without weights": put("axis_first_weight", 0.0),
    "a share below 0": put("axis_share", -SHARE_ONE),
    "a share of more than every window": all_of_one_axis,
    "shares that leave a part": lambda plan: put("axis_share", plan["axis_share"][0] - 1)(plan),
    "no shares": lambda plan: plan["axis_share"].fill(0),
    "a leaf twice": lambda plan: plan["leaf_id"].fill(7),
    "a number of a leaf that does not travel": put("leaf_id", 2**31),
    "a number of a leaf below 0": put("leaf_id", -1),
    "an epoch that does not travel": put("axis_epoch", 2**31),
}


def forged(name: str) -> Plan:
    arrays: Plan = dict(TREE.snapshot())
    FORGED[name](arrays)
    return arrays


def test_the_tree_has_all_that_is_forged() -> None:
    plan = TREE.snapshot()
    assert len(plan["cut_at"]) > 1
    assert (plan["axis_zoom"] >= 0).any()
    assert (plan["axis_second_weight"] != 0).any()
    assert (plan["axis_second_weight"][:1] == 0).all()
    assert plan["axis_share"][plan["axis_leaf"] == 0].sum() > SHARE_ONE


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_plan_is_refused_before_anything_is_counted(name: str, form: str) -> None:
    counter: Any = DENSITY_TREE.counter({}, D)
    before = counter.plan_digest
    with pytest.raises(InvalidData, match="the plan of counting is damaged"):
        counter.adopt(forged(name))
    assert counter.plan_digest == before
    rows = np.full((10, D), 0.5)
    assert counter.count(rows, np.ones(10, dtype=np.bool_), b"client", 0).counts.sum() == 10


DRAWN = {
    "name": "drawn",
    "algorithm": "kmeans_from_counts",
    "options": {"clusters": 2, "oblique_axes": 2},
}
CONTRACT = agreed(
    {**COUNTED, "options": {"oblique_axes": 2}}, DRAWN, mode="off", window_readings=50
)


def snapshot_of(contract: Contract, model: str, arrays: Plan, version: int = 1) -> Snapshot:
    """A snapshot of the tree, as its server would publish it, but with these arrays of the plan."""
    declared = contract.model(model)
    assert declared is not None
    algorithm = streaming_algorithm(declared.algorithm)
    whole: Plan = dict(algorithm.server(dict(declared.options), D).snapshot())
    if algorithm.snapshot == DENSITY_TREE.snapshot:
        whole = dict(TREE.snapshot())
    sizes = algorithm.summary(whole)
    forged = whole | {name: arrays[name] for name in PLAN_ARRAYS}
    return snapshot_with(contract, declared, forged, sizes, version=version)


@pytest.mark.parametrize("model", ["counted", "drawn"])
@pytest.mark.parametrize("name", FORGED)
def test_a_snapshot_with_a_forged_plan_is_rejected(name: str, model: str) -> None:
    validator = Validator(resolve(CONTRACT))
    validator.check_snapshot(snapshot_of(CONTRACT, model, TREE.snapshot()))
    with pytest.raises(MessageRejected) as rejected:
        validator.check_snapshot(snapshot_of(CONTRACT, model, forged(name)))
    assert rejected.value.reason in {"arrays", "bounds"}


@pytest.mark.parametrize(
    "name",
    [
        "a feature far beyond the row",
        "a cut far beyond the tree",
        "a cut that is its own part",
        "fine bins over more than there is",
    ],
)
def test_a_client_that_gets_a_forged_plan_says_so_and_counts_on_under_its_old_one(
    name: str, form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path, CONTRACT)
    rows = np.random.default_rng(1).random((400, D))

    def publish(*snapshots: Snapshot) -> None:
        with site.federation() as log:
            for snapshot in snapshots:
                log.publish(
                    CONTRACT.snapshots_topic,
                    snapshot.encode(),
                    snapshot.model.encode(),
                    Snapshot.headers(),
                )
            log.flush()

    with caplog.at_level("WARNING", logger="shoal"), site.node() as node:
        publish(snapshot_of(CONTRACT, "counted", TREE.snapshot()))
        site.add_readings(rows[:200])
        while node.step():
            pass
        known = len(site.updates())
        publish(
            snapshot_of(CONTRACT, "counted", forged(name), 2),
            snapshot_of(CONTRACT, "drawn", forged(name)),
        )
        site.add_readings(rows[200:])
        while node.step():
            pass
    assert [record.getMessage() for record in caplog.records] == ["snapshot_rejected"] * 2
    updates = site.updates()
    assert {update.model for update in updates[known:]} == {"counted", "drawn"}
    for update in updates:
        plan = TREE.snapshot()["leaf_id"] if update.model == "counted" else np.array([0])
        assert sorted(set(update.arrays["leaf"].tolist())) == sorted(plan.tolist())
        assert update.arrays["count"].sum() == update.readings


@pytest.mark.parametrize("name", FORGED)
def test_a_checkpoint_with_a_forged_plan_is_refused(name: str) -> None:
    server = grown()
    before = pack(server.state())
    with pytest.raises(InvalidState):
        server.restore({**TREE.state(), "snapshot": forged(name)})
    assert pack(server.state()) == before


def spoil_leaf(name: str, value: float) -> Callable[[State], None]:
    """Set a number of all leaves of a saved tree."""

    def spoil(tree: State) -> None:
        for leaf in tree["leaves"]:
            leaf[name] = (
                np.full_like(leaf[name], value) if isinstance(leaf[name], np.ndarray) else value
            )

    return spoil


def exchange_parts(tree: State) -> None:
    """Exchange both parts of the first cut of a saved tree."""
    cut = tree["cuts"][0]
    cut.update(left=cut["right"], right=cut["left"])


SPOILED: dict[str, Callable[[State], None]] = {
    "a leaf that is the part of two cuts": lambda tree: tree["cuts"][-1].update(left=-1, right=-1),
    "parts that are exchanged": exchange_parts,
    "a cut in bins without width": lambda tree: tree["cuts"][0].update(step=0.0),
    "a cut that is nowhere": lambda tree: tree["cuts"][0].update(at=math.nan),
    "a cut at a word": lambda tree: tree["cuts"][0].update(at="here"),
    "fine bins over no coarse ones": lambda tree: [
        spoil_leaf(*choice)(tree) for choice in (("zoom", 0), ("span", 0))
    ],
    "weights that do not sum to 1": spoil_leaf("axis_first_weight", 1e300),
    "ranges beyond the unit cube": spoil_leaf("end", 1e300),
    "leaves of the same number": spoil_leaf("leaf_id", 0),
    "leaves of numbers not yet given": lambda tree: tree["leaves"][0].update(leaf_id=10**6),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_checkpoint_whose_tree_makes_no_plan_is_refused(name: str) -> None:
    server = grown()
    state = TREE.state()
    SPOILED[name](state["tree"])
    before = pack(server.state())
    with pytest.raises(InvalidState):
        server.restore(state)
    assert pack(server.state()) == before


def test_a_region_does_not_follow_a_snapshot_that_was_damaged_in_its_checkpoint() -> None:
    contract = resolve(CONTRACT)
    half = FollowedSnapshot(contract, contract.models["counted"])
    saved = half.state()
    half.restore(saved)
    for name in FORGED:
        with pytest.raises(InvalidState):
            half.restore({**saved, "arrays": forged(name)})
    half.restore({**saved, "arrays": TREE.snapshot()})
    assert {name: array.tolist() for name, array in half.snapshot().items()} == {
        name: array.tolist() for name, array in TREE.snapshot().items()
    }


def test_a_server_does_not_start_from_a_checkpoint_whose_published_plan_is_damaged() -> None:
    contract = resolve(CONTRACT)
    served = StreamingModel(contract, contract.models["counted"], ServerSettings())
    state = served.state()
    intact = snapshot_of(CONTRACT, "counted", TREE.snapshot()).encode()
    served.restore({**state, "publisher": {**state["publisher"], "snapshot": intact}})
    for name in FORGED:
        snapshot = snapshot_of(CONTRACT, "counted", forged(name)).encode()
        with pytest.raises(InvalidState):
            served.restore({**state, "publisher": {**state["publisher"], "snapshot": snapshot}})
