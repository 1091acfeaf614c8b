"""Time per row of an answer, by K and d, beside other implementations of the same sums."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.results import spread
from shoal.algorithms.registry import rounds_algorithm
from shoal.algorithms.rounds.base import Params, Stats
from shoal.kernels import forms
from shoal.kernels.arrays import Floats
from shoal.kernels.forms import COMPILED, NUMPY, Forms
from shoal.protocol.codec import pack
from shoal.simulation.rounds import bounding_box

Work = Callable[[], Any]
SEED = 3

# Straightforward NumPy for the same sums, written from the papers.


def plain_kmeans(params: Params, rows: Floats) -> Stats:
    far = ((rows[:, None, :] - params["centre"]) ** 2).sum(axis=2)
    hot = np.eye(len(params["centre"]))[far.argmin(axis=1)]
    return {"count": hot.sum(axis=0), "sum": hot.T @ rows, "inertia": far.min(axis=1).sum()}


def plain_fcm(params: Params, rows: Floats) -> Stats:
    far = ((rows[:, None, :] - params["centre"]) ** 2).sum(axis=2) ** (
        1 / (params["fuzzifier"][0] - 1)
    )
    weights = (1 / (far * (1 / far).sum(axis=1, keepdims=True))) ** params["fuzzifier"][0]
    return {"mass": weights.sum(axis=0), "sum": weights.T @ rows}


def plain_gmm(params: Params, rows: Floats) -> Stats:
    k, d = params["centre"].shape
    covariances = np.empty((k, d, d))
    above = np.triu_indices(d)
    covariances[:, above[0], above[1]] = covariances[:, above[1], above[0]] = params["spread"]
    gaps = rows[:, None, :] - params["centre"]
    far = np.einsum("nkd,kde,nke->nk", gaps, np.linalg.inv(covariances), gaps, optimize=True)
    logs = -0.5 * (d * np.log(2 * np.pi) + np.linalg.slogdet(covariances)[1] + far) - np.log(k)
    peak = logs.max(axis=1, keepdims=True)
    shares = np.exp(logs - peak)
    heights = shares.sum(axis=1, keepdims=True)
    shares /= heights
    second = np.einsum("nk,nd,ne->kde", shares, rows, rows, optimize=True)
    return {
        "mass": shares.sum(axis=0),
        "sum": shares.T @ rows,
        "second": second,
        "likelihood": (peak + np.log(heights)).sum(),
    }


def plain_tsk(params: Params, rows: Floats) -> Stats:
    regressors, target = design(params, rows)
    return {
        "gram": regressors.T @ regressors,
        "cross": regressors.T @ target,
        "energy": target @ target,
    }


def design(params: Params, rows: Floats) -> tuple[Floats, Floats]:
    """The regressors (n, k d) of all consequents, and the target (n,)."""
    z = (rows - params["origin"]) / params["scale"]
    centres = (params["centre"] - params["origin"]) / params["scale"]
    widths = params["width"] / params["scale"]
    far = (((z[:, None, :-1] - centres[:, :-1]) / widths[:, :-1]) ** 2).sum(axis=2)
    strengths = np.exp(-0.5 * (far - far.min(axis=1, keepdims=True)))
    strengths /= strengths.sum(axis=1, keepdims=True)
    columns = np.column_stack([z[:, :-1], np.ones(len(z))])
    return (strengths[:, :, None] * columns[:, None, :]).reshape(len(z), -1), z[:, -1]


def plain_dbscan(params: Params, rows: Floats) -> Stats:
    cells = (
        np.floor((rows - params["low"]) / params["step"])
        .clip(0, params["cells"][0] - 1)
        .astype(np.int64)
    )
    once, count = np.unique(cells, axis=0, return_counts=True)
    return {"cell": once, "count": count}


def plain_spectral(params: Params, rows: Floats) -> Stats:
    landmarks = params["landmark"]
    near = int(params["near"][0])
    far = ((rows[:, None, :] - landmarks) ** 2).sum(axis=2)
    which = np.argpartition(far, near, axis=1)[:, :near]
    squares = np.take_along_axis(far, which, axis=1)
    weights = np.exp(
        (squares.min(axis=1, keepdims=True) - squares) / (2 * params["bandwidth"] ** 2)
    )
    z = np.zeros((len(rows), len(landmarks)))
    np.put_along_axis(z, which, weights / weights.sum(axis=1, keepdims=True), axis=1)
    return {"gram": z.T @ z, "error": far.min(axis=1).sum()}


PLAIN: Mapping[str, Callable[[Params, Floats], Stats]] = {
    "kmeans": plain_kmeans,
    "fcm": plain_fcm,
    "gmm": plain_gmm,
    "tsk": plain_tsk,
    "dbscan": plain_dbscan,
    "spectral": plain_spectral,
}
SHAPES: Mapping[str, tuple[tuple[int, int], ...]] = {"dbscan": ((3, 2), (3, 4), (3, 6))}
"""K and d of algorithms that do not take those of the others: dbscan takes 6 features at most"""
SCIKIT_ROWS: Mapping[str, int] = {"spectral": 2000}
"""rows for scikit-learn where it needs more than a fixed time for each"""
COMPILED_FORM = ("kmeans", "fcm", "gmm", "dbscan", "spectral")
"""algorithms whose answers have a compiled form"""
FORMS = {NUMPY: Forms(NUMPY), COMPILED: Forms(COMPILED)}
OPTIONS: Mapping[str, Mapping[str, Any]] = {"tsk": {"condition_rounds": 0}}
"""options with which two rounds reach the answers that are measured: tsk's normal equations"""


