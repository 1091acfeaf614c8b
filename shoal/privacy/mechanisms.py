"""The mechanisms of `formal` and `off`, and the one place that chooses by mode (`paper` has its own page)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import SettingsError
from shoal.privacy.base import Mechanism, Reach, Released
from shoal.privacy.certificate import certified_epsilon
from shoal.privacy.keyed import KeyedWords, Places
from shoal.privacy.laplace import DiscreteLaplace, discrete_laplace
from shoal.privacy.paper import PaperNoise, paper_reach
from shoal.privacy.state import check_state
from shoal.privacy.statement import context_digest, expected_statement
from shoal.privacy.terms import PrivacyTerms

STATE_VERSION = 1


class FormalNoise:
    """Pure epsilon-differential privacy of one reading (replace-one): clip, round to a public grid, and add
    discrete Laplace noise to every feature with its part of the budget. Independent features: the parts add up.

    Nothing is remembered between readings. On building it, the exact epsilon of the noise tables is computed
    and must not exceed the declared one (`SettingsError`).
    """

    def __init__(self, terms: PrivacyTerms, key: bytes, client: str, source: bytes) -> None:
        self._terms = terms
        laws = formal_laws(terms)
        _check_certificate(terms)
        self._keyed = KeyedWords(key, client, source, context_digest(terms), terms.bounds.d)
        self._steps = np.array([law.steps for law in laws], dtype=np.int64)
        self._words = sum(law.words for law in laws)
        self._groups = _group(laws)

    @property
    def statement(self) -> dict[str, Any]:
        return expected_statement(self._terms)

    @property
    def reach(self) -> Reach:
        return reach_for(self._terms)

    def privatise(self, readings: NDArray[np.float64], places: Places) -> Released:
        inside, clipped = self._terms.bounds.clip(readings)
        grid = np.rint(self._terms.bounds.to_unit(inside) * self._steps).astype(np.int64)
        words = self._keyed.draw(places, grid, self._words)
        half_steps = np.empty_like(grid)
        for law, columns, own_words in self._groups:
            half_steps[:, columns] = law.release(grid[:, columns], words[:, own_words])
        return Released(half_steps / (2 * self._steps), np.ones(len(grid), dtype=np.bool_), clipped)

    def state(self) -> dict[str, Any]:
        return {"version": STATE_VERSION, "mode": "formal", "fingerprint": self._keyed.fingerprint}

    def restore(self, state: dict[str, Any]) -> None:
        check_state(state, STATE_VERSION, "formal", self._keyed.fingerprint)


class NoNoise:
    """For public readings: clip, scale, nothing else."""

    def __init__(self, terms: PrivacyTerms) -> None:
        self._terms = terms

    @property
    def statement(self) -> dict[str, Any]:
        return expected_statement(self._terms)

    @property
    def reach(self) -> Reach:
        return reach_for(self._terms)

    def privatise(self, readings: NDArray[np.float64], places: Places) -> Released:
        inside, clipped = self._terms.bounds.clip(readings)
        return Released(self._terms.bounds.to_unit(inside), np.ones(len(inside), dtype=np.bool_), clipped)

    def state(self) -> dict[str, Any]:
        return {"version": STATE_VERSION, "mode": "off", "fingerprint": ""}

    def restore(self, state: dict[str, Any]) -> None:
        check_state(state, STATE_VERSION, "off", "")


def mechanism_for(terms: PrivacyTerms, key: bytes | None, client: str, source: bytes) -> Mechanism:
    """The mechanism of these terms for one client and its readings log (`source` = `Log.identity` of the topic).

    `key` comes from `load_or_create_key`; mode `off` needs none. Raises `SettingsError`.
    """
    if terms.mode == "off":
        return NoNoise(terms)
    if key is None:
        raise SettingsError(f"privacy mode {terms.mode!r} needs the client's noise key")
    kinds: dict[str, Callable[[PrivacyTerms, bytes, str, bytes], Mechanism]] = {
        "formal": FormalNoise,
        "paper": PaperNoise,
    }
    return kinds[terms.mode](terms, key, client, source)


def reach_for(terms: PrivacyTerms) -> Reach:
    """Where rows of these terms can lie, computable by anybody who has the contract."""
    if terms.mode == "formal":
        low, high = np.array([law.reach() for law in formal_laws(terms)]).T
        return Reach(low, high)
    if terms.mode == "paper":
        return paper_reach(terms)
    return Reach(np.zeros(terms.bounds.d), np.ones(terms.bounds.d))


def formal_laws(terms: PrivacyTerms) -> tuple[DiscreteLaplace, ...]:
    """The noise of each feature."""
    return tuple(discrete_laplace(epsilon) for epsilon in terms.epsilon_per_feature())


def epsilon_spent(terms: PrivacyTerms) -> tuple[float, float]:
    """What a reading costs by the noise tables in force, and what it may cost; both infinite without a guarantee."""
    if terms.epsilon_per_reading is None:
        return math.inf, math.inf
    laws = formal_laws(terms)
    spent = {law: certified_epsilon(law) for law in set(laws)}
    return sum(spent[law] for law in laws), terms.epsilon_per_reading


def _check_certificate(terms: PrivacyTerms) -> None:
    total, declared = epsilon_spent(terms)
    if total > declared:
        raise SettingsError(
            f"the noise tables give epsilon {total!r} per reading where {declared!r} is declared: "
            "this build must not be used"
        )


_Group = tuple[DiscreteLaplace, NDArray[np.intp], NDArray[np.intp]]


def _group(laws: Sequence[DiscreteLaplace]) -> list[_Group]:
    """Features of equal noise are drawn together: (law, its columns (c,), their words (c, law.words))."""
    columns: dict[DiscreteLaplace, list[int]] = {}
    words: dict[DiscreteLaplace, list[range]] = {}
    first = 0
    for j, law in enumerate(laws):
        columns.setdefault(law, []).append(j)
        words.setdefault(law, []).append(range(first, first + law.words))
        first += law.words
    return [(law, np.array(columns[law]), np.array(words[law])) for law in columns]
