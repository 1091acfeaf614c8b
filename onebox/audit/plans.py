"""The audit of plans made to hurt: whether one reading moves others under any plan that a client
takes.

A server may ask about any tree. What protects a reading is that, whatever it is, no other reading
falls into another cell: then two windows that differ in one reading have true counts at an L1
distance of 2 at most, which is what the noise is made for. So counters get plans in which readings
lie on boundaries, and whose numbers are equal, or at the ends of what a float holds, and count
windows that differ in one reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from shoal.algorithms.counting import Counter
from shoal.algorithms.density_tree.arrays import SHARE_ONE
from shoal.algorithms.density_tree.axes import Axes
from shoal.algorithms.density_tree.leaf import NO_ZOOM
from shoal.algorithms.density_tree.plan import PLAN_ARRAYS, leaf_words
from shoal.algorithms.streaming import Arrays, Contribution
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.errors import InvalidData
from shoal.kernels.arrays import Bools, Floats
from shoal.onebox.audit.client import NAME
from shoal.onebox.audit.statistics import EventFinding

CHANGED_MAX: Final = 2
"""L1 distance of the true counts of two windows that differ in one reading, at most"""
LEAVES: Final = 64
"""leaves of the tree whose masses are laid on the shares of readings"""
WINDOWS_ON_SHARES: Final = 8
"""such trees that are tried, each for a window of its own"""
READINGS_CHANGED: Final = 20
"""readings of a window that are changed, one at a time"""
LEARNT_WINDOWS: Final = 12
"""windows after which a server has a tree whose numbers are made to hurt"""
NUMBERS: Final = (0.0, 5e-324, 2.0**-1022, 1.0, 2.0**53, 1e300)
"""numbers put into a plan: the least ones that a float holds, and large ones that others are lost
beside"""
PLACES: Final = (0.0, 5e-324, 2.0**-53, 0.25, 0.5, np.nextafter(0.5, 0.0), 1.0 - 2.0**-53, 1.0)
"""places at which readings lie, as bins and cuts do"""


def audit_plans(
    contract: ResolvedContract, model: ResolvedModel, generator: np.random.Generator
) -> EventFinding:
    """Count windows that differ in one reading under every plan of `plans_made_to_hurt`."""
    assert model.counts is not None
    counter: Counter = model.counts.algorithm.counter(model.options, contract.width)
    name = NAME.encode() + b"\0" + model.name.encode()
    size = contract.contract.privacy.window_readings
    gaps = contract.learns_gaps and contract.width > 1
    plans = moved = 0
    for number, plan in plans_made_to_hurt(model, contract.width, size, name, generator):
        try:
            counter.adopt(plan)
        except InvalidData:
            continue
        plans += 1
        window, valid = window_on_boundaries(size, contract.width, gaps, generator)
        places = range(0, size, max(1, size // READINGS_CHANGED))
        changed = most_changed(counter, window, valid, (name, number), places, generator)
        moved += changed > CHANGED_MAX
    return EventFinding(
        "plans made to hurt",
        model.name,
        plans,
        "plans",
        moved,
        "under which one reading moves others",
    )


def plans_made_to_hurt(
    model: ResolvedModel, d: int, size: int, client: bytes, generator: np.random.Generator
) -> Iterator[tuple[int, Arrays]]:
    """Snapshots, each for a window of `size` readings of a client with this number.

    They are those of a server that has learnt, with numbers that hurt, and for density_tree some
    with masses on the shares of readings. Counters refuse some of them, as they refuse every plan
    that cannot be one.
    """
    assert model.counts is not None
    if d > 1 and set(PLAN_ARRAYS) <= set(model.counts.algorithm.snapshot):
        for number in range(WINDOWS_ON_SHARES):
            yield number, plan_on_shares(d, client, number, size)
    yield from enumerate(hurt(_learnt(model, d, size, generator)))


def hurt(learnt: Arrays) -> Iterator[Arrays]:
    """A snapshot, and those in which numbers of one array are `NUMBERS`."""
    yield learnt
    for name, values in learnt.items():
        if values.dtype.kind != "f" or not values.size:
            continue
        for number in NUMBERS:
            yield {**learnt, name: np.full_like(values, number)}
            # Every other one: what is small is lost beside what is large.
            mixed = values.copy()
            mixed.reshape(-1)[::2] = number
            yield {**learnt, name: mixed}


def plan_on_shares(d: int, client: bytes, number: int, size: int) -> Arrays:
    """A plan of density_tree for d > 1 features, under which readings that lack the first one lie
    on boundaries between leaves.

    All cuts are of the first feature, so that such a reading may fall into every leaf. The masses
    of the leaves add up to the shares by which 63 readings of window `number` of a client draw
    their leaves; the shares are public.
    """
    words = np.unique(leaf_words(client, number, size))[: LEAVES - 1]
    leaves = len(words) + 1
    ends = np.concatenate([[0], words.astype(np.int64), [2**32]])
    cuts = leaves - 1
    cut_axes = Axes.features(d).take(np.zeros(cuts, dtype=np.int64))
    # The feature that is counted is another one than that of the cuts.
    counted = Axes.features(d).take(np.ones(leaves, dtype=np.int64))
    parts = np.stack([-1 - np.arange(cuts), 1 + np.arange(cuts)], axis=1)
    parts[-1, 1] = -leaves
    whole = np.zeros(leaves, dtype=np.int64)
    return {
        **cut_axes.arrays("cut"),
        "cut_at": (1.0 + np.arange(cuts)) / leaves,
        "cut_parts": parts,
        "leaf_id": np.arange(leaves),
        "axis_leaf": np.arange(leaves),
        **counted.arrays("axis"),
        "axis_start": np.zeros(leaves),
        "axis_end": np.ones(leaves),
        "axis_zoom": np.full(leaves, NO_ZOOM, dtype=np.int64),
        "axis_span": whole,
        "axis_epoch": whole,
        "axis_share": np.full(leaves, SHARE_ONE, dtype=np.int64),
        "mass": np.diff(ends).astype(np.float64),
        "counted": np.diff(ends).astype(np.float64),
        "leaf_centre": np.full((leaves, d), 0.5),
        "leaf_low": np.full((leaves, d), 0.25),
        "leaf_high": np.full((leaves, d), 0.75),
    }


def window_on_boundaries(
    size: int, d: int, gaps: bool, generator: np.random.Generator
) -> tuple[Floats, Bools]:
    """Readings (size, d) of one window, in unit coordinates, and which of them are valid.

    They lie where bins and cuts end. With `gaps` most lack the first feature, and some another one.
    """
    window = generator.choice(np.array(PLACES), size=(size, d))
    if gaps:
        window[generator.random(size) < 0.9, 0] = np.nan
        window[generator.random(size) < 0.1, 1] = np.nan
    return window, generator.random(size) < 0.95


def most_changed(
    counter: Counter,
    window: Floats,
    valid: Bools,
    named: tuple[bytes, int],
    places: Iterable[int],
    generator: np.random.Generator,
) -> int:
    """The largest L1 distance between the true counts of a window and of those in which the reading
    at one of `places` is another one, or rejected.

    `named`: the public name of the client, and the number of the window.
    """
    before = counter.count(window, valid, *named).counts
    most = 0
    for place in places:
        changed = window.copy()
        also_valid = valid.copy()
        changed[place] = generator.random(window.shape[1])
        also_valid[place] = not valid[place] or bool(generator.integers(2))
        after = counter.count(changed, also_valid, *named).counts
        most = max(most, int(np.abs(after - before).sum()))
    return most


def _learnt(model: ResolvedModel, d: int, size: int, generator: np.random.Generator) -> Arrays:
    """The snapshot of a server that has learnt some windows of two clusters, without noise."""
    assert model.counts is not None
    algorithm = model.counts.algorithm
    server = algorithm.server(model.options, d)
    counter = algorithm.counter(model.options, d)
    for number in range(LEARNT_WINDOWS):
        side = generator.integers(2, size=(size, 1))
        rows = 0.25 + 0.5 * side + generator.normal(0.0, 0.02, (size, d))
        counted = counter.count(rows, np.ones(size, dtype=np.bool_), b"learnt", number)
        server.absorb([Contribution("learnt", number + 1, counted.update(counted.counts))], b"")
        counter.adopt(server.snapshot())
    return server.snapshot()
