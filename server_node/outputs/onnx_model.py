"""A predictor as an ONNX model: readings in units -> cluster and identity.

Everything is computed in doubles and in the order of shoal's own kernels, so that labels agree but
for readings whose two nearest points are equally far up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from shoal.algorithms.view import Cuts, NearestPoint, Predictor
from shoal.config.resolved import ResolvedContract
from shoal.errors import MissingExtra
from shoal.kernels.arrays import Floats, Ints

OPSET: Final = 17
IR_VERSION: Final = 8
"""versions of ONNX 1.12, which readers of the year 2022 take"""
READINGS: Final = "readings"
CLUSTER: Final = "cluster"
IDENTITY: Final = "identity"


class _Graph:
    """Nodes and constants of a graph, each under a name of its own."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any) -> str:
        """Add a constant; its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(self._onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add one operation; the name of its result."""
        name = output or f"v{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(kind, list(inputs), [name], **attributes))
        return name


def onnx_model(
    predictor: Predictor,
    identities: Mapping[int, int],
    contract: ResolvedContract,
    facts: Mapping[str, str],
) -> bytes:
    """The model, serialised.

    It takes `readings` (n, d) as doubles and gives `cluster` (n,) and `identity` (n,).

    `identities`: number of a cluster -> its identity; -1 where it has none. `facts` become its
    metadata. Raises `MissingExtra`.
    """
    try:
        import onnx  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise MissingExtra("Export as ONNX", "onnx") from None
    graph = _Graph(onnx)
    rows = _unit_rows(graph, contract)
    if isinstance(predictor, NearestPoint):
        cluster = _nearest(graph, predictor, rows, contract.width)
    else:
        cluster = _leaf(graph, predictor, rows)
    graph.add("Identity", cluster, output=CLUSTER)
    # Position 0 is for no cluster, -1.
    numbers = range(-1, int(predictor.cluster.max(initial=-1)) + 1)
    table = np.array([identities.get(number, -1) for number in numbers], dtype=np.int64)
    position = graph.add("Add", cluster, graph.constant(np.int64(1)))
    graph.add("Gather", graph.constant(table), position, output=IDENTITY)
    tensor = onnx.helper.make_tensor_value_info
    kinds = onnx.TensorProto
    onnx_graph = onnx.helper.make_graph(
        graph.nodes,
        "shoal",
        [tensor(READINGS, kinds.DOUBLE, ["n", contract.width])],
        [tensor(CLUSTER, kinds.INT64, ["n"]), tensor(IDENTITY, kinds.INT64, ["n"])],
        graph.constants,
    )
    model = onnx.helper.make_model(
        onnx_graph,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="shoal",
    )
    model.model_version = int(facts["version"])
    onnx.helper.set_model_props(model, dict(facts))
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


def _unit_rows(graph: _Graph, contract: ResolvedContract) -> str:
    """Readings in unit coordinates: clipped to the bounds, those of circular features wrapped."""
    bounds = contract.bounds
    low = graph.constant(bounds.low)
    high = graph.constant(bounds.high)
    inside = graph.add("Min", graph.add("Max", READINGS, low), high)
    if bounds.circular:
        span = graph.constant(bounds.span)
        turns = graph.add("Floor", graph.add("Div", graph.add("Sub", READINGS, low), span))
        wrapped = graph.add("Sub", READINGS, graph.add("Mul", turns, span))
        # The upper bound itself is a whole turn, and stays where it is, as in shoal.
        is_high = graph.add("Equal", READINGS, high)
        wrapped = graph.add("Where", is_high, READINGS, wrapped)
        circular = graph.constant(np.isin(np.arange(bounds.d), bounds.circular))
        inside = graph.add("Where", circular, wrapped, inside)
    return graph.add("Div", graph.add("Sub", inside, low), graph.constant(bounds.span))


