"""Means of states over clients that have levels of their own."""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.kernels.arrays import Floats, Ints

ROUNDS_MAX: Final = 100
"""passes in which levels and states are fitted to each other"""
ROUNDED: Final = 1e-9
"""change of a mean, in unit coordinates, below which another pass is of no use"""


def means_of_states(client: Ints, state: Ints, weight: Floats, mean: Floats) -> Floats:
    """The mean (k, d) of each state at a client of usual level, from m states of clients: client
    (m,) and state (m,) from 0, their readings (m,) above 0 and means (m, d).

    Least squares of mean = level of the client + state, by readings, one after the other. The plain
    mean of a state would follow which clients are in it for longest: where a client at a low level
    is mostly in the higher of two states, and one at a high level mostly in the lower, the higher
    state would have the lower mean. The usual level is that of the clients which share a state,
    directly or through others: the levels of further ones are not related to theirs. Of all states
    together the mean of their readings remains.
    """
    n_clients = int(client.max(initial=-1)) + 1
    k = int(state.max(initial=-1)) + 1
    d = mean.shape[1]
    by_client = _sums(weight[:, None], client, n_clients)
    by_state = _sums(weight[:, None], state, k)
    effect = np.zeros((k, d))
    level = np.zeros((n_clients, d))
    for _ in range(ROUNDS_MAX):
        level = _sums(weight[:, None] * (mean - effect[state]), client, n_clients) / by_client
        before = effect
        effect = _sums(weight[:, None] * (mean - level[client]), state, k) / by_state
        if np.abs(effect - before).max(initial=0.0) < ROUNDED:
            break
    group = groups_of(client, state)
    n_groups = int(group.max(initial=-1)) + 1
    of_group = _sums(weight[:, None] * level[client], group, n_groups)
    of_group /= _sums(weight[:, None], group, n_groups)
    usual = np.zeros((k, d))
    usual[state] = of_group[group]
    # A state that only clients of extreme levels have may come out beyond all readings.
    return np.clip(
        usual + effect, mean.min(axis=0, initial=np.inf), mean.max(axis=0, initial=-np.inf)
    )


def groups_of(client: Ints, state: Ints) -> Ints:
    """The number (m,) of the group that each state of a client is in: clients that share a state
    are in one."""
    group = np.arange(int(state.max(initial=-1)) + 1)
    while True:
        least = np.full(int(client.max(initial=-1)) + 1, len(group))
        np.minimum.at(least, client, group[state])
        joined = group.copy()
        np.minimum.at(joined, state, least[client])
        if np.array_equal(joined, group):
            return np.unique(group[state], return_inverse=True)[1].astype(np.int64)
        group = joined


def _sums(values: Floats, place: Ints, n: int) -> Floats:
    """values (m, d) added up at places (m,) -> (n, d), in their order."""
    total = np.zeros((n, values.shape[1]))
    np.add.at(total, place, values)
    return total
