"""density_tree's kernels: the same counts and the same valleys in both forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shoal.algorithms.density_tree import DENSITY_TREE, plan
from shoal.algorithms.density_tree.plan import CountingPlan
from shoal.algorithms.density_tree.server import DensityTreeServer
from shoal.algorithms.streaming import Contribution
from shoal.kernels import density_tree, forms
from shoal.kernels.arrays import Floats
from shoal.kernels.density_tree import find_valleys
from shoal.kernels.forms import COMPILED
from shoal.privacy.count_noise import count_noise
from tests.kernels.both_forms import FORMS

NOISE = count_noise(4.0)
WINDOW = 400


pytestmark = pytest.mark.usefixtures("numba")


HISTOGRAMS: dict[str, Callable[[np.random.Generator, tuple[int, int]], Floats]] = {
    "counts": lambda generator, shape: generator.poisson(30.0, shape).astype(np.float64),
    "noise": lambda generator, shape: generator.normal(0.0, 10.0, shape),
    "peaks": lambda generator, shape: generator.poisson(
        200.0 * np.abs(np.sin(np.arange(shape[1]) * generator.uniform(0.2, 1.5, (shape[0], 1))))
    ).astype(np.float64),
    # Many places are equally high.
    "few values": lambda generator, shape: generator.integers(0, 3, shape) * 100.0,
    "nothing": lambda generator, shape: np.zeros(shape),
    "a plain": lambda generator, shape: np.full(shape, 100.0),
    "shares": lambda generator, shape: generator.random(shape) ** 4 * 500.0,
}


@pytest.mark.parametrize("kind", HISTOGRAMS)
def test_both_forms_find_the_same_valleys(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    for n in (1, 3, 4, 8, 16, 40):
        counts = HISTOGRAMS[kind](generator, (60, n))
        for variances in (
            np.zeros((60, n)),
            np.full((60, n), 4.0),
            generator.uniform(0.0, 90.0, (60, n)),
        ):
            found = []
            for choice in FORMS.values():
                monkeypatch.setattr(forms, "PROCESS", choice)
                found.append([valley.tobytes() for valley in find_valleys(counts, variances, 0.4)])
            assert found[0] == found[1], n


def grown(
    oblique_axes: int, d: int, missing: float = 0.0
) -> tuple[list[bytes], CountingPlan, Floats]:
    """A tree that has learnt windows of blobs, of which a share of the values is missing: the bits
    of all counts and of its state, its plan, and rows."""
    generator = np.random.default_rng(d)
    n = 60 * WINDOW
    rows = generator.random((6, d))[generator.integers(6, size=n)] + generator.normal(
        0, 0.02, (n, d)
    )
    options = {
        "noise_variance": NOISE.variance,
        "window_readings": WINDOW,
        "oblique_axes": oblique_axes,
    }
    counter = DENSITY_TREE.counter(options, d)
    server = DensityTreeServer(d, **options)
    learnt = []
    for number, window in enumerate(np.split(rows, 60)):
        valid = generator.random(WINDOW) < 0.9
        lacks = ~valid[:, None] | (generator.random(window.shape) < missing if missing else False)
        counted: Any = counter.count(np.where(lacks, np.nan, window), valid, b"client", number)
        learnt.append(counted.counts.tobytes())
        update = counted.update(
            counted.counts + NOISE.draw(number.to_bytes(8, "little"), len(counted.counts))
        )
        server.absorb([Contribution("client", number, update)], b"")
        counter.adopt(server.snapshot())
    learnt += [array.tobytes() for array in server.snapshot().values()]
    return learnt, server.plan, rows


@pytest.mark.parametrize(
    ("oblique_axes", "d", "missing"), [(0, 1, 0.0), (0, 5, 0.0), (4, 3, 0.0), (4, 3, 0.3)]
)
def test_both_forms_count_alike_and_grow_the_same_tree(
    oblique_axes: int, d: int, missing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for choice in FORMS.values():
        monkeypatch.setattr(forms, "PROCESS", choice)
        learnt, tree, _ = grown(oblique_axes, d, missing)
        found.append(learnt)
    assert found[0] == found[1]
    assert len(tree.leaf_ids) > 2
    assert (tree.zoom >= 0).any()


def test_readings_on_and_beyond_every_edge_are_counted_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, tree, rows = grown(0, 3)
    edges = np.concatenate([tree.start, tree.end, tree.cut_at, [-1.0, -0.0, 0.0, 1.0, 2.0]])
    on_edges = np.random.default_rng(0).choice(edges, (WINDOW, 3))
    for window in (
        on_edges,
        np.nextafter(on_edges, 2.0),
        np.nextafter(on_edges, -1.0),
        rows[:1],
        rows[:0],
    ):
        found = []
        for choice in FORMS.values():
            monkeypatch.setattr(forms, "PROCESS", choice)
            valid = np.ones(len(window), dtype=np.bool_)
            found.append(
                [tree.count(window, valid, b"client", n).counts.tobytes() for n in range(20)]
            )
        assert found[0] == found[1]


def test_the_compiled_kernels_do_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "PROCESS", FORMS[COMPILED])
    monkeypatch.delattr(density_tree, "_running")
    monkeypatch.delattr(plan, "leaf_of")
    assert len(grown(0, 2)[1].leaf_ids) > 2
