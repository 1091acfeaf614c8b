"""`shoal snapshot export`: the newest snapshot of a model as JSON, Parquet or ONNX, for devices and
other languages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import numpy as np

from shoal.algorithms.view import Cuts, NearestPoint, Predictor
from shoal.cli.options import chosen_model, config_option, model_option
from shoal.config.resolved import ResolvedContract
from shoal.config.settings import load_config
from shoal.errors import MissingExtra, SettingsError
from shoal.files import atomic_file
from shoal.protocol.messages import Snapshot
from shoal.protocol.topics import ensure_topics
from shoal.runtime.logs import open_federation_log
from shoal.server_node.outputs.newest_snapshot import newest_snapshot
from shoal.server_node.outputs.web.json_values import kind_json, snapshot_json, view_of
from shoal.server_node.report.lineage import Lineage
from shoal.server_node.report.lineage_step import lineage_of


@click.group()
def snapshot() -> None:
    """Snapshots: the clusterings that the server publishes."""


@snapshot.command()
@config_option
@model_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "parquet", "onnx"]),
    help="[default: the suffix of --out]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The file to write.",
)
def export(file: Path, model: str | None, form: str | None, out: Path) -> None:
    """Write the newest snapshot of a model to a file, for devices and other languages: what predicts the cluster of a
    reading, with its version.

    \b
    json     the whole snapshot, and `predictor`: points or cuts, and how they are used
    parquet  a row for each node: its place in units, mass, cluster, identity and name
    onnx     readings in units -> cluster and identity, the labels of `/v1/predict`
    """
    config = load_config(file)
    contract = config.resolved
    chosen = chosen_model(model, contract.models, file)
    form = form or out.suffix.removeprefix(".")
    if form not in WRITERS:
        raise SettingsError(
            f"--out {out}: no format has this suffix; give --format {', '.join(WRITERS)}"
        )
    with closing(open_federation_log(config)) as log:
        ensure_topics(log, config.contract, config.log)
        newest = newest_snapshot(contract, log, chosen)
    lineage = lineage_of(newest, view_of(newest, contract))
    content = WRITERS[form](newest, lineage, contract)
    with atomic_file(out, replace=True) as file_beside:
        file_beside.write_bytes(content)
    click.echo(
        f"{out}: {chosen}, version {newest.version}, {newest.known} cluster{'s' * (newest.known != 1)}"
    )


def predictor_of(snapshot: Snapshot, contract: ResolvedContract) -> Predictor | None:
    """The predictor as plain data; None for an algorithm whose prediction has no such form."""
    make = contract.models[snapshot.model].algorithm.predictor
    return None if make is None else make(snapshot.arrays)


def facts_of(snapshot: Snapshot, contract: ResolvedContract) -> dict[str, str]:
    """Texts that name the snapshot."""
    features = [{**kind_json(one), "low": one.low, "high": one.high} for one in contract.features]
    return {
        "federation": snapshot.federation,
        "model": snapshot.model,
        "algorithm": snapshot.algorithm,
        "version": str(snapshot.version),
        "contract": snapshot.contract,
        "made_at": repr(snapshot.made_at),
        "features": json.dumps(features, ensure_ascii=False),
    }


def _as_json(snapshot: Snapshot, lineage: Lineage, contract: ResolvedContract) -> bytes:
    predictor = predictor_of(snapshot, contract)
    bounds = [
        {"low": one.low, "high": one.high, **({"period": one.period} if one.period else {})}
        for one in contract.features
    ]
    body = {
        **snapshot_json(snapshot, lineage, contract),
        "predictor": None if predictor is None else {"bounds": bounds, **predictor.as_dict()},
    }
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()


def _as_onnx(snapshot: Snapshot, lineage: Lineage, contract: ResolvedContract) -> bytes:
    predictor = predictor_of(snapshot, contract)
    if predictor is None:
        raise SettingsError(
            f"--format onnx: {snapshot.algorithm} predicts neither by nearest points nor by cuts; ask the server at "
            "/v1/predict, or export json"
        )
    return onnx_model(predictor, lineage.of_number, contract, facts_of(snapshot, contract))


def _as_parquet(snapshot: Snapshot, lineage: Lineage, contract: ResolvedContract) -> bytes:
    try:
        import pyarrow  # noqa: PLC0415 - an extra
        from pyarrow import parquet  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise MissingExtra("Export as Parquet", "parquet") from None
    view = view_of(snapshot, contract)
    places = contract.bounds.shown(view.nodes)
    identities = [lineage.of_number.get(number) for number in view.cluster.tolist()]
    names = [None if each is None else lineage.clusters[each].name for each in identities]
    columns: dict[str, Any] = {
        "node": pyarrow.array(view.node_id),
        "mass": pyarrow.array(view.mass),
        "cluster": pyarrow.array(view.cluster),
        "identity": pyarrow.array(identities, pyarrow.int64()),
        "name": pyarrow.array(names, pyarrow.string()),
    }
    features = {
        feature.name: np.ascontiguousarray(places[:, j])
        for j, feature in enumerate(contract.features)
    }
    if clash := sorted(set(features) & set(columns)):
        features = {
            f"feature {name}" if name in clash else name: values
            for name, values in features.items()
        }
    facts = {f"shoal.{name}": text for name, text in facts_of(snapshot, contract).items()}
    table = pyarrow.table(columns | features).replace_schema_metadata(facts)
    out = pyarrow.BufferOutputStream()
    parquet.write_table(table, out)
    return bytes(out.getvalue())


WRITERS: Mapping[str, Callable[[Snapshot, Lineage, ResolvedContract], bytes]] = {
    "json": _as_json,
    "parquet": _as_parquet,
    "onnx": _as_onnx,
}
"""format -> what writes it"""


# ONNX: everything is computed in doubles and in the order of shoal's own kernels, so that labels
# agree but for readings whose two nearest points are equally far up to rounding.

OPSET = 17
IR_VERSION = 8
"""versions of ONNX 1.12, which readers of the year 2022 take"""
READINGS = "readings"
CLUSTER = "cluster"
IDENTITY = "identity"


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
    predictor: Predictor,
    identities: Mapping[int, int],
    contract: ResolvedContract,
    facts: Mapping[str, str],
) -> bytes:
    """The model, serialised. It takes `readings` (n, d) as doubles and gives `cluster` (n,) and
    `identity` (n,).

    `identities`: number of a cluster -> its identity; -1 where it has none. `facts` become its
    metadata. Raises `MissingExtra`.
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
    table = np.array(
        [-1, *(identities.get(number, -1) for number in range(numbers))], dtype=np.int64
    )
    graph.add(
        "Gather",
        graph.constant(table),
        graph.add("Add", cluster, graph.constant(np.int64(1))),
        output=IDENTITY,
    )
    tensor = onnx.helper.make_tensor_value_info
    kinds = onnx.TensorProto
    described = onnx.helper.make_graph(
        graph.nodes,
        "shoal",
        [tensor(READINGS, kinds.DOUBLE, ["n", contract.width])],
        [tensor(CLUSTER, kinds.INT64, ["n"]), tensor(IDENTITY, kinds.INT64, ["n"])],
        graph.constants,
    )
    model = onnx.helper.make_model(
        described,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="shoal",
    )
    model.model_version = int(facts["version"])
    onnx.helper.set_model_props(model, dict(facts))
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


