"""Synthetic streams whose true clusters are known: what private clustering is judged on.

Every stream is a function of its seed. Rows lie in the unit cube, which is also the declared range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.steadiness.streams import blobs, centres_apart, moons
from shoal.kernels.arrays import Floats, Ints

CLIENTS = 50
READINGS = 20_000
LONG = 30_000
"""readings of streams that change, and of those whose clusters no single feature shows"""
BLOBS = 6
HARD = 10
SKEWED_CLUSTERS = 2
"""clusters that a client sees, of skewed streams"""

Generator = np.random.Generator
Table = tuple[Floats, Ints]


@dataclass(frozen=True)
class Stream:
    """Rows in their order, the client of each, and what is true of them."""

    name: str
    family: str
    rows: Floats
    """(n, d) in the unit cube"""
    truth: Ints
    """(n,) cluster of each row"""
    owner: Ints
    """(n,) client of each row"""
    judged_from: int = 0
    """the rows from here on are judged"""

    known: bool = True
    """whether `truth` is known; a sensor without classes is compared with its own result without
    noise only"""

    @property
    def k_told(self) -> int:
        """The true number of clusters, which only some learners are told."""
        return len(np.unique(self.truth))


Maker = Callable[[int], Stream]


def families(readings: int = READINGS, long: int = LONG) -> dict[str, Maker]:
    """Every synthetic stream by its name."""
    made: dict[str, Maker] = {}
    for d in (2, 4, 8, 16):
        made |= _independent("blobs", d, partial(blobs, n=readings, k=BLOBS, d=d))
    for d in (2, 4, 8, 16):
        made |= _independent("hard", d, partial(hard, n=readings, d=d))
    for d in (2, 4, 8):
        made |= _independent("unequal", d, partial(unequal, n=readings, d=d))
    for name, make in (
        ("blobs", partial(blobs, n=readings, k=BLOBS)),
        ("hard", partial(hard, n=readings)),
    ):
        for d in (8, 16):
            made |= _skewed(name, d, partial(make, d=d))
    for d in (2, 8):
        made |= _independent("class by class", d, partial(class_by_class, n=long, d=d))
    for d in (2, 8):
        made |= _independent("moving", d, partial(moving, n=long, d=d), judged_from=9 * long // 10)
    made |= _independent("moons", 2, partial(_in_cube, moons, n=readings))
    for d, n in ((2, readings), (4, long)):
        made |= _independent("bars", d, partial(bars, n=n, d=d))
    return made


def _independent(
    family: str, d: int, make: Callable[[Generator], Table], judged_from: int = 0
) -> dict[str, Maker]:
    """Every row is read by any client."""
    name = f"{family} d={d}"

    def maker(seed: int) -> Stream:
        generator = np.random.default_rng([seed, d])
        rows, truth = make(generator)
        owner = generator.integers(CLIENTS, size=len(rows))
        return Stream(name, family, np.clip(rows, 0.0, 1.0), truth, owner, judged_from)

    return {name: maker}


def _skewed(family: str, d: int, make: Callable[[Generator], Table]) -> dict[str, Maker]:
    """Every client sees `SKEWED_CLUSTERS` clusters only."""
    name = f"skewed {family} d={d}"

    def maker(seed: int) -> Stream:
        generator = np.random.default_rng([seed, d])
        rows, truth = make(generator)
        k = int(truth.max()) + 1
        sees = np.array([(client + np.arange(SKEWED_CLUSTERS)) % k for client in range(CLIENTS)])
        owner = np.empty(len(rows), dtype=np.int64)
        for cluster in range(k):
            own = np.flatnonzero(truth == cluster)
            owner[own] = generator.choice(
                np.flatnonzero((sees == cluster).any(axis=1)), size=len(own)
            )
        return Stream(name, f"skewed {family}", np.clip(rows, 0.0, 1.0), truth, owner)

    return {name: maker}


def rotated_gaussians(generator: Generator, centres: Floats, truth: Ints) -> Floats:
    """Centres (k, d), the cluster of each row (n,) -> rows (n, d), each cluster in directions and
    widths of its own."""
    rows = np.empty((len(truth), centres.shape[1]))
    for cluster, centre in enumerate(centres):
        own = np.flatnonzero(truth == cluster)
        rotation = np.linalg.qr(generator.standard_normal((len(centre), len(centre))))[0]
        width = generator.uniform(0.02, 0.06, size=len(centre))
        rows[own] = centre + (generator.standard_normal((len(own), len(centre))) * width) @ rotation
    return rows


def hard(generator: Generator, n: int, d: int) -> Table:
    """Ten rotated Gaussians of unequal shares and widths, near enough to each other that some
    overlap."""
    centres = centres_apart(generator, HARD, d, 0.22)
    share = generator.uniform(0.4, 1.6, size=HARD)
    truth = generator.choice(HARD, size=n, p=share / share.sum())
    return rotated_gaussians(generator, centres, truth), truth


def unequal(generator: Generator, n: int, d: int) -> Table:
    """Six blobs, the largest with ten times the readings of the smallest."""
    centres = centres_apart(generator, BLOBS, d, 0.25)
    share = np.geomspace(1.0, 0.1, BLOBS)
    truth = generator.choice(BLOBS, size=n, p=share / share.sum())
    return centres[truth] + 0.02 * generator.standard_normal((n, d)), truth


def class_by_class(generator: Generator, n: int, d: int) -> Table:
    """Six blobs, one after another, none coming back."""
    truth = np.arange(n) * BLOBS // n
    centres = centres_apart(generator, BLOBS, d, 0.25)
    return centres[truth] + 0.02 * generator.standard_normal((n, d)), truth


def moving(generator: Generator, n: int, d: int) -> Table:
    """Four blobs that stand apart on the first two features and move by a quarter of the range,
    each its own way."""
    truth = generator.integers(4, size=n)
    corner = np.array([[0.1, 0.1], [0.9, 0.1], [0.1, 0.9], [0.9, 0.9]])
    way = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [-1.0, 0.0]])
    centres = np.full((n, d), 0.5)
    centres[:, :2] = corner[truth] + 0.25 * (np.arange(n) / n)[:, None] * way[truth]
    return centres + 0.02 * generator.standard_normal((n, d)), truth


def bars(generator: Generator, n: int, d: int) -> Table:
    """Two diagonal bars side by side, which no single feature shows, in a random orientation; other
    features say nothing."""
    truth = generator.integers(2, size=n)
    along = generator.uniform(-0.3, 0.3, size=n)
    across = np.where(truth == 0, -0.09, 0.09) + 0.015 * generator.standard_normal(n)
    sign = generator.choice([-1.0, 1.0])
    pair = 0.5 + np.stack([along + across, sign * (along - across)], axis=1)
    rows = np.concatenate([pair, 0.5 + 0.05 * generator.standard_normal((n, d - 2))], axis=1)
    return rows[:, generator.permutation(d)], truth


def _in_cube(make: Callable[[Generator, int], Table], generator: Generator, n: int) -> Table:
    """A stream of two features around the unit square, scaled into it: x from -1.3 .. 2.3, y from
    -0.8 .. 1.3."""
    rows, truth = make(generator, n)
    low = np.array([-1.3, -0.8])
    high = np.array([2.3, 1.3])
    return (rows - low) / (high - low), truth
