"""Noise for counts, and the mechanism that adds it: two-sided geometric, from integer tables.

Replacing one reading moves two counts of a window by one each: its old cell loses it, its new cell
gains it. With P(k) proportional to exp(-|k| * epsilon / 2) on every count, empty ones included, the
probabilities of any published window differ by a factor of at most exp(epsilon). Where the privacy
unit is a user with at most N readings in a window, replacing them all moves the counts by 2 N in
sum, and P(k) is proportional to exp(-|k| * epsilon / (2 N)).

The tables are the mechanism, as in `shoal.privacy.laplace`: a 64-bit word is looked up in a table
of integers that sums to exactly 2^63, so no floating point lies between a true count and a
published one. A table ends with an escape on either side, "this far or farther"; then a one-sided
table is drawn from, again and again if need be, because what is left of a geometric distribution
beyond any point is that distribution again. No result is cut off.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import cached_property, lru_cache
from typing import Final

import numpy as np

from shoal.errors import SettingsError
from shoal.kernels.arrays import Ints, Words
from shoal.privacy.keyed import KEY_BYTES, SOURCE_BYTES, Lookup

TABLE_BITS = 63
TABLE_SCALES = 16
"""a table reaches this many scales to either side; the probability beyond is about e^-16"""
SCALE_SLACK = Decimal(1) + Decimal(1) / 4096
"""the tables are made for a scale larger by this factor, so that rounding to integers never costs
more epsilon"""
EPSILON_MIN = 0.02
EPSILON_MAX = 40.0
_EXACT = Context(prec=60, rounding=ROUND_HALF_EVEN)
_WORD_BYTES = 8


@dataclass(frozen=True, eq=False)
class CountNoise:
    """The noise of every count of a window; all of it is public."""

    reach: int
    """n: the two-sided table holds -n .. n, and its two ends stand for "n or farther" """
    below: Words
    """(2n,) running sums of the weights of -n .. n, without the last, which is 2^63"""
    beyond: Words
    """(n,) the same for the one-sided table of 0 .. n, whose last entry stands for "n or more" """
    variance: float
    """variance of one draw, in squared readings"""

    @cached_property
    def weights(self) -> Words:
        """(2n + 1,) weights of -n .. n, which sum to 2^63."""
        return np.diff(self.below, prepend=np.uint64(0), append=np.uint64(2**TABLE_BITS))

    @cached_property
    def weights_beyond(self) -> Words:
        """(n + 1,) weights of 0 .. n in the one-sided table, which sum to 2^63."""
        return np.diff(self.beyond, prepend=np.uint64(0), append=np.uint64(2**TABLE_BITS))

    @cached_property
    def _lookup(self) -> Lookup:
        return Lookup(self.below)

    def digest(self) -> bytes:
        """32 bytes that identify the tables exactly."""
        tables = self.below.astype("<u8").tobytes() + self.beyond.astype("<u8").tobytes()
        return hashlib.sha256(f"counts;{self.reach};".encode() + tables).digest()

    def draw(self, seed: bytes, cells: int) -> Ints:
        """The noises (cells,) of a secret seed.

        Each takes 64 bits of SHAKE-256, and more where it escapes.
        """
        words = np.frombuffer(
            hashlib.shake_256(seed).digest(_WORD_BYTES * cells), dtype="<u8"
        ) >> np.uint64(1)
        noise = self._lookup.find(words) - self.reach
        # About one draw in e^16 escapes, so a loop over these takes hardly any time.
        for cell in np.flatnonzero(np.abs(noise) == self.reach).tolist():
            noise[cell] += int(np.sign(noise[cell])) * self._farther(seed, cell)
        return noise

    def _farther(self, seed: bytes, cell: int) -> int:
        """Distance beyond the end of the two-sided table at which the noise of this cell lies."""
        total = 0
        level = 0
        step = self.reach
        while step == self.reach:
            # A longer message than the seed alone, another one for each cell and level: its bits
            # are of no other use.
            place = b"farther" + cell.to_bytes(8, "little") + level.to_bytes(8, "little")
            word = (
                int.from_bytes(hashlib.shake_256(seed + place).digest(_WORD_BYTES), "little") >> 1
            )
            step = int(np.searchsorted(self.beyond, np.uint64(word), side="right"))
            total += step
            level += 1
        return total


@lru_cache(maxsize=64)
def count_noise(epsilon: float, readings_max: int = 1) -> CountNoise:
    """The noise for a window in which a privacy unit may cost `epsilon`.

    The unit has at most `readings_max` readings in the window. Raises `SettingsError` for an
    epsilon outside 0.02..40, also if it is so only when divided by `readings_max`.
    """
    if not EPSILON_MIN <= epsilon <= EPSILON_MAX:
        raise SettingsError(
            f"epsilon {epsilon:g} of counts is outside {EPSILON_MIN:g}..{EPSILON_MAX:g}"
        )
    if epsilon < EPSILON_MIN * readings_max:
        raise SettingsError(
            f"epsilon {epsilon:g} of counts for {readings_max} readings of one user is less than "
            f"{EPSILON_MIN:g} for each: take a smaller readings_per_window_max, or a larger "
            "epsilon"
        )
    scale = Decimal(2 * readings_max) / Decimal(epsilon) * SCALE_SLACK
    ratio = _EXACT.exp(-1 / scale)
    # At the largest epsilon sixteen scales are less than one reading.
    reach = max(1, int(TABLE_SCALES * scale))
    power = [Decimal(1)]
    for _ in range(reach):
        power.append(_EXACT.multiply(power[-1], ratio))
    # P(K <= -j) = P(K >= j) = ratio^j / (1 + ratio)
    tail = [_EXACT.divide(weight, 1 + ratio) for weight in power]
    up_to_negative = tail[:0:-1]
    up_to_others = [1 - chance for chance in tail[1:]]
    up_to_farther = [1 - weight for weight in power[1:]]
    q = float(ratio)
    variance = 2.0 * q / (1.0 - q) ** 2
    return CountNoise(
        reach, _table([*up_to_negative, *up_to_others]), _table(up_to_farther), variance
    )


def certified_count_epsilon(noise: CountNoise, readings_max: int = 1) -> float:
    """The true epsilon of a privacy unit with at most `readings_max` readings in a window, computed
    from the integers of the tables: no statistics, no derivation.

    It is 2 `readings_max` times the largest |ln P(k) - ln P(k + 1)| over all whole numbers k,
    because a reading moves two counts by one. Beyond the tables' ends the ratios repeat with every
    further draw, so that a finite number of them is all.
    """
    two_sided = np.log(noise.weights.astype(np.float64))
    one_sided = np.log(noise.weights_beyond.astype(np.float64)) - TABLE_BITS * math.log(2)
    n = noise.reach
    # ln P of all results from -2n to 2n in order: beyond an end are 0, 1, .. n - 1 farther, and n
    # farther is an escape and 0 more; between the ends are the table's own entries.
    low_end = [two_sided[0] + one_sided[n] + one_sided[0], *(two_sided[0] + one_sided[:n][::-1])]
    high_end = [*(two_sided[-1] + one_sided[:n]), two_sided[-1] + one_sided[n] + one_sided[0]]
    steps = np.abs(np.diff([*low_end, *two_sided[1:-1], *high_end]))
    # Further levels have the same one-sided steps, and the escape of each level.
    return 2.0 * readings_max * float(steps.max())


def _table(cumulative: list[Decimal]) -> Words:
    """Chances as whole parts of 2^63."""
    unit = Decimal(2**TABLE_BITS)
    entries = []
    for chance in cumulative:
        entries.append(int(_EXACT.to_integral_value(_EXACT.multiply(unit, chance))))
    return np.array(entries, dtype=np.uint64)


VERSION: Final = 1
_DOMAIN = f"shoal counts {VERSION}".encode()


class CountMechanism:
    """Adds noise to the counts of one client's windows for one model.

    It keeps nothing between windows. The noise is a secret function of everything that it depends
    on: the key, the client, its source, the model, the tables, the window, the plan that the window
    was counted under, and the true counts. The same window counted again under the same plan gets
    the same noise, so that repeating it reveals nothing new; anything else gets other noise.
    """

    def __init__(
        self, noise: CountNoise, key: bytes, client: str, source: bytes, model: str
    ) -> None:
        """`key`: the client's noise key; `source`: identity of its readings log. Raises
        `SettingsError`."""
        if len(key) != KEY_BYTES or len(source) != SOURCE_BYTES:
            raise SettingsError(
                f"a noise key has {KEY_BYTES} bytes and the identity of a source {SOURCE_BYTES}"
            )
        self._noise = noise
        # All parts have a fixed length, names as their digests: joined, no two lists of parts are
        # the same bytes.
        self._prefix = (
            key
            + _DOMAIN
            + source
            + noise.digest()
            + hashlib.sha256(client.encode()).digest()
            + hashlib.sha256(model.encode()).digest()
        )

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that show whether key, client, source, model and tables are those
        of an earlier run."""
        return hashlib.shake_256(self._prefix).hexdigest(8)

    def release(self, counts: Ints, window: tuple[int, int, int], plan: bytes) -> Ints:
        """True counts (cells,) -> private counts (cells,).

        `window`: its number, and the places of the first and the last reading in it; `plan`: the 32
        bytes that identify the plan it was counted under.
        """
        name = b"".join(part.to_bytes(8, "little") for part in window)
        # The true counts are a part of the seed: two vectors with the same noise would show their
        # difference exactly.
        seed = hashlib.sha256(self._prefix + name + plan + counts.astype("<i8").tobytes()).digest()
        return counts + self._noise.draw(seed, len(counts))