def _unit_rows(graph: _Graph, contract: ResolvedContract) -> str:
    """Readings, clipped to the bounds, those of circular features wrapped into them, in unit
    coordinates."""
    bounds = contract.bounds
    low = graph.constant(bounds.low)
    high = graph.constant(bounds.high)
    inside = graph.add("Min", graph.add("Max", READINGS, low), high)
    if bounds.circular:
        span = graph.constant(bounds.span)
        turns = graph.add("Floor", graph.add("Div", graph.add("Sub", READINGS, low), span))
        wrapped = graph.add("Sub", READINGS, graph.add("Mul", turns, span))
        whole = graph.add("Equal", READINGS, high)
        circular = graph.constant(np.isin(np.arange(bounds.d), bounds.circular))
        inside = graph.add("Where", circular, graph.add("Where", whole, READINGS, wrapped), inside)
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
    cluster = graph.add("Gather", graph.constant(predictor.cluster.astype(np.int64)), nearest)
    if predictor.reach is None:
        return cluster
    distance = graph.add("Sqrt", graph.add("ReduceMin", total, axes=[1], keepdims=0))
    inside = graph.add(
        "Less", distance, graph.add("Gather", graph.constant(predictor.reach), nearest)
    )
    return graph.add("Where", inside, cluster, graph.constant(np.int64(-1)))


def _cut(graph: _Graph, predictor: Cuts, rows: str) -> str:
    """The cluster of the leaf: at every cut the side of every row, then from cut to cut as deep as
    the tree is."""
    cluster = graph.constant(predictor.cluster.astype(np.int64))
    if not len(predictor.at):
        return graph.add(
            "Gather", cluster, graph.add("Add", _none(graph, rows), graph.constant(np.int64(1)))
        )
    places = ""
    for which, weight in (
        (predictor.first, predictor.first_weight),
        (predictor.second, predictor.second_weight),
    ):
        values = graph.add("Gather", rows, graph.constant(which.astype(np.int64)), axis=1)
        term = graph.add("Mul", values, graph.constant(weight[None, :]))
        places = graph.add("Add", places, term) if places else term
    above = graph.add("GreaterOrEqual", places, graph.constant(predictor.at[None, :]))
    sides = (graph.constant(predictor.parts[:, side].astype(np.int64)[None, :]) for side in (1, 0))
    to = graph.add("Where", above, *sides)
    zero = graph.constant(np.int64(0))
    one = graph.constant(np.array([1]))
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
