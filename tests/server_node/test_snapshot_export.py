"""`shoal snapshot export`: files from which other programs get the labels of `predict`."""

from __future__ import annotations

import io
import json
import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray
from pyarrow import parquet

from shoal.algorithms.cluster_tree import ClusterTreeClient, ClusterTreeServer
from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.registry import algorithm_names, load_algorithm, rounds_algorithm
from shoal.algorithms.rounds.base import RoundsAlgorithm
from shoal.algorithms.streaming import Contribution
from shoal.config.contract import Feature, parse_contract
from shoal.config.resolved import ResolvedContract, resolve
from shoal.config.settings import load_config
from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats
from shoal.protocol.messages import Snapshot
from shoal.protocol.topics import ensure_topics
from shoal.server_node.outputs.snapshot_export import WRITERS, predictor_of, snapshot
from shoal.simulation.rounds import bounding_box, run_rounds
from shoal.transports import open_log
from tests.house.small_federation import write_federation
from tests.laws.test_counting_laws import Federation, clustered
from tests.server_node.web_statuses import a_contract, a_lineage, a_snapshot, some_nodes

ROWS = 100_000
LOW = np.array([-20.0, 0.0])
HIGH = np.array([60.0, 100.0])
EXPORTED = ["cluster_tree", "density_tree", "fcac", "kmeans", "fcm_from_counts"]
"""of each form: nearest by distance, cuts, nearest by CIM, centres, and none while nothing is found
"""


def learnt(name: str, n: int = 4000) -> dict[str, NDArray[Any]]:
    """The arrays of a snapshot that was learnt from n rows in four clusters."""
    algorithm = load_algorithm(name)
    rows = clustered(n, 2)
    if isinstance(algorithm, CountingAlgorithm):
        return dict(Federation(algorithm, 2).learn(rows).server.snapshot())
    if isinstance(algorithm, RoundsAlgorithm):
        params = algorithm.start(
            {"clusters": 4} if algorithm.takes("clusters") else {}, 2, bounding_box([rows])
        )
        return dict(run_rounds(algorithm, params, [rows], rounds_max=3).params)
    client = algorithm.client({}, 2)
    server = algorithm.server({}, 2)
    client.learn(rows)
    server.absorb([Contribution("client", 1, client.contribute())], b"key")
    return dict(server.snapshot())


def snapshot_of(name: str, n: int = 4000) -> tuple[Snapshot, ResolvedContract]:
    features = [
        {"name": "warm", "low": -20.0, "high": 60.0},
        {"name": "damp", "low": 0.0, "high": 100.0},
    ]
    takes_clusters = in_rounds(name) and rounds_algorithm(name).takes("clusters")
    options = (
        {"clusters": 4}
        if takes_clusters or name in ("kmeans_from_counts", "fcm_from_counts")
        else {}
    )
    if name == "tsk":
        options["target"] = "damp"
    tables = {
        "federation": {"name": "plant"},
        "features": features,
        "privacy": {"mode": "formal", "epsilon_per_reading": 4.0, "counts_epsilon": 2.0},
        "models": [{"name": "m", "algorithm": name, "options": options}],
    }
    contract = parse_contract(tables)
    return a_snapshot(contract, learnt(name, n), 7, "m", name), resolve(contract)


def labels(model: bytes, readings: Floats) -> tuple[list[int], list[int]]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().version == 7
    cluster, identity = session.run(None, {"readings": readings})
    return cluster.tolist(), identity.tolist()


@pytest.mark.parametrize("name", EXPORTED)
def test_the_onnx_model_gives_the_labels_of_predict(name: str) -> None:
    newest, contract = snapshot_of(name)
    lineage = a_lineage(newest)
    model = WRITERS["onnx"](newest, lineage, contract)
    readings = np.random.default_rng(3).uniform(LOW - 10, HIGH + 10, size=(ROWS, 2))
    expected = contract.models["m"].algorithm.predict(
        newest.arrays, contract.bounds.to_unit(contract.bounds.clip(readings)[0])
    )
    clusters, identities = labels(model, readings)
    assert clusters == expected.tolist()
    assert identities == [lineage.of_number.get(identity, -1) for identity in expected.tolist()]
    assert len(set(clusters)) > 1
    assert labels(model, readings[:0]) == ([], [])


@pytest.mark.parametrize("low", [0.0, 45.0])
def test_the_onnx_model_takes_any_turn_of_a_circular_feature(low: float) -> None:
    newest, contract = snapshot_of("density_tree")
    way = Feature.model_validate({"name": "way", "kind": "circular", "period": 360.0, "low": low})
    circular = resolve(
        contract.contract.model_copy(update={"features": (way, contract.features[1])})
    )
    readings = np.random.default_rng(3).uniform([-800.0, -10.0], [800.0, 110.0], size=(5000, 2))
    readings[:3, 0] = low, low + 360.0, low + 720.0
    rows = circular.bounds.to_unit(circular.bounds.clip(readings)[0])
    expected = circular.models["m"].algorithm.predict(newest.arrays, rows)
    found = labels(WRITERS["onnx"](newest, a_lineage(newest), circular), readings)[0]
    assert np.mean(found == expected) > 0.999, "where a turn ends, rounding may differ"
    assert len(set(found)) > 1


