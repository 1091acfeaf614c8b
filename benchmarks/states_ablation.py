"""What each ingredient of `States` is worth: the same streams with one of them switched off.

Ingredients are no settings of the library. Here functions of its modules are replaced while a
stream is looked at again; what a client keeps and the states that return are found once.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import click
import numpy as np
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

from benchmarks.results import table
from shoal.algorithms.states import StateLearner, axes, learner, tiles, views
from shoal.algorithms.states.axes import AXES, covariance_of_changes
from shoal.algorithms.states.blocks import BlockMemory
from shoal.algorithms.states.returns import Returning, find_returning
from shoal.algorithms.states.segments import Thresholds
from shoal.algorithms.states.tiles import KERNEL_SETS, TileFeatures, TileMemory
from shoal.algorithms.states.views import DEFAULT, Sureness, View
from shoal.kernels.arrays import Floats, Ints

SOURCES: Final = ("TSSB odd", "SKAB odd", "own", "null")
"""mean AMI of the first two, mean adjusted Rand index of own streams, and streams without states
that were taken for several"""
KERNELS: Final = (2, 4, 8, 16, 32)
"""kernels of a set that a column has, at least; 2 is what the library has"""
HEADS: Final = {
    "TSSB odd": "TSSB odd, AMI",
    "SKAB odd": "SKAB odd, AMI",
    "own": "own streams, ARI",
    "null": "false states",
}
NONE: Final = 1e-9
"""a threshold that every boundary reaches"""

Replaced = tuple[Any, str, Any]
"""a module or class, the name of what is replaced in it, and what takes its place"""


class Stream(NamedTuple):
    """Rows (n, d) of a source, and the true state of each (n,)."""

    source: str
    rows: Floats
    truth: Ints


class Ingredient(NamedTuple):
    """What is switched off, and how."""

    name: str
    replaced: tuple[Replaced, ...]


def _spread(values: Floats) -> Floats:
    """Units of features by their whole spread, in place of their own change."""
    unit: Floats = values.std(axis=0) + 1e-6
    return unit


def _principal_directions(reduced: Floats) -> Floats:
    """The first principal components, each in units of its own change from tile to tile."""
    gaps = reduced - reduced.mean(axis=0)
    _, vectors = np.linalg.eigh(gaps.T @ gaps)
    directions: Floats = vectors[:, ::-1][:, :AXES]
    change = np.diag(covariance_of_changes(reduced @ directions))
    return directions / np.sqrt(np.maximum(change, 1e-12))


def _features(kept: Callable[[TileMemory, TileFeatures], TileFeatures]) -> tuple[Replaced, ...]:
    """Features of tiles of which some are left out."""
    whole = TileMemory.features
    return ((TileMemory, "features", lambda memory: kept(memory, whole(memory))),)


def _without_lagged(memory: TileMemory, found: TileFeatures) -> TileFeatures:
    d = memory.width
    end = d + d * len(memory.lags)
    second = np.concatenate([found.second[:, :d], found.second[:, end:]], axis=1)
    return found._replace(second=second)


def _without_correlations(memory: TileMemory, found: TileFeatures) -> TileFeatures:
    end = memory.width * (1 + len(memory.lags))
    return found._replace(second=found.second[:, :end])


def _without_signs(memory: TileMemory, found: TileFeatures) -> TileFeatures:
    # One feature that never varies is left out by the axes.
    nothing = np.zeros((len(found.level), 1))
    return found._replace(signs=(nothing,) * KERNEL_SETS)


def _without_test(**thresholds: float) -> tuple[Replaced, ...]:
    """Tests of boundaries of which one passes always."""

    def changed(known: Thresholds) -> Thresholds:
        return known._replace(**thresholds)

    sureness = Sureness(changed(DEFAULT.rhythm), changed(DEFAULT.level))
    return ((learner, "best_view", lambda found, _: views.best_view(found, sureness)),)


def _one_state(found: TileFeatures, sureness: Sureness) -> View:
    view = views.best_view(found, sureness)
    return view._replace(state=np.zeros_like(view.state))


def _one_state_of_long(found: TileFeatures) -> View:
    view = views.view_of_long(found)
    return view._replace(state=np.zeros_like(view.state))


def _rhythm_alone(found: TileFeatures, sureness: Sureness) -> View:
    return views.voted_view(found, False, sureness)


def _level_alone(found: TileFeatures, sureness: Sureness) -> View:
    return views.voted_view(found, True, sureness)


def _no_returns(memory: BlockMemory, window: int) -> Returning | None:
    return None


NO_LONG_WINDOWS: Final = (learner, "view_of_long", _one_state_of_long)
INGREDIENTS: Final = (
    Ingredient("whole", ()),
    Ingredient("own scale: spread in its place", ((axes, "own_change", _spread),)),
    Ingredient("squared lagged differences", _features(_without_lagged)),
    Ingredient("random kernels", _features(_without_signs)),
    Ingredient("correlations", _features(_without_correlations)),
    Ingredient("axes: principal components", ((axes, "slow_directions", _principal_directions),)),
    Ingredient("view with the level", ((learner, "best_view", _rhythm_alone),)),
    Ingredient("view without the level", ((learner, "best_view", _level_alone),)),
    Ingredient("vote of three sets of kernels", ((views, "KERNEL_SETS", 1),)),
    Ingredient("test: significance", _without_test(significance=NONE)),
    Ingredient("test: each side stays", _without_test(separation=NONE)),
    Ingredient("test: the jump", _without_test(jump=NONE)),
    Ingredient("test: held out", _without_test(held_out=NONE)),
    Ingredient("test: abrupt", _without_test(abrupt=0.0)),
    Ingredient("in its place: sides stay", _without_test(wander=0.0)),
    Ingredient("longer windows beside", (NO_LONG_WINDOWS,)),
    Ingredient("segments", ((learner, "best_view", _one_state), NO_LONG_WINDOWS)),
    Ingredient("returns", ((learner, "find_returning", _no_returns),)),
)
LONGER: Final = 4
"""times as long a window, as a variant of its own"""


def learnt(rows: Floats, window: int | None = None) -> StateLearner:
    """A learner of a whole stream, as `States.fit` has it."""
    known = StateLearner(rows.shape[1], window=window, length=len(rows))
    known.learn_whole(rows)
    return known


def variants_of(rows: Floats) -> Iterator[tuple[str, Ints]]:
    """The name of each variant, and the states (n,) that it finds in rows (n, d)."""
    known = learnt(rows)
    returning: list[Returning | None] = []

    def remembered(memory: BlockMemory, window: int) -> Returning | None:
        if not returning:
            returning.append(find_returning(memory, window))
        return returning[0]

    for ingredient in INGREDIENTS:
        again = copy.copy(known)
        again.runs = np.empty((0, 3), dtype=np.int64)
        with ExitStack() as stack:
            stack.enter_context(patch.object(learner, "find_returning", remembered))
            for owner, name, replacement in ingredient.replaced:
                stack.enter_context(patch.object(owner, name, replacement))
            again.evaluate()
        yield ingredient.name, again.labels(0, len(rows))
    longer = learnt(rows, LONGER * (known.memory.window or 1))
    yield f"window of {LONGER} times the length", longer.labels(0, len(rows))


def score(source: str, truth: Ints, found: Ints) -> float:
    """What counts on a stream of this source."""
    if source == "null":
        return float(len(np.unique(found)) > 1)
    if source == "own":
        return float(adjusted_rand_score(truth, found))
    return float(adjusted_mutual_info_score(truth, found))


def measure_ablation(streams: Sequence[Stream]) -> list[dict[str, Any]]:
    """The scores of each variant on each source, in the order of the streams."""
    scores: dict[str, dict[str, list[float]]] = {}
    for place, stream in enumerate(streams):
        for name, found in variants_of(stream.rows):
            of_source = scores.setdefault(name, {}).setdefault(stream.source, [])
            of_source.append(score(stream.source, stream.truth, found))
        click.echo(f"ablation: {place + 1} of {len(streams)} streams")
    return [{"without": name, "scores": by_source} for name, by_source in scores.items()]


def measure_kernels(streams: Sequence[Stream]) -> Iterator[dict[str, Any]]:
    """The same by the least number of kernels of a column, and what a reading costs."""
    for count in KERNELS:
        scores: dict[str, list[float]] = {}
        seconds = 0.0
        values = 0
        with patch.object(tiles, "KERNELS_OF_COLUMN", count):
            for stream in streams:
                begun = time.process_time()
                memory = TileMemory(stream.rows.shape[1], length=len(stream.rows))
                memory.add(stream.rows)
                seconds += time.process_time() - begun
                values += stream.rows.size
                found = learnt(stream.rows).labels(0, len(stream.rows))
                of_source = scores.setdefault(stream.source, [])
                of_source.append(score(stream.source, stream.truth, found))
        line = {"kernels": count, "scores": scores, "us_per_value": 1e6 * seconds / values}
        click.echo(f"{count} kernels of a column: {', '.join(_entries(scores))}")
        yield line


def _entries(scores: Mapping[str, Sequence[float]]) -> list[str]:
    entries = []
    for source in SOURCES:
        if source not in scores:
            continue
        found = scores[source]
        if source == "null":
            entries.append(f"{sum(found):.0f} of {len(found)}")
        else:
            entries.append(f"{np.mean(found):.3f}")
    return entries


def ablation_page(cells: Sequence[dict[str, Any]]) -> str:
    """The section of the page."""
    if not cells:
        return ""
    sources = [source for source in SOURCES if source in cells[0]["scores"]]
    counts = ", ".join(f"{source} {len(cells[0]['scores'][source])}" for source in sources)
    return (
        "\n## What each ingredient is worth\n\nThe same streams with one ingredient switched off,"
        f" in this benchmark alone ({counts}). Streams without states are of one column, one of"
        f" each kind and seed, on seeds of their own.\n\n{ablation_table(cells)}"
    )


def ablation_table(cells: Sequence[dict[str, Any]]) -> str:
    """What is left of each figure without each ingredient."""
    sources = [source for source in SOURCES if source in cells[0]["scores"]]
    lines = [[cell["without"], *_entries(cell["scores"])] for cell in cells]
    return table(["without", *(HEADS[source] for source in sources)], lines)


def kernels_page(cells: Sequence[dict[str, Any]]) -> str:
    """The section of the page."""
    if not cells:
        return ""
    sources = [source for source in SOURCES if source in cells[0]["scores"]]
    counts = ", ".join(f"{source} {len(cells[0]['scores'][source])}" for source in sources)
    lines = [
        [str(cell["kernels"]), *_entries(cell["scores"]), f"{cell['us_per_value']:.1f}"]
        for cell in cells
    ]
    head = ["kernels", *(HEADS[source] for source in sources), "us a value"]
    return (
        "\n## Random kernels of a column\n\nStreams of several columns by the kernels of a set that"
        f" a column has at least ({counts}); the library has 2, and 16 of all columns together."
        f" Processor time of a value is that of its sums.\n\n{table(head, lines)}"
    )
