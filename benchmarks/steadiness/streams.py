"""Streams whose true clusters are known at every moment.

Every stream is a function of its seed. Rows of the synthetic ones lie roughly in the unit cube.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from shoal.kernels.arrays import Floats, Ints

ROWS = 10_000
APART = 10.0
"""standard deviations between two centres at least: separable, so that nothing but 1.00 is right"""


class Event(NamedTuple):
    """Something that changes the true clusters."""

    at: int
    """rows before it; 0 for a small cluster that is there from the beginning"""
    kind: str
    """"birth", "split", "merge" """
    label: int
    """the cluster that is new, or that is one with `other` from now on"""
    other: int = -1
    modes_at: int | None = None
    """rows before the density has another number of modes; None: as many as before the event"""


@dataclass(frozen=True)
class Stream:
    """Rows in their order, and what is true of them."""

    name: str
    family: str
    """"stationary", "changing", "sensor", "shuffled" or "repeated" """
    rows: Floats
    truth: Ints
    """(n,) cluster of each row when it came; of a sensor the class in the file, which need not be a
    cluster"""
    window: int | None = None
    """last rows that are judged; None: all so far"""
    events: tuple[Event, ...] = field(default=())


Maker = Callable[[int], Stream]


def stationary(size: int = ROWS) -> dict[str, Maker]:
    """Separable, and the same from the first row to the last."""
    made: dict[str, Maker] = {}

    def add(name: str, make: Callable[[np.random.Generator], tuple[Floats, Ints]]) -> None:
        made[name] = lambda seed: Stream(name, "stationary", *make(np.random.default_rng(seed)))

    for k, d in ((5, 2), (10, 2), (8, 4), (10, 8), (6, 16), (10, 64), (25, 2)):
        add(f"blobs K={k} d={d}", partial(blobs, n=size, k=k, d=d))
    add("moons", lambda g: moons(g, size))
    add("rings", lambda g: rings(g, size))
    add("scales x12", lambda g: scales(g, size))
    add("background 10 %", lambda g: background(g, size, 5, 2))
    made["small 1 %"] = lambda seed: small(seed, size)
    add("steps of 0.1", lambda g: coarse(g, size, 0.1))
    add("formal noise 400", lambda g: noisy(g, size, 400.0))
    add("formal noise 100", lambda g: noisy(g, size, 100.0))
    add("one blob", lambda g: blobs(g, size, 1, 4))
    add("uniform", lambda g: (g.uniform(size=(size, 2)), np.zeros(size, dtype=np.int64)))
    add("sojourns", lambda g: sojourns(g, size))
    return made


def changing(size: int = ROWS) -> dict[str, Maker]:
    """Clusters that come, go, part, meet and move."""
    return {
        "births": lambda seed: births(seed, size),
        "deaths": lambda seed: deaths(seed, size),
        "class by class d=2": lambda seed: class_by_class(seed, size, 2),
        "class by class d=8": lambda seed: class_by_class(seed, size, 8),
        "split": lambda seed: parting(seed, size, backwards=False),
        "merge": lambda seed: parting(seed, size, backwards=True),
        "drift": lambda seed: drift(seed, size),
    }


def centres_apart(generator: np.random.Generator, k: int, d: int, gap: float) -> Floats:
    """(k, d) in the unit cube, no two nearer than `gap`, drawn anew until that is so."""
    found: list[Floats] = []
    for _ in range(100_000):
        centre = generator.uniform(0.1, 0.9, size=d)
        if all(np.linalg.norm(centre - other) >= gap for other in found):
            found.append(centre)
        if len(found) == k:
            return np.array(found)
    raise ValueError(f"{k} centres {gap} apart do not fit")


def sd_for(k: int, d: int) -> float:
    """A standard deviation with which k blobs of d features have room."""
    return 0.012 if k > 10 else 0.02 if d < 16 else 0.03


def blobs(generator: np.random.Generator, n: int, k: int, d: int) -> tuple[Floats, Ints]:
    """Gaussian blobs of equal shares."""
    sd = sd_for(k, d)
    centres = centres_apart(generator, k, d, min(APART * sd, 0.25))
    truth = generator.integers(k, size=n)
    return centres[truth] + sd * generator.standard_normal((n, d)), truth


def moons(generator: np.random.Generator, n: int) -> tuple[Floats, Ints]:
    """Two half circles, each around an end of the other."""
    truth = generator.integers(2, size=n)
    angle = generator.uniform(0.0, np.pi, size=n)
    upper = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    lower = np.stack([1.0 - np.cos(angle), 0.5 - np.sin(angle)], axis=1)
    return np.where(truth[:, None] == 0, upper, lower) + 0.06 * generator.standard_normal(
        (n, 2)
    ), truth


def rings(generator: np.random.Generator, n: int) -> tuple[Floats, Ints]:
    """A ring around a ring around a blob."""
    truth = generator.integers(3, size=n)
    angle = generator.uniform(0.0, 2.0 * np.pi, size=n)
    rows = 0.5 * truth[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return rows + 0.04 * generator.standard_normal((n, 2)), truth


def scales(generator: np.random.Generator, n: int) -> tuple[Floats, Ints]:
    """Four blobs, the widest twelve times as wide as the narrowest."""
    truth = generator.integers(4, size=n)
    centres = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    sd = np.array([0.01, 0.023, 0.052, 0.12])
    return centres[truth] + sd[truth, None] * generator.standard_normal((n, 2)), truth


def background(generator: np.random.Generator, n: int, k: int, d: int) -> tuple[Floats, Ints]:
    """Blobs, and 10 % of uniform rows that belong to none: their label is -1 and they are not
    judged."""
    rows, truth = blobs(generator, n, k, d)
    stray = generator.random(n) < 0.1
    return np.where(stray[:, None], generator.uniform(size=(n, d)), rows), np.where(
        stray, -1, truth
    )


def unequal(generator: np.random.Generator, n: int) -> tuple[Floats, Ints]:
    """Five blobs; one has 1 % of the rows."""
    centres = centres_apart(generator, 5, 2, 0.25)
    truth = generator.choice(5, size=n, p=[0.4, 0.3, 0.2, 0.09, 0.01])
    return centres[truth] + 0.02 * generator.standard_normal((n, 2)), truth


def small(seed: int, n: int) -> Stream:
    """The same as a stream: how long until the small blob is shown?"""
    rows, truth = unequal(np.random.default_rng(seed), n)
    return Stream("small 1 %", "stationary", rows, truth, None, (Event(0, "birth", 4),))


def coarse(generator: np.random.Generator, n: int, step: float) -> tuple[Floats, Ints]:
    """Values with one digit after the point, a binary column and a constant one."""
    rows, truth = blobs(generator, n, 5, 2)
    return np.column_stack([np.round(rows * 20.0 / step) * step, truth % 2, np.full(n, 3.0)]), truth


def noisy(generator: np.random.Generator, n: int, epsilon: float) -> tuple[Floats, Ints]:
    """Readings made private one by one: Laplace noise of scale d / epsilon in the unit cube."""
    rows, truth = blobs(generator, n, 5, 2)
    return rows + generator.laplace(scale=2.0 / epsilon, size=rows.shape), truth


def sojourns(generator: np.random.Generator, n: int) -> tuple[Floats, Ints]:
    """A sensor that stays in one of four states for about 100 rows, each row near the one before
    (AR 0.9)."""
    centres = centres_apart(generator, 4, 3, 0.3)
    truth = np.empty(n, dtype=np.int64)
    at = 0
    shift = np.zeros(3)
    rows = np.empty((n, 3))
    for step in range(n):
        at = int(generator.integers(4)) if generator.random() < 0.01 else at
        shift = 0.9 * shift + np.sqrt(1.0 - 0.81) * generator.standard_normal(3)
        truth[step] = at
        rows[step] = centres[at] + 0.02 * shift
    return rows, truth


def births(seed: int, n: int) -> Stream:
    """Three blobs; a fourth after four tenths of the rows, a fifth after seven."""
    generator = np.random.default_rng(seed)
    centres = centres_apart(generator, 5, 2, 0.25)
    at = (4 * n // 10, 7 * n // 10)
    step = np.arange(n)
    truth = generator.integers(3 + (step >= at[0]) + (step >= at[1]))
    rows = centres[truth] + 0.02 * generator.standard_normal((n, 2))
    events = (Event(at[0], "birth", 3), Event(at[1], "birth", 4))
    return Stream("births", "changing", rows, truth, None, events)


def deaths(seed: int, n: int) -> Stream:
    """Five blobs; one has no rows from four tenths of the rows on, another from seven."""
    generator = np.random.default_rng(seed)
    centres = centres_apart(generator, 5, 2, 0.25)
    step = np.arange(n)
    truth = generator.integers(5 - (step >= 4 * n // 10).astype(int) - (step >= 7 * n // 10))
    return Stream(
        "deaths", "changing", centres[truth] + 0.02 * generator.standard_normal((n, 2)), truth
    )


def class_by_class(seed: int, n: int, d: int) -> Stream:
    """Five blobs, one after another, none coming back."""
    generator = np.random.default_rng(seed)
    truth = np.arange(n) * 5 // n
    rows = centres_apart(generator, 5, d, 0.25)[truth] + 0.02 * generator.standard_normal((n, d))
    events = tuple(Event(int(np.argmax(truth == label)), "birth", label) for label in range(1, 5))
    return Stream(f"class by class d={d}", "changing", rows, truth, None, events)


def parting(seed: int, n: int, backwards: bool) -> Stream:
    """A blob whose halves part slowly (or meet), beside two that stay. They are two while 6 sd
    apart.

    Their density has two modes while they are more than 2 sd apart.
    """
    generator = np.random.default_rng(seed)
    sd = 0.02
    half = generator.integers(4, size=n)
    gap = np.clip((np.arange(n) / n - 0.3) / 0.4, 0.0, 1.0) * 12.0 * sd
    gap = gap[::-1] if backwards else gap
    centres = np.array([[0.5, 0.5], [0.5, 0.5], [0.1, 0.1], [0.9, 0.1]])
    rows = centres[half] + sd * generator.standard_normal((n, 2))
    rows[:, 0] += np.where(half == 0, -0.5, np.where(half == 1, 0.5, 0.0)) * gap
    two = gap >= 6.0 * sd
    truth = np.where((half == 1) & ~two, 0, half)
    at, modes_at = (int(np.argmax(apart != apart[0])) for apart in (two, gap > 2.0 * sd))
    event = Event(at, "merge" if backwards else "split", 1, 0, modes_at)
    return Stream("merge" if backwards else "split", "changing", rows, truth, 500, (event,))


def drift(seed: int, n: int) -> Stream:
    """Four blobs that move by 20 standard deviations, each its own way, and stay apart."""
    generator = np.random.default_rng(seed)
    centres = np.array([[0.1, 0.1], [0.9, 0.1], [0.1, 0.9], [0.9, 0.9]])
    truth = generator.integers(4, size=n)
    way = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [-1.0, 0.0]])
    moved = (np.arange(n) / n)[:, None] * 0.4 * way[truth]
    return Stream(
        "drift",
        "changing",
        centres[truth] + moved + 0.02 * generator.standard_normal((n, 2)),
        truth,
        500,
    )


def shuffled(stream: Stream, seed: int) -> Stream:
    """The same rows in an order of no meaning."""
    order = np.random.default_rng(seed).permutation(len(stream.rows))
    return Stream(f"{stream.name}, shuffled", "shuffled", stream.rows[order], stream.truth[order])


def repeated(stream: Stream, seed: int, n: int) -> Stream:
    """n rows: the same ones again and again, each time in another order of no meaning."""
    generator = np.random.default_rng(seed)
    size = len(stream.rows)
    order = np.concatenate([generator.permutation(size) for _ in range(-(-n // size))])[:n]
    return Stream(f"{stream.name}, repeated", "repeated", stream.rows[order], stream.truth[order])


def every(makers: Sequence[dict[str, Maker]]) -> dict[str, Maker]:
    return {name: make for group in makers for name, make in group.items()}