def test_rows_that_a_model_calls_noise_have_no_cluster_in_its_exports() -> None:
    newest, contract = snapshot_of("cluster_tree")
    server = ClusterTreeServer(2, noise=True)
    client = ClusterTreeClient(2, noise=True)
    generator = np.random.default_rng(2)
    for number in range(10):
        middle = np.array([[0.2, 0.2], [0.8, 0.7]])[generator.integers(2, size=300)]
        client.learn(middle + generator.normal(0.0, 0.03, (300, 2)))
        server.absorb([Contribution("client", number, client.contribute())], b"key")
    newest = replace(newest, arrays=server.snapshot())
    rows = np.random.default_rng(3).uniform(size=(500, 2))
    expected = server.predict(rows).tolist()
    assert 0 < expected.count(-1) < 500
    found, _ = labels(
        WRITERS["onnx"](newest, a_lineage(newest), contract), contract.bounds.from_unit(rows)
    )
    assert np.mean(np.array(found) == expected) > 0.99  # units are taken there and back
    predictor = json.loads(WRITERS["json"](newest, a_lineage(newest), contract))["predictor"]
    assert [evaluated(predictor, row) for row in rows.tolist()] == expected


@pytest.mark.parametrize("name", algorithm_names())
def test_a_predictor_says_what_predict_says_and_json_has_it(name: str) -> None:
    """Of every algorithm that declares one, also before anything is learnt."""
    for n in (0, 1500):
        newest, contract = (
            snapshot_of(name, n) if n or not in_rounds(name) else snapshot_of(name, 1500)
        )
        predictor = predictor_of(newest, contract)
        body = json.loads(WRITERS["json"](newest, a_lineage(newest), contract))
        assert (body["predictor"] is None) == (predictor is None)
        if predictor is None:
            with pytest.raises(SettingsError, match="export json"):
                WRITERS["onnx"](newest, a_lineage(newest), contract)
            continue
        rows = np.random.default_rng(4).uniform(size=(300, 2))
        found = contract.models["m"].algorithm.predict(newest.arrays, rows)
        assert [evaluated(body["predictor"], row) for row in rows.tolist()] == found.tolist()
        readings = contract.bounds.from_unit(rows)
        agreeing = (
            np.array(labels(WRITERS["onnx"](newest, a_lineage(newest), contract), readings)[0])
            == found
        )
        assert agreeing.mean() > 0.99, "readings made from unit rows are those rows up to rounding"


def in_rounds(name: str) -> bool:
    return isinstance(load_algorithm(name), RoundsAlgorithm)


def evaluated(predictor: dict[str, Any], row: list[float]) -> int:
    """The cluster of a row, as another program would find it from the JSON alone."""
    if predictor["kind"] == "nearest_point":
        sigma = predictor["sigma"]

        def far(point: list[float]) -> float:
            if sigma is None:
                return sum((x - p) ** 2 for x, p in zip(row, point, strict=True))
            near = sum(
                math.exp(-((x - p) ** 2) / (2 * sigma**2)) for x, p in zip(row, point, strict=True)
            )
            return math.sqrt(max(0.0, 1 - near / len(row)))

        distances = [far(point) for point in predictor["points"]]
        if not distances:
            return -1
        nearest = distances.index(min(distances))
        reach = predictor["reach"]
        return (
            -1
            if reach is not None and math.sqrt(min(distances)) >= reach[nearest]
            else predictor["cluster"][nearest]
        )
    node = 0 if predictor["at"] else -1
    while node >= 0:
        first = row[predictor["first"][node]]
        second = row[predictor["second"][node]]
        place = predictor["first_weight"][node] * first + predictor["second_weight"][node] * second
        node = predictor["parts"][node][place >= predictor["at"][node]]
    return predictor["cluster"][-1 - node]


def test_a_table_of_nodes_has_units_names_and_the_version() -> None:
    contract = a_contract(2)
    newest = a_snapshot(contract, some_nodes(2, 3, 12), 5)
    lineage = a_lineage(newest)
    table = parquet.read_table(io.BytesIO(WRITERS["parquet"](newest, lineage, resolve(contract))))
    assert table.schema.metadata[b"shoal.version"] == b"5"
    assert table.column_names == [
        "node",
        "mass",
        "cluster",
        "identity",
        "name",
        "temperature",
        "humidity",
    ]
    np.testing.assert_allclose(table["humidity"].to_numpy(), 100 * newest.arrays["weight"][:, 1])
    assert table["identity"].to_pylist() == [
        lineage.of_number[identity] for identity in table["cluster"].to_pylist()
    ]


def exported(file: Path, *words: str) -> Result:
    return CliRunner().invoke(snapshot, ["export", "--config", str(file), *words])


def test_the_command_writes_the_newest_snapshot_of_the_log(tmp_path: Path) -> None:
    file = write_federation(tmp_path)
    config = load_config(file)
    missing = exported(file, "--out", str(tmp_path / "none.json"))
    assert "has published no snapshot yet" in str(missing.exception)
    name = config.contract.models[0].name
    newest = a_snapshot(
        config.contract, some_nodes(2, 3, 12), 5, name, config.contract.models[0].algorithm
    )
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        log.publish(
            config.contract.snapshots_topic, newest.encode(), name.encode(), newest.headers()
        )
    for suffix in WRITERS:
        done = exported(file, "--out", str(tmp_path / f"all.{suffix}"))
        assert (done.exit_code, "version 5" in done.output) == (0, True), done.exception
        assert (tmp_path / f"all.{suffix}").stat().st_size > 500
    assert "give --format json, parquet, onnx" in str(
        exported(file, "--out", str(tmp_path / "all.csv")).exception
    )
    assert "there are" in str(
        exported(file, "--model", "other", "--out", str(tmp_path / "x.json")).exception
    )