def _nearest(graph: _Graph, predictor: NearestPoint, rows: str, width: int) -> str:
    """The cluster of the nearest point, feature by feature, so that memory is rows times points."""
    if not len(predictor.points):
        return _no_cluster(graph, rows)
    total = ""
    for j in range(width):
        column = graph.add("Gather", rows, graph.constant(np.array([j])), axis=1)
        gap = graph.add("Sub", column, graph.constant(predictor.points[:, j][None, :]))
        if predictor.sigma is None:
            term = graph.add("Mul", gap, gap)
        else:
            # CIM, the correntropy induced metric: a Gaussian of each feature's gap. In the order of
            # the kernels, gap * (gap * scale), as another one rounds otherwise, and a reading
            # between two points could get the other label.
            scale = graph.constant(np.array(-0.5 / (predictor.sigma * predictor.sigma)))
            term = graph.add("Exp", graph.add("Mul", gap, graph.add("Mul", gap, scale)))
        total = graph.add("Add", total, term) if total else term
    if predictor.sigma is not None:
        share = graph.add("Div", total, graph.constant(np.array(float(width))))
        total = graph.add("Sqrt", graph.add("Sub", graph.constant(np.array(1.0)), share))
    nearest = graph.add("ArgMin", total, axis=1, keepdims=0)
    cluster = graph.add("Gather", graph.constant(predictor.cluster.astype(np.int64)), nearest)
    if predictor.reach is None:
        return cluster
    distance = graph.add("Sqrt", graph.add("ReduceMin", total, axes=[1], keepdims=0))
    inside = graph.add(
        "Less", distance, graph.add("Gather", graph.constant(predictor.reach), nearest)
    )
    return graph.add("Where", inside, cluster, graph.constant(np.int64(-1)))


def _leaf(graph: _Graph, predictor: Cuts, rows: str) -> str:
    """The cluster of the leaf that a row falls into.

    At every cut the side of every row, then from cut to cut as deep as the tree is: ONNX has no
    branches over rows. A number from 0 on is a cut, one below 0 a leaf: -1 - leaf.
    """
    cluster = graph.constant(predictor.cluster.astype(np.int64))
    first_cut = graph.add("Add", _no_cluster(graph, rows), graph.constant(np.int64(1)))
    if not len(predictor.at):
        return graph.add("Gather", cluster, first_cut)
    first = _weighted(graph, rows, predictor.first, predictor.first_weight)
    second = _weighted(graph, rows, predictor.second, predictor.second_weight)
    places = graph.add("Add", first, second)
    is_above = graph.add("GreaterOrEqual", places, graph.constant(predictor.at[None, :]))
    above = graph.constant(predictor.parts[:, 1].astype(np.int64)[None, :])
    below = graph.constant(predictor.parts[:, 0].astype(np.int64)[None, :])
    next_of = graph.add("Where", is_above, above, below)
    zero = graph.constant(np.int64(0))
    axis = graph.constant(np.array([1]))
    node = first_cut
    for _ in range(predictor.depth):
        # A leaf has no next: it looks at cut 0, and keeps its own number.
        cut = graph.add("Unsqueeze", graph.add("Max", node, zero), axis)
        onward = graph.add("Squeeze", graph.add("GatherElements", next_of, cut, axis=1), axis)
        node = graph.add("Where", graph.add("Less", node, zero), node, onward)
    return graph.add("Gather", cluster, graph.add("Sub", graph.constant(np.int64(-1)), node))


def _weighted(graph: _Graph, rows: str, feature: Ints, weight: Floats) -> str:
    """The value of a feature of each cut, by its weight; (n, cuts)."""
    values = graph.add("Gather", rows, graph.constant(feature.astype(np.int64)), axis=1)
    return graph.add("Mul", values, graph.constant(weight[None, :]))


def _no_cluster(graph: _Graph, rows: str) -> str:
    """-1 for each row."""
    number = graph.add("Shape", rows, start=0, end=1)
    return graph.add("Expand", graph.constant(np.int64(-1)), number)
