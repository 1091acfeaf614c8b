"""The mode `formal`: discrete Laplace noise, with a guaranteed epsilon for every reading.

The noise is scaled to declared bounds, which are public, and never to the readings themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final, Literal

import numpy as np

from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats, Indices, Ints, Words
from shoal.privacy.base import (
    GAPS_IN_COUNTS,
    GAPS_IN_ROWS,
    HELD_VALUES,
    NOT_COVERED,
    NOT_COVERED_OF_USERS,
    PRESENCE_LEFT,
    READING,
    TIMES_TEXTS,
    Bounds,
    Description,
    Guarantee,
    Mechanism,
    PrivacyMode,
    PrivacyUnit,
    Released,
    RowRange,
    Term,
    check_state,
    require_key,
)
from shoal.privacy.count_noise import CountNoise, certified_count_epsilon, count_noise
from shoal.privacy.keyed import KeyedRandomness, Places
from shoal.privacy.laplace import (
    DiscreteLaplace,
    certified_epsilon,
    check_epsilon,
    discrete_laplace,
)

STATE_VERSION = 1
BLOCK_VALUES = 4096
"""values that get their noise together: drawing it takes ten times their memory for a moment"""
REJECTED_ROWS = (
    "How many readings were rejected, in models that learn noisy rows: a rejected reading has no "
    "row, and models count their rows. Private counts hide it."
)
WITHOUT_IT = (
    "Windows close by the clock, and all state the same number of places, empty ones too: the "
    "guarantee holds also against a window without the readings, so that neither when they were "
    "taken nor how many there are is published."
)
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
EPSILON_WEAK: Final = 10.0
"""epsilon beyond which a guarantee is marked: who is 1 % sure beforehand may be 99.5 % sure then"""
WHO_OF_READING: Final = (
    "the person or thing that one reading is about, once. One with several readings spends the sum "
    "of their epsilons."
)
FOR_GOOD: Final = (
    "for good: noise is added once, and nothing that is computed from it later costs more."
)
AGAINST_ALL: Final = (
    "everybody who reads what leaves the client: the server, the log and its operator, other "
    "clients, readers of the page, also all together and whatever else they know."
)
BREAKS: Final = (
    "reading the client's folder, which has the raw readings and the noise key, or changing the "
    "program on its machine."
)


class Formal(PrivacyMode):
    """Pure epsilon-differential privacy of each reading (replace-one).

    A reading is clipped, rounded to a public grid, and each feature gets discrete Laplace noise for
    its part of `epsilon_per_reading`. The noises of the features are independent, so that their
    epsilons add up.
    """

    name = "formal"
    summary = "guaranteed per reading"
    mechanism_name = "discrete-laplace"
    terms: ClassVar = {
        "epsilon_per_reading": Term("the whole budget of one reading, over all its features")
    }
    formal = True
    counts = True
    fills_gaps = True

    def __init__(
        self,
        bounds: Bounds,
        values: Mapping[str, float] | None = None,
        shares: Sequence[float] | None = None,
        counts_epsilon: float | None = None,
        unit: PrivacyUnit = READING,
    ) -> None:
        super().__init__(bounds, values, shares, counts_epsilon, unit)
        for epsilon in self.epsilon_per_feature():
            check_epsilon(epsilon)
        if counts_epsilon is not None:
            # Raises here, and not at the first window.
            self.count_noise(counts_epsilon)

    @property
    def releases_rows(self) -> bool:
        """Whether noisy rows are made, which models other than those of counts learn from."""
        return bool(self.values)

    @cached_property
    def noises(self) -> tuple[DiscreteLaplace, ...]:
        """The noise of each feature (d,)."""
        return tuple(discrete_laplace(epsilon) for epsilon in self.epsilon_per_feature())

    def epsilon_per_reading(self) -> float | None:
        if not self.releases_rows:
            return None
        return float(self.values["epsilon_per_reading"])

    def epsilon_per_feature(self) -> tuple[float, ...]:
        if not self.releases_rows:
            return ()
        # fsum rounds once, so that no order of features changes the epsilon of one.
        total = math.fsum(self.shares)
        return tuple(self.values["epsilon_per_reading"] * share / total for share in self.shares)

    def mechanism(self, key: bytes | None, client: str, source: bytes) -> Mechanism:
        """The mechanism of one client.

        Also raises `SettingsError` if the noise tables cost more than declared: it is checked here,
        on the machine that draws from them, and not only where they were developed.
        """
        if not self.releases_rows:
            raise SettingsError(
                'mode = "formal" needs epsilon_per_reading for models that learn from noisy rows'
            )
        spent, declared = self.epsilon_spent()
        if spent > declared:
            raise SettingsError(
                f"the noise tables give epsilon {spent!r} per reading where {declared!r} is "
                "declared: do not use this build of shoal"
            )
        randomness = KeyedRandomness(
            require_key(key, self.name), client, source, self.context(), self.bounds.d
        )
        return FormalNoise(self.bounds, self.noises, randomness)

    def count_noise(self, epsilon: float | None) -> CountNoise:
        """The noise of the counts of a model.

        Also raises `SettingsError` if the tables cost more than declared.
        """
        if epsilon is None:
            raise SettingsError(
                'mode = "formal" needs counts_epsilon for models that learn from counts'
            )
        noise = count_noise(epsilon, self.unit.readings_max)
        if certified_count_epsilon(noise, self.unit.readings_max) > epsilon:
            raise SettingsError(
                "the noise tables of counts give more than is declared: do not use this build of "
                "shoal"
            )
        return noise

    def row_range(self) -> RowRange:
        if not self.releases_rows:
            return RowRange(np.zeros(self.bounds.d), np.ones(self.bounds.d))
        low, high = np.array([noise.reach() for noise in self.noises]).T
        return RowRange(low, high)

    def epsilon_spent(self) -> tuple[float, float]:
        """Computed from the noise tables themselves: the first may be less by their rounding."""
        # A certificate takes about a millisecond, and features often share their noise.
        certified = {noise: certified_epsilon(noise) for noise in set(self.noises)}
        spent = sum(certified[noise] for noise in self.noises)
        return spent, self.epsilon_per_reading() or 0.0

    def noise_per_feature(self) -> tuple[float, ...]:
        # The mean distance of Laplace noise is its scale.
        return tuple(1.0 / epsilon for epsilon in self.epsilon_per_feature())

    def table_digests(self) -> bytes:
        return b"".join(noise.digest() for noise in self.noises)

    def describe(self) -> Description:
        epsilon = self.epsilon_per_reading()
        parts = self.epsilon_per_feature()
        if epsilon is None:
            return self._describe_counts()
        if len(set(parts)) == 1:
            share = f"{parts[0]:g} each"
        else:
            share = f"{min(parts):g} to {max(parts):g}"
        title, tone = title_of(epsilon, "every reading")
        return Description(
            title,
            tone,
            (
                "Every client clips each reading to the declared bounds and adds random noise to "
                "it before anything learns from it. The reading itself never leaves the client; "
                "all that is published was learnt from noisy rows.",
                f"Epsilon is {epsilon:g} per reading, the sum over {len(parts)} features "
                f"({share}). The noise moves a feature by {_span(1 / max(parts), 1 / min(parts))} "
                "of its declared range on average.",
                *self._sentence_on_gaps(GAPS_IN_ROWS),
            ),
            (*self._not_covered(), REJECTED_ROWS),
            Guarantee(
                WHO_OF_READING,
                f"all values of one reading, at epsilon {epsilon:g}.",
                FOR_GOOD,
                AGAINST_ALL,
                f"whatever is published was at most {_times(epsilon)} likelier with this reading "
                f"than with any other in its place. {beliefs(epsilon)}",
                BREAKS,
            ),
        )

    def _describe_counts(self) -> Description:
        assert self.counts_epsilon is not None
        if self.unit.is_user:
            guarantee = self._guarantee_of_users()
        else:
            guarantee = self._guarantee_of_readings()
        title, tone = title_of(self.counts_epsilon, f"every {self.unit.name}")
        return Description(
            title,
            tone,
            (
                "Every client counts its readings in windows, and adds random noise to every "
                "count before it is published, to empty ones too. Neither a reading nor a noisy "
                "reading ever leaves the client.",
                *self._sentence_on_presence(),
                *self._sentence_on_gaps(GAPS_IN_COUNTS),
            ),
            self._not_covered(),
            guarantee,
        )

    def _not_covered(self) -> tuple[str, ...]:
        facts = list(NOT_COVERED_OF_USERS if self.unit.is_user else NOT_COVERED)
        if self.unit.hides_presence:
            # Less remains of the first fact, that a reading was taken and when.
            facts[0] = PRESENCE_LEFT
        else:
            facts.insert(1, TIMES_TEXTS[self.times])
        return (*facts, *self._sentence_on_held_values())

    def _sentence_on_held_values(self) -> tuple[str, ...]:
        if self.missing == "hold":
            return (HELD_VALUES,)
        return ()

    def _sentence_on_gaps(self, sentence: str) -> tuple[str, ...]:
        if self.missing == "learn":
            return (sentence,)
        return ()

    def _sentence_on_presence(self) -> tuple[str, ...]:
        if not self.unit.hides_presence:
            return ()
        return (WITHOUT_IT,)

    def _guarantee_of_readings(self) -> Guarantee:
        epsilon = self.counts_epsilon or 0.0
        return Guarantee(
            WHO_OF_READING,
            f"all values of one reading, at epsilon {epsilon:g} in each model, whatever the "
            "number of features.",
            FOR_GOOD,
            AGAINST_ALL,
            f"whatever a model publishes was at most {_times(epsilon)} likelier with this reading "
            f"than with any other in its place. {beliefs(epsilon)}",
            BREAKS,
        )

    def _guarantee_of_users(self) -> Guarantee:
        epsilon = self.counts_epsilon or 0.0
        readings = self.unit.readings_max
        return Guarantee(
            "a user: the person or device that readings with one user id are about. User ids "
            "never leave the client.",
            f"all readings of the user in one window, at epsilon {epsilon:g} in each model, "
            f"whatever the number of features. At most {readings} of them "
            f"{'is' if readings == 1 else 'are'} counted; a reading without a user id is "
            "rejected.",
            "one window. A user in w windows spends at most w times that in each model: "
            f"{10 * epsilon:g} in 10 windows in a row. What is published stays protected for good.",
            AGAINST_ALL,
            f"whatever a model publishes of a window was at most {_times(epsilon)} likelier with "
            "the readings of this user in it than with any others of the same user in their "
            f"places. {beliefs(epsilon)}",
            BREAKS,
        )


class FormalNoise:
    """The mechanism of `formal`. It keeps nothing between readings."""

    def __init__(
        self, bounds: Bounds, noises: Sequence[DiscreteLaplace], randomness: KeyedRandomness
    ) -> None:
        self._bounds = bounds
        self._randomness = randomness
        self._steps = np.array([noise.steps for noise in noises], dtype=np.int64)
        self._words = sum(noise.words for noise in noises)
        self._groups = _group(noises)

    def privatise(self, readings: Floats, places: Places) -> Released:
        inside, clipped = self._bounds.clip(readings)
        blocks = -(-inside.size // BLOCK_VALUES)
        if blocks > 1:
            # Places that are not as many as the readings fail in a block.
            parts = zip(np.array_split(inside, blocks), np.array_split(places, blocks), strict=True)
            rows = np.concatenate([self._noisy(*part) for part in parts])
        else:
            rows = self._noisy(inside, places)
        return Released(rows, np.ones(len(rows), dtype=np.bool_), clipped)

    def _noisy(self, inside: Floats, places: Places) -> Floats:
        """Readings (n, d) within the bounds -> (n, d) noisy rows."""
        # From here to the result everything is a whole number: floating-point noise would leave
        # traces of the reading in the last bits of a row (Mironov 2012).
        grid = np.rint(self._bounds.to_unit(inside) * self._steps).astype(np.int64)
        # The words depend on the reading on the grid, and not on its bits before: readings that the
        # grid makes equal get one row.
        words = self._randomness.draw(places, grid, self._words)
        noisy: Floats = self._half_steps(grid, words) / (2 * self._steps)
        return noisy

    def _half_steps(self, grid: Ints, words: Words) -> Ints:
        """grid (n, d) and words (n, w) -> private results (n, d) in half steps of each feature."""
        if len(self._groups) == 1:
            # Their words are all words, in order: nothing needs to be gathered.
            noise = self._groups[0][0]
            return noise.release(grid, words.reshape(*grid.shape, noise.words))
        half_steps = np.empty_like(grid)
        for noise, columns, own_words in self._groups:
            half_steps[:, columns] = noise.release(grid[:, columns], words[:, own_words])
        return half_steps

    def state(self) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "mode": Formal.name,
            "fingerprint": self._randomness.fingerprint,
        }

    def restore(self, state: dict[str, Any]) -> None:
        check_state(state, STATE_VERSION, Formal.name, self._randomness.fingerprint)


_Group = tuple[DiscreteLaplace, Indices, Indices]


def _group(noises: Sequence[DiscreteLaplace]) -> list[_Group]:
    """Features with equal noise, which are drawn together.

    (noise, their columns (c,), their words (c, noise.words)) of each noise.
    """
    columns: dict[DiscreteLaplace, list[int]] = {}
    words: dict[DiscreteLaplace, list[range]] = {}
    first = 0
    for j, noise in enumerate(noises):
        columns.setdefault(noise, []).append(j)
        words.setdefault(noise, []).append(range(first, first + noise.words))
        first += noise.words
    return [(noise, np.array(columns[noise]), np.array(words[noise])) for noise in columns]


def title_of(epsilon: float, what: str) -> tuple[str, Literal["good", "warn"]]:
    """The title of a guarantee with this epsilon for `what`, and its tone."""
    title = f"Formal guarantee for {what}"
    if epsilon > EPSILON_WEAK:
        return title, "warn"
    return title, "good"


def belief_after(belief: float, epsilon: float) -> float:
    """Largest probability that somebody gives a statement on a unit who has seen what was published
    at this epsilon, and gave it `belief` before.

    Bayes' rule, where the likelihoods differ by a factor of e^epsilon at most.
    """
    odds = belief / (1.0 - belief)
    # Put so that no power overflows.
    return odds / (odds + math.exp(-epsilon))


PRIOR_BELIEFS: Final = (0.5, 0.01)
"""beliefs of an attacker beforehand, for which `beliefs` states those afterwards"""


def beliefs(epsilon: float) -> str:
    """The gain of an attacker from what is published at this epsilon, in one sentence."""
    even, rare = (belief_after(belief, epsilon) for belief in PRIOR_BELIEFS)
    if 1.0 - rare < CERTAIN:
        return "Who is 1 % sure of something beforehand can be certain of it afterwards."
    return (
        "Who is 50 % sure of something beforehand is at most "
        f"{percent(even)} sure afterwards, who is 1 % sure at most {percent(rare)}."
    )


CERTAIN: Final = 1e-6
"""a belief that is less than this below 1 is called certain"""


def percent(share: float) -> str:
    """A share below 1 in percent, in two digits, and above 99 % in as many as tell it from 100."""
    if share < 0.99:
        return f"{100.0 * share:.2g} %"
    rest = 100.0 * (1.0 - share)
    decimals = max(1, -math.floor(math.log10(rest)))
    return f"{100.0 - rest:.{decimals}f} %"


def _times(epsilon: float) -> str:
    """e to the power of epsilon, in digits as far as they mean anything to a reader."""
    # Up to 992, which three digits can write in full.
    if epsilon < 6.9:
        return f"e^{epsilon:g} = {math.exp(epsilon):.3g} times"
    # Up to 8 103, in full.
    if epsilon < 9:
        return f"e^{epsilon:g} = {math.exp(epsilon):,.0f} times"
    # Rounded up: the sentence says at most.
    power = str(math.ceil(epsilon / math.log(10)))
    return f"10{power.translate(_SUPERSCRIPTS)} times"


def _span(least: float, most: float) -> str:
    if least == most:
        return f"{least:.2g}"
    return f"{least:.2g} to {most:.2g}"