def by_row(name: str, params: Params, rows: Floats) -> None:
    """A loop over the rows in Python, each with the plain form."""
    for row in rows:
        PLAIN[name](params, row[None])


def scikit_step(name: str, params: Params, rows: Floats) -> Work | None:
    """One step of scikit-learn from the same parameters on the same rows; None for fuzzy c-means,
    which it lacks.

    Of the regression by rules it has the ridge regression, and not the firing strengths. DBSCAN and
    spectral clustering have no steps, so these are whole.
    """
    if name == "dbscan":
        from sklearn.cluster import DBSCAN  # noqa: PLC0415 - the extra bench

        return partial(DBSCAN(eps=0.3, min_samples=10).fit, rows)
    if name == "spectral":
        from sklearn.cluster import SpectralClustering  # noqa: PLC0415 - the extra bench

        whole = SpectralClustering(
            len(params["weight"]), affinity="nearest_neighbors", random_state=SEED
        )

        def fit() -> None:
            with warnings.catch_warnings():
                # Clusters that are far apart are not connected by nearest neighbours, which is no
                # matter here.
                warnings.simplefilter("ignore")
                whole.fit(rows[: SCIKIT_ROWS[name]])

        return fit
    if name == "kmeans":
        from sklearn.cluster import _k_means_lloyd  # noqa: PLC0415 - the extra bench

        k = len(params["centre"])
        weights = np.ones(len(rows))
        new = np.zeros_like(params["centre"])
        mass = np.zeros(k)
        labels = np.zeros(len(rows), dtype=np.int32)
        moved = np.zeros(k)
        centre = params["centre"].copy()
        return lambda: _k_means_lloyd.lloyd_iter_chunked_dense(
            rows, weights, centre, new, mass, labels, moved, 1
        )
    if name == "gmm":
        from sklearn.mixture import GaussianMixture  # noqa: PLC0415 - the extra bench

        mixture = GaussianMixture(
            len(params["centre"]), max_iter=1, tol=0.0, means_init=params["centre"]
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mixture.fit(rows)

        def step() -> None:
            _, logs = mixture._e_step(rows)
            mixture._m_step(rows, logs)

        return step
    if name == "tsk":
        from sklearn.linear_model import Ridge  # noqa: PLC0415 - the extra bench

        ridge = Ridge(1.0, fit_intercept=False, solver="cholesky")
        return lambda: ridge.fit(*design(params, rows))
    return None


def rows_and_params(name: str, k: int, d: int, n: int) -> tuple[Floats, Params]:
    generator = np.random.default_rng([SEED, k, d])
    centres = generator.normal(size=(k, d)) * 3
    rows = centres[generator.integers(0, k, n)] + generator.normal(size=(n, d))
    algorithm = rounds_algorithm(name)
    asked = {"clusters": k} if algorithm.takes("clusters") else {}
    params = algorithm.start({**asked, **OPTIONS.get(name, {})}, d, bounding_box([rows], SEED))
    for _ in range(2):
        params = algorithm.combine(params, [algorithm.answer(params, rows)])
    return rows, params


def answer_by(form: str, name: str, params: Params, rows: Floats) -> None:
    """An answer in one form of the kernels."""
    forms.PROCESS = FORMS[form]
    rounds_algorithm(name).answer(params, rows)


def measured_answers(
    shapes: Sequence[tuple[int, int]], n: int, loop_rows: int, turns: int
) -> list[dict[str, Any]]:
    """Nanoseconds per row of ours and of the others for each algorithm and (K, d), in turns on `n`
    rows."""
    found = []
    for name in PLAIN:
        for k, d in SHAPES.get(name, shapes):
            rows, params = rows_and_params(name, k, d, n)
            ways: dict[str, tuple[Work, int]] = {
                "ours": (partial(answer_by, COMPILED, name, params, rows), len(rows)),
                "plain NumPy": (partial(PLAIN[name], params, rows), len(rows)),
                "loop": (partial(by_row, name, params, rows[:loop_rows]), loop_rows),
            }
            if name in COMPILED_FORM:
                ways["NumPy form"] = (partial(answer_by, NUMPY, name, params, rows), len(rows))
            step = scikit_step(name, params, rows)
            if step is not None:
                ways["scikit-learn"] = (step, min(len(rows), SCIKIT_ROWS.get(name, len(rows))))
            seconds = take_turns({way: work for way, (work, _) in ways.items()}, turns)
            per_row = {way: [spent / ways[way][1] for spent in seconds[way]] for way in ways}
            ratios = {
                way: spread(
                    [
                        other / ours
                        for other, ours in zip(per_row[way], per_row["ours"], strict=True)
                    ]
                )
                for way in ways
                if way != "ours"
            }
            found.append(
                {
                    "algorithm": name,
                    "K": k,
                    "d": d,
                    "ns_per_row": {
                        way: spread([1e9 * seconds for seconds in times])
                        for way, times in per_row.items()
                    },
                    "times_as_fast_as": ratios,
                    "bytes_up": len(pack(dict(rounds_algorithm(name).answer(params, rows)))),
                    "bytes_down": len(pack(dict(params))),
                }
            )
    return found


def take_turns(ways: Mapping[str, Work], turns: int) -> dict[str, list[float]]:
    """Processor seconds of each way, turn by turn, after one untimed turn each."""
    for work in ways.values():
        work()
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(turns):
        for way, work in ways.items():
            gc.collect()
            begun = time.process_time()
            work()
            seconds[way].append(time.process_time() - begun)
    return seconds
