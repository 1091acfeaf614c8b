"""cluster_tree's kernels: the same bits in both forms, where distances tie, points coincide and
masses are 0.

Only points that are merged have masses above 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.algorithms.cluster_tree import ClusterTreeClient, ClusterTreeServer
from shoal.algorithms.streaming import Contribution
from shoal.kernels import density_tree, distance, forms, sketching
from shoal.kernels.arrays import Floats
from shoal.kernels.density_tree import (
    HeavyMerge,
    Neighbours,
    core_distances,
    exact_masses,
    groups_of,
    mass_around,
    masses_at_shares,
    median_radius,
    spanning_tree,
)
from shoal.kernels.distance import nearest_centres, squared_by_differences, squared_to
from shoal.kernels.forms import COMPILED, NUMPY
from shoal.kernels.sketching import (
    Sketch,
    frame_of,
    located,
    merge_targets,
    merged,
    nearest_to,
    spread_ties,
    squared_among,
)
from tests.kernels.both_forms import FORMS

SIZES = (1, 2, 3, 9, 70, 300)

KINDS: dict[str, Callable[[np.random.Generator, int, int], Floats]] = {
    "blobs": lambda generator, n, d: (
        generator.random((6, d))[generator.integers(6, size=n)] + generator.normal(0, 0.02, (n, d))
    ),
    "uniform": lambda generator, n, d: generator.random((n, d)),
    # Most distances occur many times.
    "lattice": lambda generator, n, d: generator.integers(0, 3, size=(n, d)) / 4.0,
    "copies": lambda generator, n, d: np.repeat(generator.random((n, d)), 7, axis=0)[:n],
    "all equal": lambda generator, n, d: np.full((n, d), 0.3),
    "every size": lambda generator, n, d: (
        generator.normal(size=(n, d)) * 10.0 ** generator.integers(-8, 0, size=(n, 1))
    ),
    "signed zeros": lambda generator, n, d: np.where(generator.random((n, d)) < 0.9, -0.0, 1.0),
}
MASSES: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "ones": lambda generator, n: np.ones(n),
    "uneven": lambda generator, n: generator.uniform(0.1, 9.0, n),
    "some zero": lambda generator, n: np.where(
        generator.random(n) < 0.3, 0.0, generator.uniform(0.1, 9.0, n)
    ),
    "one heavy": lambda generator, n: np.append(np.full(n - 1, 0.01), 1000.0),
}


pytestmark = pytest.mark.usefixtures("numba")


@pytest.fixture
def by_form(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], Any]:
    """Calls something with both forms, holds the bits of one result against the other, and returns
    it."""

    def both(call: Callable[[], Any]) -> Any:
        found = {}
        for form, chosen in FORMS.items():
            monkeypatch.setattr(forms, "PROCESS", chosen)
            found[form] = call()
        assert bits(found[NUMPY]) == bits(found[COMPILED])
        return found[NUMPY]

    return both


def bits(value: Any) -> Any:
    """Something that is equal only for the same types, shapes and bits."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {name: bits(array) for name, array in value.items()}
    return tuple(map(bits, value)) if isinstance(value, (tuple, list)) else value


def cases(kind: str, d: int) -> list[tuple[Floats, Floats]]:
    """Points of a kind and their masses, of every size and with every kind of masses."""
    generator = np.random.default_rng([d, 7])
    return [
        (KINDS[kind](generator, n, d), mass(generator, n))
        for n in SIZES
        for mass in MASSES.values()
    ]


def core_distances_at(squared: Floats, mass: Floats, masses: list[float]) -> Floats:
    """Those of several masses at once, from neighbours that are looked for once."""
    return Neighbours(squared).core_distances(mass, masses)


