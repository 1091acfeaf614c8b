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

from shoal.algorithms.view import Predictor
from shoal.cli.options import chosen_model, config_option, model_option
from shoal.config.resolved import ResolvedContract
from shoal.config.settings import load_config
from shoal.errors import MissingExtra, SettingsError
from shoal.files import atomic_file
from shoal.protocol.messages import Snapshot
from shoal.protocol.topics import ensure_topics
from shoal.runtime.logs import open_federation_log
from shoal.server_node.outputs.encoding import plain
from shoal.server_node.outputs.newest_snapshot import newest_snapshot
from shoal.server_node.outputs.onnx_model import onnx_model
from shoal.server_node.outputs.snapshot_view import snapshot_view
from shoal.server_node.report.lineage.clusters import Lineage
from shoal.server_node.report.lineage.published import lineage_of
from shoal.server_node.report.units import feature_view, view_of


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
    """Write the newest snapshot of a model to a file, for devices and other languages.

    It has what predicts the cluster of a reading, with its version.

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
    with closing(open_federation_log(config, read_only=True)) as log:
        ensure_topics(log, config.contract, config.log)
        newest = newest_snapshot(contract, log, chosen)
    lineage = lineage_of(newest, view_of(newest, contract))
    content = WRITERS[form](newest, lineage, contract)
    with atomic_file(out, replace=True) as new_file:
        new_file.write_bytes(content)
    plural = "" if newest.known == 1 else "s"
    click.echo(f"{out}: {chosen}, version {newest.version}, {newest.known} cluster{plural}")


def predictor_of(snapshot: Snapshot, contract: ResolvedContract) -> Predictor | None:
    """The predictor as plain data; None for an algorithm whose prediction has no such form."""
    make = contract.models[snapshot.model].algorithm.predictor
    if make is None:
        return None
    return make(snapshot.arrays)


def facts_of(snapshot: Snapshot, contract: ResolvedContract) -> dict[str, str]:
    """Texts that name the snapshot."""
    features = []
    for feature in contract.features:
        shown = plain(feature_view(feature))
        features.append({**shown, "low": feature.low, "high": feature.high})
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
    body = plain(snapshot_view(snapshot, lineage, contract))
    body["predictor"] = _predictor_json(snapshot, contract)
    # No NaN: Python would write a text that is no JSON, and no other language reads.
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()


def _predictor_json(snapshot: Snapshot, contract: ResolvedContract) -> dict[str, Any] | None:
    predictor = predictor_of(snapshot, contract)
    if predictor is None:
        return None
    bounds: list[dict[str, float]] = []
    for feature in contract.features:
        bound = {"low": feature.low, "high": feature.high}
        if feature.period:
            bound["period"] = feature.period
        bounds.append(bound)
    return {"bounds": bounds, **predictor.as_dict()}


def _as_onnx(snapshot: Snapshot, lineage: Lineage, contract: ResolvedContract) -> bytes:
    predictor = predictor_of(snapshot, contract)
    if predictor is None:
        raise SettingsError(
            f"--format onnx: {snapshot.algorithm} predicts neither by nearest points nor by cuts; "
            "ask the server at /v1/predict, or export json"
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
    names = [
        None if identity is None else lineage.clusters[identity].name for identity in identities
    ]
    columns: dict[str, Any] = {
        "node": pyarrow.array(view.node_id),
        "mass": pyarrow.array(view.mass),
        "cluster": pyarrow.array(view.cluster),
        "identity": pyarrow.array(identities, pyarrow.int64()),
        "name": pyarrow.array(names, pyarrow.string()),
    }
    for j, feature in enumerate(contract.features):
        # A feature may be called as one of the columns above.
        name = f"feature {feature.name}" if feature.name in columns else feature.name
        columns[name] = np.ascontiguousarray(places[:, j])
    facts = {f"shoal.{name}": text for name, text in facts_of(snapshot, contract).items()}
    table = pyarrow.table(columns).replace_schema_metadata(facts)
    out = pyarrow.BufferOutputStream()
    parquet.write_table(table, out)
    return bytes(out.getvalue())


WRITERS: Mapping[str, Callable[[Snapshot, Lineage, ResolvedContract], bytes]] = {
    "json": _as_json,
    "parquet": _as_parquet,
    "onnx": _as_onnx,
}
"""format -> what writes it"""
