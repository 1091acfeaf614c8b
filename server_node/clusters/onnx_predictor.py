"""The predictor of a snapshot as an ONNX model: readings in the units of the contract -> cluster and identity.

Everything is computed in doubles and in the order of shoal's own kernels, so that labels agree but for readings whose
two nearest points are equally far up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.algorithms.predictor import Cuts, NearestPoint, Predictor
from shoal.config.resolved import ResolvedContract
from shoal.errors import MissingExtra

OPSET, IR_VERSION = 17, 8
"""of ONNX 1.12, which readers of the year 2022 take"""
READINGS, CLUSTER, IDENTITY = "readings", "cluster", "identity"


class _Graph:
    """Nodes and constants of a graph, each under a name of its own."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any) -> str:
        """A constant; its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(self._onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """One operation; the name of its result."""
        name = output or f"v{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(kind, list(inputs), [name], **attributes))
        return name


def onnx_model(
    predictor: Predictor, identities: Mapping[int, int], contract: ResolvedContract, facts: Mapping[str, str]
) -> bytes:
    """The model, serialised. It takes `readings` (n, d) as doubles and gives `cluster` (n,) and `identity` (n,).

    `identities`: number of a cluster -> its identity; -1 where it has none. `facts` become its metadata.
    Raises `MissingExtra`.
    """
    try:
        import onnx  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise MissingExtra("Export as ONNX", "onnx") from None
    graph = _Graph(onnx)
    rows = _unit_rows(graph, contract)
    cluster = (
        _nearest(graph, predictor, rows, contract.width)
        if isinstance(predictor, NearestPoint)
        else _cut(graph, predictor, rows)
    )
    graph.add("Identity", cluster, output=CLUSTER)
    numbers = int(predictor.cluster.max(initial=-1)) + 1
    # Position 0 is for no cluster, -1.
    table = np.array([-1, *(identities.get(number, -1) for number in range(numbers))], dtype=np.int64)
    graph.add("Gather", graph.constant(table), graph.add("Add", cluster, graph.constant(np.int64(1))), output=IDENTITY)
    tensor, kinds = onnx.helper.make_tensor_value_info, onnx.TensorProto
    described = onnx.helper.make_graph(
        graph.nodes,
        "shoal",
        [tensor(READINGS, kinds.DOUBLE, ["n", contract.width])],
        [tensor(CLUSTER, kinds.INT64, ["n"]), tensor(IDENTITY, kinds.INT64, ["n"])],
        graph.constants,
    )
    model = onnx.helper.make_model(
        described, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="shoal"
    )
    model.model_version = int(facts["version"])
    onnx.helper.set_model_props(model, dict(facts))
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


def _unit_rows(graph: _Graph, contract: ResolvedContract) -> str:
    """Readings, clipped to the bounds, in unit coordinates."""
    bounds = contract.bounds
    low, high = graph.constant(bounds.low), graph.constant(bounds.high)
    inside = graph.add("Min", graph.add("Max", READINGS, low), high)
    return graph.add("Div", graph.add("Sub", inside, low), graph.constant(bounds.span))


def _nearest(graph: _Graph, predictor: NearestPoint, rows: str, width: int) -> str:
    """The cluster of the nearest point, feature by feature, so that memory is rows times points."""
    if not len(predictor.points):
        return _none(graph, rows)
    total = ""
    for j in range(width):
        column = graph.add("Gather", rows, graph.constant(np.array([j])), axis=1)
        gap = graph.add("Sub", column, graph.constant(predictor.points[:, j][None, :]))
        if predictor.sigma is None:
            term = graph.add("Mul", gap, gap)
        else:
            scale = graph.constant(np.array(-0.5 / (predictor.sigma * predictor.sigma)))
            term = graph.add("Exp", graph.add("Mul", gap, graph.add("Mul", gap, scale)))
        total = graph.add("Add", total, term) if total else term
    if predictor.sigma is not None:
        share = graph.add("Div", total, graph.constant(np.array(float(width))))
        total = graph.add("Sqrt", graph.add("Sub", graph.constant(np.array(1.0)), share))
    nearest = graph.add("ArgMin", total, axis=1, keepdims=0)
    return graph.add("Gather", graph.constant(predictor.cluster.astype(np.int64)), nearest)


def _cut(graph: _Graph, predictor: Cuts, rows: str) -> str:
    """The cluster of the leaf: at every cut the side of every row, then from cut to cut as deep as the tree is."""
    cluster = graph.constant(predictor.cluster.astype(np.int64))
    if not len(predictor.at):
        return graph.add("Gather", cluster, graph.add("Add", _none(graph, rows), graph.constant(np.int64(1))))
    places = ""
    for which, weight in ((predictor.first, predictor.first_weight), (predictor.second, predictor.second_weight)):
        values = graph.add("Gather", rows, graph.constant(which.astype(np.int64)), axis=1)
        term = graph.add("Mul", values, graph.constant(weight[None, :]))
        places = graph.add("Add", places, term) if places else term
    above = graph.add("GreaterOrEqual", places, graph.constant(predictor.at[None, :]))
    sides = (graph.constant(predictor.parts[:, side].astype(np.int64)[None, :]) for side in (1, 0))
    to = graph.add("Where", above, *sides)
    zero, one = graph.constant(np.int64(0)), graph.constant(np.array([1]))
    node = graph.add("Add", _none(graph, rows), graph.constant(np.int64(1)))
    for _ in range(predictor.depth):
        at = graph.add("Unsqueeze", graph.add("Max", node, zero), one)
        onward = graph.add("Squeeze", graph.add("GatherElements", to, at, axis=1), one)
        node = graph.add("Where", graph.add("Less", node, zero), node, onward)
    return graph.add("Gather", cluster, graph.add("Sub", graph.constant(np.int64(-1)), node))


def _none(graph: _Graph, rows: str) -> str:
    """-1 for each row."""
    number = graph.add("Shape", rows, start=0, end=1)
    return graph.add("Expand", graph.constant(np.int64(-1)), number)
