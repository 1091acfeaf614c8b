"""The golden files, and a recorder that makes the same traces of our own networks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.fcac import CAEFC, CAPlus
from shoal.algorithms.fcac.art_network import Step
from shoal.kernels import forms
from shoal.kernels.forms import COMPILED, NUMPY

FOLDER = Path(__file__).parent / "vectors"
Vectors = dict[str, NDArray[Any]]
Network = CAPlus | CAEFC


def golden(name: str) -> Vectors:
    with np.load(FOLDER / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


def assert_close(ours: Any, theirs: Any, name: str = "") -> None:
    """Equal but for rounding: rtol = atol = 1e-9."""
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9, err_msg=name)


def parts(rows: NDArray[Any], ends: NDArray[Any]) -> list[NDArray[Any]]:
    return np.split(rows, ends[:-1])


def edge_case(name: str) -> Vectors:
    mark = f"{name}__"
    return {
        key.removeprefix(mark): value
        for key, value in golden("edge_cases").items()
        if key.startswith(mark)
    }


def look(network: Network) -> dict[str, Any]:
    """What a trace holds about a network between two inputs, by the names of the golden files."""
    server = network if isinstance(network, CAEFC) else None
    return {
        "V_threshold": network.vigilance,
        "last_sigma": network.last_sigma,
        "n_nodes": len(network.weights),
        "n_edges": server.n_edges if server else 0,
        "n_active": network.n_active or 0,
        "num_signal": network.n_learnt,
        "lifetime": server.mean_deleted_age if server else 0.0,
        "n_deleted_edges": server.n_deleted_edges if server else 0,
    }


STEP = ("case", "V_s1", "V_s2", "s1_pos", "s2_pos", "s1_id", "s2_id")
"""what a trace holds about the way to the result; only the NumPy form shows it"""


class Recorder:
    """Watches a network from outside, input by input, and takes the plain determinant of the
    initial nodes."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.trace: dict[str, list[Any]] = {}
        self.initial_sigma = math.nan
        self._learn_each = network._learn_each
        self._step = network._step
        self._last: Step | None = None
        network._learn_each = self._watched_rows  # type: ignore[method-assign]  # calls it
        network._step = self._watched_step  # type: ignore[method-assign]  # calls it

    def _watched_rows(self, rows: NDArray[np.float64]) -> None:
        for row in rows:
            self._watched(row)

    def _watched_step(self, row: NDArray[np.float64]) -> Step:
        self._last = self._step(row)
        return self._last

    def _watched(self, row: NDArray[np.float64]) -> None:
        before = look(self.network)
        ids = self.network.node_ids.copy()
        n = len(self.network.weights)
        sigma_mean = self.network.mean_sigma if n else math.nan
        if n == 0 and self.network.n_learnt == 0:
            self.initial_sigma = self.network.last_sigma or math.nan
        initial = np.vstack([self.network.weights, row])
        self._learn_each(row[None])
        after = look(self.network)
        last = self._last
        entry = {
            f"{name}_after": after[name]
            for name in (
                "last_sigma",
                "V_threshold",
                "n_nodes",
                "n_edges",
                "n_active",
                "num_signal",
                "lifetime",
            )
        }
        entry |= {
            "V_threshold_before": before["V_threshold"],
            "sigma_mean_before": sigma_mean,
            # A node made and removed by the same input is not counted.
            "n_nodes_deleted": len(set(ids) - set(self.network.node_ids)),
            "n_edges_deleted": after["n_deleted_edges"] - before["n_deleted_edges"],
            "det_after": math.nan
            if before["n_active"]
            else plain_determinant(initial, self.initial_sigma),
        }
        if forms.PROCESS.choice == NUMPY:
            assert last is not None
            found = [
                ids[position] if position >= 0 else -1 for position in (last.first, last.second)
            ]
            distances = (last.distance_first, last.distance_second)
            entry |= dict(
                zip(STEP, (last.case, *distances, last.first, last.second, *found), strict=True)
            )
        for name, value in entry.items():
            self.trace.setdefault(name, []).append(value)


def plain_similarities(points: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """(k, k) correntropies, written down without any of our kernels."""
    similarities: NDArray[np.float64] = np.exp(
        -((points[:, None] - points[None]) ** 2) / (2 * sigma**2)
    ).mean(axis=2)
    return similarities


def plain_determinant(points: NDArray[np.float64], sigma: float) -> float:
    return float(np.linalg.det(np.exp(plain_similarities(points, sigma))))


def assert_same_trace(recorder: Recorder, expected: Vectors, counter: bool = True) -> None:
    """Every array of the golden trace. `counter` False leaves out the input counter, which ours
    never restarts."""
    names = [key.removeprefix("trace_") for key in expected if key.startswith("trace_")]
    if forms.PROCESS.choice == COMPILED:
        names = [name for name in names if name not in STEP]
    assert sorted(names) == sorted(recorder.trace)
    for name in names:
        theirs = expected[f"trace_{name}"]
        ours = np.array(recorder.trace[name])
        if name == "num_signal_after" and not counter:
            continue
        if name == "det_after":
            # One node alone has no determinant in the authors' program.
            ours[np.isnan(theirs) & (np.arange(len(ours)) == 0)] = math.nan
        if theirs.dtype.kind == "i":
            np.testing.assert_array_equal(ours, theirs, err_msg=name)
        else:
            assert_close(ours, theirs, name)


def assert_same_state(network: Network, expected: Vectors, counter: bool = True) -> None:
    """Every array of the golden final state."""
    whole = {
        "node_id": network.node_ids,
        "count": network.counts,
        "active_ids": network.recent_ids(),
        "n_active": network.n_active or 0,
        "lambda": network.lambda_ or 0,
    }
    real = {
        "weight": network.weights,
        "sigma": network.sigmas,
        "last_sigma": network.last_sigma,
        "V_threshold": network.vigilance,
    }
    if counter:
        whole["num_signal"] = network.n_learnt
    if isinstance(network, CAEFC):
        edges, ages = network.edges()
        clusters = network.clusters()
        whole |= {
            "edges": network.node_ids[edges],
            "edge_age": ages,
            "n_deleted_edge": network.n_deleted_edges,
            "n_clusters": clusters.max() + 1,
            "node_cluster": clusters,
        }
        real["lifetime_deleted_edge"] = network.mean_deleted_age
    known = {key.removeprefix("final_") for key in expected if key.startswith("final_")}
    assert known - {"num_signal"} == (set(whole) | set(real)) - {"num_signal"}
    for name, value in whole.items():
        np.testing.assert_array_equal(value, expected[f"final_{name}"], err_msg=name)
    for name, value in real.items():
        assert_close(value, expected[f"final_{name}"], name)
