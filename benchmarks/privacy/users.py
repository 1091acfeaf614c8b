"""Counted readings until density_tree finds clusters, where a user is the privacy unit.

`python -m benchmarks privacy.users` simulates clients that count one reading of each of their users
in a window, with noise of their own, and a server of density_tree. `shoal init` refuses by its
figures: a user spends epsilon once a window, so that few windows have to be enough.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy as np
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.machine import facts, one_line
from benchmarks.privacy.masked import CHOOSING, REPORTING, Clusters, Scheme
from benchmarks.results import out_option, quick_option, table, write
from shoal.algorithms.density_tree import DENSITY_TREE
from shoal.algorithms.streaming import Contribution
from shoal.privacy.count_noise import CountMechanism, count_noise
from shoal.privacy.keyed import SOURCE_BYTES
from shoal.simulation.masked import SumBudget

EPSILON: Final = 4.0
SHAPES: Final = ((2, 5), (8, 5))
"""features and clusters"""
PLACES: Final = 1440
"""places of a window: a reading a minute, for a day"""
WINDOWS: Final = 2
"""windows of each client: more would cost a user more than `shoal check` advises"""
USERS: Final = (10, 100)
"""users of a client in a full window, of each of whom one reading is counted"""
COUNTED: Final = (3_000, 6_000, 12_000, 24_000)
"""users of all clients together, times windows"""
SEEDS: Final = 3
GOAL: Final = 0.95
"""adjusted Rand index from which on clusters are called found, as in `benchmarks.privacy.masked`"""
FIRST_WINDOW_PART: Final = 8
"""the first window of a client has at least one part in this many of a full one, as in the
service"""
SNAPSHOTS_PER_WINDOW: Final = 50
"""snapshots that clients read in the time of a window"""


class Case(NamedTuple):
    """One federation: its clients have as many windows, and in each as many users."""

    d: int
    k: int
    users: int
    windows: int
    counted: int

    @property
    def clients(self) -> int:
        """Clients that have so many users and windows together."""
        return max(1, self.counted // (self.users * self.windows))


class Window(NamedTuple):
    """A window of one client."""

    closes: float
    """time at which it closes, in windows since the clients have begun"""
    client: int
    number: int
    users: int


def windows_of(case: Case) -> list[Window]:
    """All windows in the order in which they close. As in the service, the first of a client is
    shorter, by a public phase, so that clients do not all count under the same plan."""
    windows = []
    for client in range(case.clients):
        digest = hashlib.sha256(f"client-{client}".encode()).digest()
        phase = int.from_bytes(digest[:4], "little") % PLACES / PLACES
        first = max(phase, 1.0 / FIRST_WINDOW_PART)
        for number in range(case.windows):
            share = first if number == 0 else 1.0
            users = max(1, round(case.users * share))
            windows.append(Window(first + number, client, number, users))
    return sorted(windows)


def agreement(case: Case, seed: int) -> float:
    """Adjusted Rand index of the clusters that are found after the last window."""
    scheme = Scheme("", case.clients, SumBudget(None), window=case.users)
    stream = Clusters(seed, case.d, case.k, scheme)
    readings = []
    for _ in range(case.windows):
        rows, _ = stream.round()
        readings.append(rows.reshape(case.clients, case.users, case.d))
    noise = count_noise(EPSILON)
    # The tree is changed about as often as clients read it: more often takes most of the time.
    grow_readings = max(2000, case.clients * PLACES // SNAPSHOTS_PER_WINDOW)
    options = {
        "noise_variance": noise.variance,
        "window_readings": PLACES,
        "grow_readings": grow_readings,
    }
    counter = DENSITY_TREE.counter(options, case.d)
    server = DENSITY_TREE.server(options, case.d)
    key = np.random.default_rng(seed).bytes(32)
    read_at = -1
    for window in windows_of(case):
        snapshot = int(window.closes * SNAPSHOTS_PER_WINDOW)
        if snapshot != read_at:
            counter.adopt(server.snapshot())
            read_at = snapshot
        rows = np.full((PLACES, case.d), 0.5)
        rows[: window.users] = readings[window.number][window.client, : window.users]
        valid = np.arange(PLACES) < window.users
        name = f"client-{window.client}"
        counted = counter.count(rows, valid, name.encode(), window.number)
        mechanism = CountMechanism(noise, key, name, bytes(SOURCE_BYTES), DENSITY_TREE.name)
        places = (window.number, window.number * PLACES, (window.number + 1) * PLACES - 1)
        private = mechanism.release(counted.counts, places, counter.plan_digest)
        server.absorb([Contribution(name, window.number, counted.update(private))], key)
    found = server.predict(stream.test[0])
    return float(adjusted_rand_score(stream.test[1], found))


def measured(cases: Sequence[Case], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The index of each case on each seed."""
    cells = []
    for case in cases:
        with threadpool_limits(limits=1), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            ari = [round(agreement(case, seed), 4) for seed in seeds]
        cells.append({**case._asdict(), "clients": case.clients, "ari": ari})
        click.echo(f"{case}: {np.mean(ari):.2f}, at least {min(ari):.2f}")
    return cells


def text_of(cells: Sequence[dict[str, Any]], seeds: Sequence[int], machine: dict[str, Any]) -> str:
    """The results for people."""
    lines = []
    for cell in cells:
        ari = cell["ari"]
        lines.append(
            [
                f"{cell['d']}",
                f"{cell['clients']}",
                f"{cell['users']}",
                f"{cell['counted']:,}",
                f"{np.mean(ari):.2f} ({min(ari):.2f})",
            ]
        )
    head = ["features", "clients", "users of a window", "counted readings", "index"]
    return (
        "# Clusters where a user is the privacy unit\n\n"
        f"Adjusted Rand index of five Gaussian clusters that lie apart, found by density_tree after"
        f" {WINDOWS} windows of each client, of whose users one reading each is counted, at an"
        f" epsilon of {EPSILON:g} of a user and window: mean of {len(seeds)} streams (and the"
        f" least). {GOAL:g} counts as found. *Counted readings* are users of all clients times"
        " windows; the first window of a client is shorter, and has fewer.\n\n"
        f"{table(head, lines)}\n"
        f"`python -m benchmarks privacy.users`. {one_line(machine)}\n"
    )


@click.command()
@quick_option("One small federation")
@click.option(
    "--choosing", is_flag=True, help="What `shoal init` refuses by, on the seeds for choosing."
)
@out_option("privacy_users")
def main(quick: bool, choosing: bool, out: Path) -> None:
    """Measure what counts of users find. A full run takes about ten minutes of one core."""
    started = time.monotonic()
    seeds: Sequence[int] = (CHOOSING if choosing else REPORTING)[:SEEDS]
    cases = [
        Case(d, k, users, WINDOWS, counted)
        for users in USERS
        for d, k in SHAPES
        for counted in COUNTED
    ]
    if quick:
        seeds = seeds[:1]
        cases = [Case(2, 3, 20, WINDOWS, 400)]
    cells = measured(cases, seeds)
    machine = facts(("shoal", "numpy"))
    results = {
        "seconds": round(time.monotonic() - started, 1),
        "machine": machine,
        "seeds": list(seeds),
        "epsilon": EPSILON,
        "places": PLACES,
        "cells": cells,
    }
    write(out, "privacy_users", results, text_of(cells, seeds, machine))


if __name__ == "__main__":
    main()
