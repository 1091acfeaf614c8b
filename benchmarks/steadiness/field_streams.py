"""Streams as installations have them, each with one difficulty: births, scattered rows, whole
numbers, bursts, many or overlapping clusters, lines, rings, hollow clusters, a small table.

Every stream is a function of its seed. The truth of a row is the cluster that it was drawn from, -1
of a scattered one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.steadiness.streams import Maker, Stream, centres_apart
from shoal.kernels.arrays import Floats, Ints

ROWS = 6_000
MANY_ROWS = 30_000
SD = 0.02

Drawn = tuple[Floats, Ints]


def field() -> dict[str, Maker]:
    """name of the stream -> what makes it of a seed; the family is the difficulty."""
    made: dict[str, Maker] = {}

    def add(family: str, name: str, make: Callable[[np.random.Generator], Drawn]) -> None:
        made[name] = lambda seed: Stream(name, family, *make(np.random.default_rng(seed)))

    for k, d in ((6, 2), (8, 4), (12, 2), (6, 8)):
        add("births", f"one after another K={k} d={d}", partial(one_after_another, k=k, d=d))
    for k, d in ((5, 2), (6, 4), (8, 3), (5, 8)):
        add("non-stationary", f"come, go, move K={k} d={d}", partial(come_go_move, k=k, d=d))
    for share in (0.01, 0.02, 0.05):
        for k, d in ((5, 2), (6, 4), (5, 8)):
            add(
                "noise",
                f"{share:.0%} scattered K={k} d={d}",
                partial(scattered, share=share, k=k, d=d),
            )
    for d in (1, 3):
        add("coarse", f"whole degrees d={d}", partial(whole_degrees, d=d))
    for k in (50, 100, 200):
        add("many", f"many K={k}", partial(many, k=k))
    for k, d in ((4, 2), (2, 4)):
        add("overlap", f"overlap 4 sd K={k} d={d}", partial(overlap, k=k, d=d))
    add("shapes", "four parallel lines", lines)
    add("shapes", "three rings", three_rings)
    for d in (10, 16):
        add("hollow", f"hollow K=4 d={d}", partial(hollow, d=d))
    for length in (30, 100, 300):
        add("bursts", f"bursts of {length}", partial(bursts, length=length))
    add("small tables", "table of digits", digits)
    for d in (2, 8):
        add("dependent", f"AR(.999) d={d}", partial(dependent, d=d))
    return made


def one_after_another(generator: np.random.Generator, k: int, d: int) -> Drawn:
    """Two clusters; every other one appears at a moment of its own, and all go on."""
    centres = centres_apart(generator, k, d, 8.0 * SD if k > 8 else 12.0 * SD)
    starts = np.concatenate([[0, 0], np.sort(generator.integers(1000, 9 * ROWS // 10, size=k - 2))])
    present = np.searchsorted(starts, np.arange(ROWS), side="right")
    truth = generator.integers(present)
    return centres[truth] + SD * generator.standard_normal((ROWS, d)), truth


def come_go_move(generator: np.random.Generator, k: int, d: int) -> Drawn:
    """Each cluster is there for one or two spans of the stream; some move by ten standard
    deviations meanwhile."""
    centres = centres_apart(generator, k, d, 16.0 * SD if d > 2 else 13.0 * SD)
    at = np.arange(ROWS)
    there = np.zeros((ROWS, k), dtype=np.bool_)
    there[:, 0] = True
    for cluster in range(1, k):
        for _ in range(2):
            start = generator.integers(0, ROWS)
            length = generator.integers(ROWS // 6, ROWS // 2)
            there[(at >= start) & (at < start + length), cluster] = True
    truth = (generator.random((ROWS, k)) * there).argmax(axis=1)
    way = generator.standard_normal((k, d))
    way *= (np.arange(k) % 3 == 1)[:, None] * 5.0 * SD / np.linalg.norm(way, axis=1, keepdims=True)
    return (
        centres[truth]
        + (at / ROWS)[:, None] * way[truth]
        + SD * generator.standard_normal((ROWS, d)),
        truth,
    )


def scattered(generator: np.random.Generator, share: float, k: int, d: int) -> Drawn:
    """Blobs of different width, and a share of rows all over the place that belong to none of
    them."""
    centres = centres_apart(generator, k, d, 0.28)
    truth = generator.integers(k, size=ROWS)
    sd = generator.uniform(0.5 * SD, 1.2 * SD, size=k)
    rows = centres[truth] + sd[truth, None] * generator.standard_normal((ROWS, d))
    stray = generator.random(ROWS) < share
    return np.where(stray[:, None], generator.uniform(size=(ROWS, d)), rows), np.where(
        stray, -1, truth
    )


def clean(stream: Stream) -> Stream:
    """The same stream without its scattered rows."""
    kept = stream.truth >= 0
    return Stream(f"{stream.name}, clean", stream.family, stream.rows[kept], stream.truth[kept])


def whole_degrees(generator: np.random.Generator, d: int) -> Drawn:
    """Three states of sensors that report whole degrees."""
    truth = generator.integers(3, size=ROWS)
    levels = np.stack([generator.permutation([18.0, 40.0, 65.0]) for _ in range(d)], axis=1)
    return np.round(levels[truth] + 2.5 * generator.standard_normal((ROWS, d))), truth


def many(generator: np.random.Generator, k: int) -> Drawn:
    """Blobs of four features, ten standard deviations apart or more."""
    sd = 0.012
    centres = np.empty((0, 4))
    while len(centres) < k:
        centre = generator.uniform(0.1, 0.9, size=4)
        if len(centres) == 0 or np.linalg.norm(centres - centre, axis=1).min() >= 10.0 * sd:
            centres = np.concatenate([centres, centre[None]])
    truth = generator.integers(k, size=MANY_ROWS)
    return centres[truth] + sd * generator.standard_normal((MANY_ROWS, 4)), truth


def overlap(generator: np.random.Generator, k: int, d: int) -> Drawn:
    """Blobs in a row, each four standard deviations from the next."""
    centres = np.zeros((k, d))
    centres[:, 0] = 4.0 * np.arange(k)
    truth = generator.integers(k, size=ROWS)
    return centres[truth] + generator.standard_normal((ROWS, d)), truth


def lines(generator: np.random.Generator) -> Drawn:
    """Four parallel lines, each forty times as long as wide and eight widths from the next."""
    truth = generator.integers(4, size=ROWS)
    along = generator.uniform(0.0, 40.0, size=ROWS)
    across = generator.standard_normal(ROWS)
    rows = np.stack([along, 8.0 * truth + across], axis=1)
    angle = generator.uniform(0.0, np.pi)
    turned = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return rows @ turned, truth


def three_rings(generator: np.random.Generator) -> Drawn:
    """Three rings of equal density along them, around one another."""
    truth = generator.choice(3, size=ROWS, p=np.array([1.0, 2.0, 3.0]) / 6.0)
    angle = generator.uniform(0.0, 2.0 * np.pi, size=ROWS)
    radius = 1.0 + truth + 0.12 * generator.standard_normal(ROWS)
    return radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1), truth


def hollow(generator: np.random.Generator, d: int) -> Drawn:
    """Clusters each feature of which has two values around its middle, so that no reading is near
    the middle."""
    centres = centres_apart(generator, 4, d, 0.8)
    truth = generator.integers(4, size=ROWS)
    sign = generator.choice([-1.0, 1.0], size=(ROWS, d))
    return centres[truth] + 0.03 * sign + 0.015 * generator.standard_normal((ROWS, d)), truth


def bursts(generator: np.random.Generator, length: int) -> Drawn:
    """Five blobs; from time to time a sensor repeats a reading, nearly, `length` times."""
    centres = centres_apart(generator, 5, 3, 0.25)
    truth = generator.integers(5, size=ROWS)
    rows = centres[truth] + SD * generator.standard_normal((ROWS, 3))
    for start in np.sort(
        generator.integers(500, ROWS - length, size=max(3, 1500 // length))
    ).tolist():
        held = slice(start, start + length)
        rows[held] = rows[start] + 0.001 * generator.standard_normal((length, 3))
        truth[held] = truth[start]
    return rows, truth


def digits(generator: np.random.Generator) -> Drawn:
    """1 797 handwritten digits of 64 features, which scikit-learn has, in an order of no
    meaning."""
    rows, truth = load_digits(return_X_y=True)
    order = generator.permutation(len(rows))
    return rows[order].astype(np.float64), truth[order].astype(np.int64)


def dependent(generator: np.random.Generator, d: int) -> Drawn:
    """One cluster whose readings wander: each is 0.999 of the one before, and noise."""
    rows = np.empty((ROWS, d))
    at = generator.standard_normal(d)
    step = np.sqrt(1.0 - 0.999**2) * generator.standard_normal((ROWS, d))
    for number in range(ROWS):
        at = 0.999 * at + step[number]
        rows[number] = at
    return rows, np.zeros(ROWS, dtype=np.int64)
