"""The states of a client's rows, by windows of successive ones, in the numbers of a snapshot."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.states.blocks import FLOOR, window_features
from shoal.algorithms.states.learner import StateLearner
from shoal.algorithms.states.summary import block_states
from shoal.algorithms.states.tiles import WindowFeatures
from shoal.algorithms.states.timeline import NO_STATE
from shoal.algorithms.streaming import Arrays, Rows
from shoal.kernels.arrays import Floats, Ints

DIAGONAL: Final = 0.1
"""share of the diagonal that is added to a covariance of windows"""


class Classifier(NamedTuple):
    """States by the mean of their features, in units of what varies within states (linear
    discriminant analysis)."""

    state: Ints
    """(k,)"""
    whitening: Floats
    """(p, p)"""
    centre: Floats
    """(k, p) whitened"""

    @classmethod
    def of(cls, features: Floats, state: Ints) -> Classifier:
        """features (n, p) of windows whose state (n,) is known."""
        number, place = np.unique(state, return_inverse=True)
        member = np.eye(len(number))[place]
        means = member.T @ features / member.sum(axis=0)[:, None]
        gaps = features - means[place]
        within = gaps.T @ gaps / max(1, len(gaps) - len(number))
        scale = np.sqrt(np.maximum(np.diag(within), 1e-12))
        within = within / scale / scale[:, None]
        # Of few windows a covariance has directions without any variance.
        within = (1 - DIAGONAL) * within + DIAGONAL * np.eye(len(scale))
        values, vectors = np.linalg.eigh(within)
        whitening = vectors / np.sqrt(np.maximum(values, 1e-9)) / scale[:, None]
        return cls(number, whitening, means @ whitening)

    def of_windows(self, features: Floats) -> Ints:
        """features (n, p) -> (n,) the nearest state; `NO_STATE` where a feature is not known."""
        state = np.full(len(features), NO_STATE, dtype=np.int64)
        known = np.isfinite(features).all(axis=1)
        white = features[known] @ self.whitening
        ways = white[:, None] - self.centre
        state[known] = self.state[(ways**2).sum(axis=2).argmin(axis=1)]
        return state


def token_of(learner: StateLearner) -> int:
    """The number by which a client finds its states in snapshots; 0 before it has 1 000 readings.

    By their mean and deviation and the window: no update has less, and clients have different ones.
    """
    memory = learner.memory
    if not memory.is_started:
        return 0
    content = b"/".join(
        [memory.mean.tobytes(), memory.spread.tobytes(), repr(memory.window).encode()]
    )
    digest = hashlib.blake2b(content, digest_size=8).digest()
    # 63 bits, so that it fits the signed whole numbers of `header`.
    return max(1, int.from_bytes(digest, "little") >> 1)


class StateLabels:
    """The states that a client's learner finds in its rows, as a snapshot numbers them.

    A window has the state whose windows are most like it. What is not in the snapshot yet has no
    number.
    """

    def __init__(self, learner: Callable[[], StateLearner | None], snapshot: Arrays) -> None:
        self._learner = learner
        known = learner()
        own = snapshot["owner"] == (0 if known is None else token_of(known))
        self._number_of: Final[dict[int, int]] = {}
        for state, number in zip(
            snapshot["owned"][own].tolist(), snapshot["owned_by"][own].tolist(), strict=True
        ):
            # Clients whose first readings are equal have one token. Where it leaves open which of
            # two numbers is this client's, none is better than another client's.
            is_same = self._number_of.get(state, number) == number
            self._number_of[state] = number if is_same else NO_STATE
        mass = snapshot["centre_mass"]
        self._most: Final = int(mass.argmax()) if len(mass) else NO_STATE
        """the number of a client whose update the snapshot has not: that with the most readings"""

    @property
    def digest(self) -> int:
        """A number that snapshots share which give the same rows the same states."""
        learner = self._learner()
        evaluated_at = 0 if learner is None else learner.evaluated_at
        content = repr((evaluated_at, sorted(self._number_of.items()), self._most)).encode()
        return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") >> 1

    @property
    def window(self) -> int:
        """Rows of a window; 1 while there is one state."""
        learner = self._learner()
        if learner is None or len(learner.identities()) < 2:
            return 1
        return learner.scale or int(learner.memory.window or 1)

    def numbers(self, rows: Rows) -> Ints:
        """rows (n, d), n >= window -> (n - window + 1,) the state of each window, by its number in
        the snapshot; -1 for a window that lacks too many values."""
        learner = self._learner()
        if learner is None or len(learner.identities()) < 2:
            single = 0 if learner is None or not len(learner.runs) else int(learner.runs[0, 2])
            number = self._number_of.get(single, self._most)
            return np.full(len(rows), number, dtype=np.int64)
        state = _states(learner, rows, self.window)
        table = {number: self._number_of.get(number, NO_STATE) for number in np.unique(state)}
        return np.array([table[number] for number in state.tolist()], dtype=np.int64)


def _states(learner: StateLearner, rows: Rows, window: int) -> Ints:
    """The learner's own number of the state of each window."""
    standard = (rows - learner.memory.mean) / learner.memory.spread
    if learner.scale:
        known = learner.blocks.blocks(window)
        state = block_states(learner, learner.runs, window, len(known))
        return _classified(
            _floored(known, learner.memory.width), state, window_features(standard, window)
        )
    features = WindowFeatures(learner.memory)
    state = learner.labels_at(learner.tile_middles())
    return _classified(features.of_tiles(), state, features.of_rows(standard, window))


def _classified(known: Floats, state: Ints, windows: Floats) -> Ints:
    is_known = (state != NO_STATE) & np.isfinite(known).all(axis=1)
    if not is_known.any():
        return np.full(len(windows), NO_STATE, dtype=np.int64)
    return Classifier.of(known[is_known], state[is_known]).of_windows(windows)


def _floored(blocks: Floats, d: int) -> Floats:
    """Features of remembered blocks with the floor below logarithms that those of windows have."""
    if blocks.shape[1] == d:
        return blocks
    floored = blocks.copy()
    deviation = np.log(np.exp(blocks[:, d : 2 * d]) + FLOOR)
    rough = np.log(np.exp(blocks[:, d : 2 * d] + blocks[:, 2 * d : 3 * d]) + FLOOR)
    floored[:, d : 2 * d] = deviation
    floored[:, 2 * d : 3 * d] = rough - deviation
    return floored
