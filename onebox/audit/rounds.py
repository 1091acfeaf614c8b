"""The audit of models in rounds: rows reconstructed from the centres that successive rounds
publish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shoal.algorithms.streaming import Arrays
from shoal.config.contract import Rounds
from shoal.config.resolved import ResolvedModel
from shoal.config.settings import Config
from shoal.kernels.arrays import Floats
from shoal.onebox.audit.client import NAME, NOW, AuditedClient, in_folder
from shoal.onebox.audit.statistics import Loss, LossFinding, loss_from_guesses
from shoal.onebox.federation import OneBox
from shoal.privacy.base import RowRange
from shoal.protocol.lease import is_for_servers
from shoal.protocol.messages import Snapshot
from shoal.transports import open_log
from shoal.transports.base import beginning

TOLERANCE = 1e-6
"""unit coordinates within which sums, and rows, count as equal"""


class Round(NamedTuple):
    """The publication of one round."""

    centre: Floats
    """centres (k, d) that rows were assigned to"""
    weight: Floats
    """number of rows (k,) of each"""
    total: Floats
    """sums (k, d) of the rows"""


def reconstruct(rounds: Sequence[Round], box: RowRange) -> Floats:
    """The rows (m, d) that follow from rounds over one set of rows, of one model or of several.

    `box`: where rows can lie at all, by the contract.
    """
    left = [
        Round(request.centre, request.weight.copy(), request.total.copy()) for request in rounds
    ]
    found: list[Floats] = []
    while (row := next((row for row in _alone(left) if _fits(left, box, row)), None)) is not None:
        found.append(row)
        for other in left:
            cluster = _nearest(other.centre, row)
            # Taken out of every round: a row that is known may leave another one alone in its
            # cluster.
            other.weight[cluster] -= 1
            other.total[cluster] -= row
    # With this shape also where none was found.
    return np.array(found).reshape(-1, len(box.low))


def audit_reconstruction(found: Floats, members: Floats, decoys: Floats) -> Loss:
    """Guess which of two rows was learnt, a member (n, d) or its decoy, where one was found and the
    other was not.

    Members are those of the rows learnt; a decoy is another row that could have been in its place.
    """
    seen = [_is_found(found, rows) for rows in (members, decoys)]
    guessed = seen[0] != seen[1]
    return loss_from_guesses(len(members), int(guessed.sum()), int(seen[0][guessed].sum()))


def _alone(rounds: Sequence[Round]) -> Iterator[Floats]:
    """Rows that are a cluster, or that moved alone between two rounds with equally many
    clusters."""
    for request in rounds:
        # Weights are sums of floats, so they are whole numbers up to rounding only.
        for cluster in np.flatnonzero(np.round(request.weight) == 1):
            yield request.total[cluster].copy()
    for before, after in combinations(rounds, 2):
        if before.weight.shape != after.weight.shape:
            continue
        more = np.round(after.weight - before.weight)
        moved = after.total - before.total
        for gained in np.flatnonzero(more == 1):
            # The row that one cluster gained is the row that another one lost.
            opposite = np.abs(moved + moved[gained]).max(axis=1) < TOLERANCE
            if (opposite & (more == -1)).any():
                yield moved[gained].copy()


def _fits(rounds: Sequence[Round], box: RowRange, row: Floats) -> bool:
    """Whether the row lies in the box, and every round still has one in the cluster that is nearest
    to it."""
    inside = (row >= box.low - TOLERANCE).all() and (row <= box.high + TOLERANCE).all()
    return bool(inside) and all(
        request.weight[_nearest(request.centre, row)] > 0.5 for request in rounds
    )


def _nearest(centre: Floats, row: Floats) -> int:
    return int(((centre - row) ** 2).sum(axis=1).argmin())


def _is_found(found: Floats, rows: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    if not len(found):
        return np.zeros(len(rows), dtype=np.bool_)
    return np.asarray(np.abs(rows[:, None] - found[None]).max(axis=2).min(axis=1) < TOLERANCE)


READINGS = 60
"""readings of the client whose rows are sought"""
CORNERS = 8
"""clusters of its readings: they overlap, so that rows change their cluster from round to round"""
CLUSTERS = range(2, 15)
"""numbers of clusters of the models that run on the same rows: an operator may run as many models
"""
OPEN_ROUNDS = Rounds(between="fresh", tolerance=0.0, rows_min=1)
"""the settings with which rounds publish most: each the sums of its own answers, until none moves
the model"""

DEADLINES = 30
"""deadlines of rounds that pass"""


def audit_rounds(
    config: Config, model: ResolvedModel, folder: Path, generator: np.random.Generator
) -> LossFinding:
    """Reconstruct the readings of one client from what the rounds of k-means publish.

    Of each pair of readings the client has one, and the attacker guesses which.
    """
    models = [
        model.declared.model_copy(
            update={"name": f"{model.name}-{k}", "options": {"clusters": k}, "rounds": OPEN_ROUNDS}
        )
        for k in CLUSTERS
    ]
    audited = in_folder(config, folder, models)
    bounds = audited.resolved.bounds
    pairs = _overlapping(generator, 2 * READINGS, bounds.d).reshape(2, READINGS, bounds.d)
    with AuditedClient(audited) as client:
        client.publish(bounds.from_unit(pairs[0]))
    rounds = [request for snapshots in _published(audited) for request in _rounds(snapshots)]
    found = reconstruct(rounds, audited.resolved.mode.row_range())
    return LossFinding(
        "reconstruction from rounds",
        model.name,
        model.epsilon or 0.0,
        audit_reconstruction(found, *pairs),
    )


def _overlapping(generator: np.random.Generator, n: int, d: int) -> Floats:
    """(n, d) rows in unit coordinates, in clusters that overlap."""
    middle = generator.uniform(0.25, 0.75, size=(CORNERS, d))
    rows = middle[generator.integers(CORNERS, size=n)] + generator.normal(0.0, 0.1, size=(n, d))
    return np.clip(rows, 0.0, 1.0)


def _published(config: Config) -> list[list[Arrays]]:
    """Run the federation, and read what its snapshots publish, model by model.

    The topic keeps the newest of each model only, so it is read after every step.
    """
    now = [NOW]
    snapshots = dict[str, dict[int, Arrays]]()
    with OneBox(config, [NAME], lambda: now[0]) as box, closing(open_log(config.log)) as log:
        topic = config.contract.snapshots_topic
        positions = beginning(log, topic)
        for _ in range(DEADLINES):
            while box.step():
                records, positions = log.read(topic, positions)
                for record in records:
                    if record.value is not None and not is_for_servers(record):
                        snapshot = Snapshot.decode(record.value, record.headers)
                        snapshots.setdefault(snapshot.model, {})[snapshot.version] = snapshot.arrays
            now[0] += OPEN_ROUNDS.deadline_s
    return [[versions[number] for number in sorted(versions)] for versions in snapshots.values()]


def _rounds(snapshots: Sequence[Arrays]) -> list[Round]:
    """The centres of each round, and the rows found at them, as in the next snapshot."""
    return [
        Round(before["centre"], after["weight"], after["weight"][:, None] * after["centre"])
        for before, after in pairwise(snapshots)
    ]