def counted_anew(
    squared: NDArray[np.float32], mass: Floats, within: float
) -> list[NDArray[np.float32]]:
    """Core distances of neighbours that were looked for with other masses, which are those of a
    search for each."""
    neighbours = Neighbours(squared)
    found = []
    for share in (1.0, 0.3, 7.0):
        changed = np.where(np.arange(len(mass)) % 3, mass, share * mass)
        found.append(neighbours.core_distances(changed, [within]))
        assert bits(found[-1][0]) == bits(core_distances(squared, changed, within))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_core_distances_masses_and_trees_have_the_same_bits(
    kind: str, by_form: Callable[..., Any]
) -> None:
    for d in (1, 2, 16):
        for points, mass in cases(kind, d):
            squared = squared_among(frame_of(points).of(points))
            for within in (0.5, 20.0, 1e6):
                cores = by_form(partial(core_distances, squared, mass, within))
                both = by_form(partial(core_distances_at, squared, mass, [within, 3.0]))
                assert bits(both) == bits(np.stack([cores, core_distances(squared, mass, 3.0)]))
                by_form(partial(counted_anew, squared, mass, within))
                by_form(partial(spanning_tree, squared, cores))
                by_form(partial(mass_around, squared, 4.0 * cores, [mass, mass**3]))


@pytest.mark.parametrize("kind", KINDS)
def test_points_have_the_same_bits_in_their_frame(kind: str, by_form: Callable[..., Any]) -> None:
    for d in (1, 2, 16):
        for points, _ in cases(kind, d):
            frame, placed = by_form(partial(located, points))
            assert bits((frame, placed)) == bits((frame_of(points), frame_of(points).of(points)))
            assert np.abs(placed).max() <= 1.0 + 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_distances_and_the_nearest_points_have_the_same_bits(
    kind: str, by_form: Callable[..., Any]
) -> None:
    generator = np.random.default_rng(5)
    for d in (1, 2, 4, 17):
        for n in SIZES:
            points = KINDS[kind](generator, n, d)
            placed = frame_of(points).of(points)
            squared = by_form(partial(squared_among, placed))
            assert bits(squared) == bits(np.ascontiguousarray(squared.T))
            rows = np.concatenate([points, KINDS[kind](generator, 150, d)])
            by_form(partial(nearest_to, frame_of(points).of(rows), placed))
            for scale in (1.0, 1e-30, 1e120):
                near = by_form(partial(nearest_centres, rows * scale, points * scale))
                apart = squared_by_differences(rows * scale, points * scale)
                assert bits(near) == bits(apart.argmin(axis=1).astype(np.int64))
                chosen = squared_to(rows * scale, points[near] * scale)
                assert bits(chosen) == bits(apart[np.arange(len(rows)), near])


