"""How cluster_tree and peers do on streams as installations have them: labels as given, number,
changes.

A learner learns 100 rows at a time and labels each of them at once, as a service does: what it
names late is wrong until then.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, table, write
from benchmarks.steadiness.field_streams import clean, field
from benchmarks.steadiness.judge import Learner
from benchmarks.steadiness.learners import Recent, Shoal
from benchmarks.steadiness.streams import Maker, Stream
from shoal.estimators.cluster_tree import ClusterTree
from shoal.kernels.arrays import Floats, Ints

CHOOSING: Final = (100, 101, 102, 103)
"""seeds on which rules and numbers of cluster_tree were chosen"""
REPORTING: Final = (9301, 9302)
"""seeds of the published figures"""
UNTOUCHED: Final = (77_001, 77_002, 77_003)
"""seeds for a check after all was chosen: run once, but for noise, hollow clusters, tables and 200
clusters"""
BATCH_ROWS: Final = 100
WARM_ROWS: Final = 1000
"""rows whose labels are not judged"""
COUNT_EVERY: Final = 500
"""rows between two looks at the number"""
PEER_EVERY: Final = 500
"""rows after which a peer is fitted anew"""
COMPONENTS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
WINDOW_ROWS: Final = 2000


class Windowed:
    """A learner that is fitted anew after every `PEER_EVERY` rows, and not at each of the smaller
    steps."""

    def __init__(self, inside: Learner) -> None:
        self._inside = inside
        self._rows = np.empty((0, 0))
        self._has_learnt = False

    def learn(self, rows: Floats) -> None:
        self._rows = np.concatenate([self._rows, rows]) if self._rows.size else rows
        if len(self._rows) >= PEER_EVERY:
            self._inside.learn(self._rows)
            self._rows = self._rows[:0]
            self._has_learnt = True

    def predict(self, rows: Floats) -> Ints:
        return self._inside.predict(rows) if self._has_learnt else np.full(len(rows), -1)

    def count(self) -> int:
        return self._inside.count() if self._has_learnt else 0


class Mixture:
    """A Gaussian mixture of the last rows, with the number of components of the least BIC."""

    def __init__(self) -> None:
        self._rows: Floats | None = None

    def learn(self, rows: Floats) -> None:
        self._rows = (
            rows if self._rows is None else np.concatenate([self._rows, rows])[-WINDOW_ROWS:]
        )
        known = self._rows
        fits = [
            GaussianMixture(k, random_state=0, reg_covar=1e-8).fit(known)
            for k in COMPONENTS
            if k < len(known)
        ]
        self._model = min(fits, key=lambda fit: float(fit.bic(known)))

    def predict(self, rows: Floats) -> Ints:
        return np.asarray(self._model.predict(rows), dtype=np.int64)

    def count(self) -> int:
        return int(self._model.n_components)


NAMING_NOISE: Final = "cluster_tree, noise=True"
LEARNERS: Final[dict[str, Callable[[], Learner]]] = {
    "cluster_tree": lambda: Shoal(ClusterTree(clients=5)),
    NAMING_NOISE: lambda: Shoal(ClusterTree(clients=5, noise=True)),
    "HDBSCAN, last 2 000 rows": lambda: Windowed(Recent()),
    "GMM by BIC, last 2 000 rows": lambda: Windowed(Mixture()),
}


def judged(learner: Learner, stream: Stream) -> dict[str, Any]:
    """ARI of the labels as given and of the last labels of all rows, the number at the end, and its
    changes."""
    given = []
    counts = []
    n = len(stream.rows)
    started = time.process_time()
    for first in range(0, n, BATCH_ROWS):
        rows = stream.rows[first : first + BATCH_ROWS]
        learner.learn(rows)
        given.append(learner.predict(rows))
        if (first + BATCH_ROWS) % COUNT_EVERY == 0:
            counts.append(learner.count())
    took = time.process_time() - started
    labels = np.concatenate(given)
    late = slice(WARM_ROWS, None)
    settled = np.array(counts[WARM_ROWS // COUNT_EVERY - 1 :])
    return {
        "ari": float(adjusted_rand_score(stream.truth[late], labels[late])),
        "ari_end": float(adjusted_rand_score(stream.truth, learner.predict(stream.rows))),
        "true": len(np.unique(stream.truth[stream.truth >= 0])),
        "count": counts[-1],
        "changes": int((np.diff(settled) != 0).sum()) * 1000.0 / ((len(settled) - 1) * COUNT_EVERY),
        "took_s": round(took, 2),
    }


def runs(
    makers: dict[str, Maker], seeds: Sequence[int], learners: Sequence[str]
) -> list[dict[str, Any]]:
    """The verdict on each stream of each seed and learner; of scattered rows also on the stream
    without them."""
    found = []
    for seed in seeds:
        for make in makers.values():
            stream = make(seed)
            for variant in (stream, clean(stream)) if stream.family == "noise" else (stream,):
                for name in learners:
                    if name == NAMING_NOISE and stream.family != "noise":
                        continue
                    verdict = judged(LEARNERS[name](), variant)
                    of = {
                        "family": variant.family,
                        "stream": variant.name,
                        "seed": seed,
                        "learner": name,
                    }
                    found.append({**of, **verdict})
                    click.echo(f"{variant.name}, seed {seed}, {name}: {verdict}")
    return found


def markdown(result: dict[str, Any]) -> str:
    """The result as a page: each stream and learner, the mean of its seeds."""
    head = ["stream", "learner", "ARI as labelled", "ARI at the end", "clusters", "true", "changes"]
    lines = []
    verdicts = result["verdicts"]
    for stream, learner in dict.fromkeys(
        (verdict["stream"], verdict["learner"]) for verdict in verdicts
    ):
        own = [
            verdict
            for verdict in verdicts
            if (verdict["stream"], verdict["learner"]) == (stream, learner)
        ]
        means = [
            float(np.mean([verdict[name] for verdict in own]))
            for name in ("ari", "ari_end", "changes")
        ]
        counts = ", ".join(str(verdict["count"]) for verdict in own)
        figures = [
            f"{means[0]:.3f}",
            f"{means[1]:.3f}",
            counts,
            str(own[0]["true"]),
            f"{means[2]:.2f}",
        ]
        lines.append([stream, learner, *figures])
    return (
        f"# Streams as installations have them\n\nMade by `{result['made_by']}`; do not edit.\n\n"
        + table(head, lines)
        + f"\nSeeds {', '.join(map(str, result['seeds']))}. Rows are labelled when the {BATCH_ROWS}"
        f" with them have been learnt; the first {WARM_ROWS} are not judged. Changes: of the"
        " number shown, per 1 000 rows. Scattered rows are a class of their"
        f" own.\n\n{one_line(result['machine'])}\n"
    )


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--choosing", is_flag=True, help="The seeds for choosing instead of those for reporting."
)
@click.option("--ours", "ours_alone", is_flag=True, help="cluster_tree alone, without the peers.")
@click.option(
    "--peers-from",
    "earlier",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help=(
        "field.json of an earlier run, whose verdicts on the peers are kept: only cluster_tree is"
        " run."
    ),
)
@click.option("--stream", "wanted", multiple=True, help="Only streams whose name contains this.")
@out_option("field")
def main(
    choosing: bool, ours_alone: bool, earlier: Path | None, wanted: tuple[str, ...], out: Path
) -> None:
    """Measure how cluster_tree and peers do on streams with the difficulties of installations."""
    seeds = CHOOSING if choosing else REPORTING
    ours = [name for name in LEARNERS if name.startswith("cluster_tree")]
    learners = ours if ours_alone or earlier else list(LEARNERS)
    makers = {
        name: make
        for name, make in field().items()
        if not wanted or any(part in name for part in wanted)
    }
    machine = facts(("shoal", "numpy", "numba", "scikit-learn"))
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # raised within the peers
        warnings.simplefilter("ignore", (RuntimeWarning, UserWarning, FutureWarning))
        verdicts = runs(makers, seeds, learners)
    if earlier is not None:
        kept = json.loads(earlier.read_text(encoding="utf-8"))["verdicts"]
        verdicts += [
            verdict
            for verdict in kept
            if verdict["learner"] not in ours and verdict["seed"] in seeds
        ]
    made_by = (
        "python -m benchmarks steadiness.field" + " --choosing" * choosing + " --ours" * ours_alone
    )
    made_by += " --peers-from FILE" * (earlier is not None)
    result = {"made_by": made_by, "seeds": list(seeds), "machine": machine, "verdicts": verdicts}
    write(out, "field", result, markdown(result))
    click.echo(f"written to {out}/field.json and {out}/field.md")