@pytest.mark.parametrize("kind", KINDS)
def test_the_median_radius_of_a_group_has_the_same_bits(
    kind: str, by_form: Callable[..., Any]
) -> None:
    generator = np.random.default_rng(6)
    for points, mass in cases(kind, 3):
        squared = squared_among(frame_of(points).of(points))
        cores = core_distances(squared, mass, 5.0)
        for size in {2, 5, len(mass) // 2, len(mass)}:
            if not 1 < size <= len(mass):
                continue
            group = generator.permutation(len(mass))[:size]
            own = mass[group]
            half = float(own.sum()) / 2
            for is_light in (False, True):
                wanted = float(generator.uniform(0.0, 2.0)) * half
                found = by_form(
                    partial(median_radius, squared, group, own, cores, wanted, half, is_light)
                )
                assert found[1] in squared[group][:, group]


def grown(
    squared: Floats,
    mass: Floats,
    cores: Floats,
    heavy: Floats,
    edges: NDArray[np.int64],
    lengths: Floats,
) -> tuple[list[HeavyMerge], NDArray[np.int64], list[float]]:
    """The merges of heavy groups along the edges, the shortest first, of which every third one is
    refused."""
    found = groups_of(edges, mass, cores, heavy)
    merges = list[HeavyMerge]()
    merge = found.add(0)
    while merge is not None:
        merges.append(merge)
        refused = len(merges) % 3 == 0
        merge = found.add(merge.edge + 1) if refused else found.add(merge.edge, even_if_heavy=True)
    typical = [
        array
        for merge in merges
        for members in merge.members
        for array in masses_at_shares(
            squared, members, exact_masses(mass), float(lengths[merge.edge]), (0.5, 0.9)
        )
    ]
    return merges, found.roots(), typical


@pytest.mark.parametrize("kind", KINDS)
def test_heavy_groups_are_found_at_the_same_edges_with_the_same_members(
    kind: str, by_form: Callable[..., Any]
) -> None:
    for points, mass in cases(kind, 2):
        squared = squared_among(frame_of(points).of(points))
        cores = core_distances(squared, mass, 5.0)
        edges, lengths = spanning_tree(squared, cores)
        order = np.argsort(lengths, kind="stable")
        heavy = np.where(np.arange(len(order)) % 2, 4.0, 3.0)

        merges, roots, _ = by_form(
            partial(grown, squared, mass, cores, heavy, edges[order], lengths[order])
        )
        assert all(
            mass[list(members)].sum() >= heavy[merge.edge] - 1e-9
            for merge in merges
            for members in merge.members
        )
        assert len(np.unique(roots)) == 1 + len(merges) // 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_points_are_merged_and_have_the_same_bits(
    kind: str, by_form: Callable[..., Any]
) -> None:
    for d in (1, 3, 9, 40):
        for points, mass in cases(kind, d):
            sketch = Sketch(points, np.where(mass > 0.0, mass, 0.5))
            for group in (None, np.arange(len(mass)) % 3):
                into = by_form(partial(merge_targets, sketch, len(mass) // 3, 12.0, group))
                assert by_form(partial(merged, sketch, into)).mass.sum() == pytest.approx(
                    sketch.mass.sum()
                )


def test_columns_of_coarse_values_are_found_and_spread_alike(by_form: Callable[..., Any]) -> None:
    generator = np.random.default_rng(3)
    found = set()
    for n in (1, 4, 10, 250, 256):
        for values in (1, 3, 4, int(0.7 * n) - 1, int(0.7 * n), int(0.7 * n) + 1, n):
            fine = generator.random(n)
            coarse = generator.permutation(np.arange(n) % max(1, values)) / 8.0
            signed = np.where(coarse == 0.0, generator.choice([-0.0, 0.0], n), coarse)
            for rows in (
                coarse[:, None],
                np.stack([fine, signed], axis=1),
                np.stack([fine, -fine], axis=1),
            ):
                spread = by_form(partial(spread_ties, rows))
                found.add(bits(spread) == bits(rows))
    assert found == {True, False}


def stream(d: int) -> list[Floats]:
    """Batches of blobs of which one appears late, with coarse and equal readings among them."""
    generator = np.random.default_rng(d)
    rows = generator.random((5, d))[generator.integers(4, size=6000)] + generator.normal(
        0, 0.02, (6000, d)
    )
    rows[4000:] += generator.integers(0, 2, size=(2000, 1)) * 0.5
    rows[::5] = rows[::5].round(1)
    return np.array_split(rows, 24)


@pytest.mark.parametrize("d", [2, 17])
def test_one_federation_passes_from_one_form_to_the_other(
    d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []
    for turns in ((NUMPY,), (COMPILED,), (NUMPY, COMPILED)):
        client = ClusterTreeClient(d)
        server = ClusterTreeServer(d, cells_max=300)
        for number, rows in enumerate(stream(d)):
            monkeypatch.setattr(forms, "PROCESS", FORMS[turns[number % len(turns)]])
            client.learn(rows)
            server.absorb([Contribution("one", number, client.contribute())], b"")
        states.append(bits({"client": client.state(), "server": server.state()}))
        assert len(server.identities) > 2
    assert states[0] == states[1] == states[2]


def test_the_compiled_kernels_do_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "PROCESS", FORMS[COMPILED])
    for module, names in (
        (density_tree, ("_cores", "_nearest_denser", "_join_trees", "blocks")),
        (density_tree, ("_ListedGroups", "_radii")),
        (sketching, ("_neighbours", "_united", "sums_by_label")),
        (distance, ("nearest_labels",)),
    ):
        for name in names:
            monkeypatch.delattr(module, name)
    client = ClusterTreeClient(2)
    server = ClusterTreeServer(2, cells_max=300)
    for number, rows in enumerate(stream(2)):
        client.learn(rows)
        server.absorb([Contribution("one", number, client.contribute())], b"")
    assert len(server.identities) > 2
