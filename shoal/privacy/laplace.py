"""Two-sided geometric noise on the half-integers, from integer tables, and its certificate.

A reading's feature is an integer g in 0..m. The noise is s * (k + 1/2) steps with a fair sign s and
P(k) proportional to exp(-k / scale), k = 0, 1, 2, ...; the result is moved into [-R - 1/2, m + R +
1/2]. For two readings at most m steps apart the probabilities of any result differ by a factor of
at most exp(m / scale): m / scale is the epsilon of the feature. On the half-integers zero is no
special case.

k is drawn digit by digit. Because P is geometric the digits of k in any mixed radix are
independent: fine (0..4095 steps), middle (only when scale > 4096), and whole scales, drawn in
levels of 0..24 where 24 means "24 or more, continue". Each digit is one 64-bit word looked up in a
table of integers that sums to exactly 2^63, so the tables *are* the mechanism: no logarithm is
taken at sampling time, no floating point leaks a reading (Mironov 2012), and `certified_epsilon`
can compute the true epsilon.

The certificate is the true epsilon of the tables, computed from their integers. It is the largest
log-ratio of probabilities over all results (the two ends included) and all pairs of grid values. It
uses no statistics and does not rely on how the tables were derived. The digits of k are
independent, so that the maximum over all k is found digit by digit with a carry, in about a
millisecond.

Why the pairs k, k + steps suffice. For a result between the ends two grid values need magnitudes k
at most `steps` apart, and P falls with k (checked), so those exactly `steps` apart are the worst.
An end atom is the sum of P(k) over all k from some k0 on, against the same sum from at most k0 +
steps on: its ratio is a mean of ratios P(k) / P(k + steps), and these repeat with every level of
whole scales; the margin holds more than one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import cached_property, lru_cache

import numpy as np

from shoal.errors import SettingsError
from shoal.kernels import forms
from shoal.kernels.arrays import AnyArray, Floats, Ints, Words
from shoal.privacy.keyed import Lookup

FINE_STEPS = 4096
TABLE_BITS = 63
ESCAPE = 24
MARGIN_SCALES = 30
"""results are clipped to within this many scales of the range; the probability beyond is about
e^-30"""
SCALE_SLACK = Decimal(1) + Decimal(1) / 4096
"""the tables are made for a scale larger by this factor, so that rounding to integers never costs
more epsilon"""
EPSILON_MIN = 1e-4
EPSILON_MAX = 1e3
SHARE_OF_LEARNING = 0.0015
"""time to draw the noise of a feature, relative to that in which CA+ learns a row: how soon the
compiled form is worth loading"""
_EXACT = Context(prec=60, rounding=ROUND_HALF_EVEN)


@dataclass(frozen=True, eq=False)
class Digit:
    """One digit of k, worth `stride` steps; value i has probability weights[i] / 2^63."""

    stride: int
    below: Words
    """(size - 1,) running sums of the weights, without the last, which is 2^63"""

    @cached_property
    def weights(self) -> Words:
        """(size,) weights, derived from `below`: the certificate examines what is drawn from."""
        return np.diff(self.below, prepend=np.uint64(0), append=np.uint64(2**TABLE_BITS))

    @cached_property
    def lookup(self) -> Lookup:
        """The table, to be drawn from."""
        return Lookup(self.below)

    def pick(self, words: Words) -> Ints:
        """words (...) of 64 random bits -> (...) values; the lowest bit is not used."""
        return self.lookup.find(words >> np.uint64(1))


@lru_cache(maxsize=64)
def geometric_digit(size: int, stride: int, scale: int, *, open_ended: bool = False) -> Digit:
    """Table of a digit 0..size-1 with P(i) ~ exp(-i * stride / (SCALE_SLACK * scale)).

    With `open_ended` the last value stands for all from there on. Decimal arithmetic is exact to
    the digit, so that every platform builds the same integers: a client that moves to another
    machine draws the same noise again, and must not publish the same reading with two.
    """
    ratio = _EXACT.exp(_EXACT.divide(Decimal(-stride), Decimal(scale) * SCALE_SLACK))
    powers = [Decimal(1)]
    for _ in range(size):
        powers.append(_EXACT.multiply(powers[-1], ratio))
    # The sum of all powers is 1 / (1 - ratio), that of the first `size` has 1 - powers[size] of it.
    whole = Decimal(1) if open_ended else 1 - powers[size]
    unit = Decimal(2**TABLE_BITS)
    running = []
    for power in powers[1:size]:
        running.append(
            int(_EXACT.to_integral_value(_EXACT.divide(_EXACT.multiply(unit, 1 - power), whole)))
        )
    return Digit(stride, np.array(running, dtype=np.uint64))


@dataclass(frozen=True, eq=False)
class DiscreteLaplace:
    """The noise of one feature; all of it is public."""

    steps: int
    """m, the grid steps over the range"""
    scale: int
    """steps"""
    inner: tuple[Digit, ...]
    """digits of k below one scale, finest first"""
    scales: Digit
    """whole scales in k, one level: 0..ESCAPE"""
    levels: int

    @property
    def margin(self) -> int:
        """R, in steps: results lie within [-R - 1/2, steps + R + 1/2]."""
        return MARGIN_SCALES * self.scale

    @property
    def words(self) -> int:
        """The number of 64-bit words of one draw; it is constant."""
        return len(self.inner) + self.levels

    def digest(self) -> bytes:
        """32 bytes that identify the tables and the grid exactly."""
        digest = hashlib.sha256(f"{self.steps},{self.scale},{self.margin},{self.levels}".encode())
        for digit in (*self.inner, self.scales):
            digest.update(
                f";{digit.stride},{digit.weights.size}:".encode()
                + digit.weights.astype("<u8").tobytes()
            )
        return digest.digest()

    def noise(self, words: Words) -> Ints:
        """words (..., self.words) -> (...) noise in half steps, before the result is clipped.

        It is always odd, with mean 0.
        """
        k = np.zeros(words.shape[:-1], dtype=np.int64)
        for i, digit in enumerate(self.inner):
            k += digit.stride * digit.pick(words[..., i])
        whole = self.scales.pick(words[..., len(self.inner)])
        # The last value of the table stands for all beyond it: there the next word draws on.
        for level in range(1, self.levels):
            on = whole == level * ESCAPE
            if not on.any():
                break
            whole[on] += self.scales.pick(words[..., len(self.inner) + level][on])
        k += self.scales.stride * whole
        # Odd half steps have no 0, so that a sign is never wasted on it, and both signs are alike.
        odd = 2 * k + 1
        # The lowest bit of a word is not looked up (`Digit.pick`): it is free to be the sign.
        return np.where(words[..., 0] & np.uint64(1), odd, -odd)

    def release(self, grid: Ints, words: Words) -> Ints:
        """grid (...) in 0..steps and words (..., self.words) -> (...) private results.

        They are in half steps, and all odd. What lies beyond the margin is moved to its end: a
        result that only a few grid values can reach would tell which of them it was.
        """
        edge = 2 * self.margin + 1
        compiled = forms.PROCESS.compiled_for(SHARE_OF_LEARNING * grid.size)
        if compiled is not None:
            released = np.empty(grid.shape, dtype=np.int64)
            drawn = np.ascontiguousarray(words).reshape(-1, self.words)
            limits = np.array([ESCAPE, self.steps, edge])
            compiled.release_laplace(
                np.ascontiguousarray(grid).ravel(), drawn, self._tables, limits, released.ravel()
            )
            return released
        bounded: Ints = np.clip(2 * grid + self.noise(words), -edge, 2 * self.steps + edge)
        return bounded

    @cached_property
    def _tables(self) -> tuple[AnyArray, ...]:
        """Tables of all digits, the scales last, in the form of `shoal.kernels.compiled.noise`."""
        digits = (*self.inner, self.scales)
        sums = [digit.lookup.sums for digit in digits]
        guides = [digit.lookup.guide for digit in digits]
        strides = np.array([digit.stride for digit in digits])
        shifts = np.array([digit.lookup.shift for digit in digits])
        return (
            np.concatenate(sums),
            np.concatenate(guides),
            strides,
            _first_positions(sums),
            _first_positions(guides),
            shifts,
        )

    def reach(self) -> tuple[float, float]:
        """Smallest and largest result, in unit coordinates."""
        edge = 2 * self.margin + 1
        return -edge / (2 * self.steps), (2 * self.steps + edge) / (2 * self.steps)


def _first_positions(tables: Sequence[AnyArray]) -> Ints:
    """The position at which each table begins when all are joined."""
    lengths = [len(table) for table in tables]
    return np.cumsum([0, *lengths[:-1]])


def check_epsilon(epsilon: float) -> None:
    """Raises `SettingsError` for an epsilon of one feature outside 0.0001..1000."""
    if not EPSILON_MIN <= epsilon <= EPSILON_MAX:
        raise SettingsError(
            f"epsilon {epsilon:g} of one feature is outside {EPSILON_MIN:g}..{EPSILON_MAX:g}: "
            "change epsilon_per_reading, the shares, or the number of features"
        )


@lru_cache(maxsize=256)
def discrete_laplace(epsilon: float, fine: int = FINE_STEPS) -> DiscreteLaplace:
    """The noise of a feature that may spend `epsilon`; `fine`, a power of two, sets the grid.

    The scale is fine * 2^p steps and the grid has floor(epsilon * scale) >= fine steps over the
    range: a whole number of steps costs less than one part in `fine` of epsilon, and features share
    their tables. Raises `SettingsError` for an epsilon outside 0.0001..1000.
    """
    check_epsilon(epsilon)
    scale = fine
    while epsilon * scale < fine:
        scale *= 2
    # Rounded down: one step more would cost more than `epsilon`.
    steps = int(epsilon * scale)
    inner = [geometric_digit(fine, 1, scale)]
    if scale > fine:
        inner.append(geometric_digit(scale // fine, fine, scale))
    # The last level's "24 or more" lies beyond the margin for every g, so that it may stand for all
    # beyond it.
    levels = -(-(steps + MARGIN_SCALES * scale) // (ESCAPE * scale))
    return DiscreteLaplace(
        steps,
        scale,
        tuple(inner),
        geometric_digit(ESCAPE + 1, scale, scale, open_ended=True),
        levels,
    )


def certified_epsilon(distribution: DiscreteLaplace) -> float:
    """Largest |ln P(y | g) - ln P(y | g')| over all y and all g, g' in 0..steps, to about 1e-13.

    Raises `SettingsError` if the probabilities do not fall with distance, without which the pairs
    examined (those `steps` apart) need not be the worst, or if the levels end inside the margin.
    """
    if distribution.levels * ESCAPE * distribution.scale < distribution.steps + distribution.margin:
        raise SettingsError(
            "the noise tables end before the margin does: do not use this build of shoal"
        )
    logs = [np.log(digit.weights.astype(np.float64)) for digit in distribution.inner]
    whole = _log_whole_scales(distribution)
    _check_falling([*logs, whole])
    return _farthest_pairs(distribution, logs, whole)


def _log_whole_scales(distribution: DiscreteLaplace) -> Floats:
    """ln P(A) + const for A = 0, 1, ... whole scales, over all levels.

    They go as far as the certificate needs them: the margin, and `steps` beyond it.
    """
    level = np.log(distribution.scales.weights.astype(np.float64)) - TABLE_BITS * math.log(2)
    count = MARGIN_SCALES + distribution.steps // distribution.scale + 2
    passed, digit = np.divmod(np.arange(count), ESCAPE)
    logs: Floats = passed * level[ESCAPE] + level[digit]
    return logs


def _check_falling(logs: list[Floats]) -> None:
    """Raises `SettingsError` unless P(k) >= P(k + 1) everywhere.

    Counting on increases a digit and resets all finer ones to 0: the first must lose at least what
    the others gain.
    """
    gain = 0.0
    for digit in logs:
        losses = -np.diff(digit)
        if len(losses) and losses.min() < gain:
            raise SettingsError(
                "the noise tables do not fall with distance: do not use this build of shoal"
            )
        gain += float(digit[0] - digit[-1])


def _farthest_pairs(distribution: DiscreteLaplace, logs: list[Floats], whole: Floats) -> float:
    """max over k < margin of ln P(k) - ln P(k + steps), by addition of `steps` digit by digit.

    As in addition by hand, what a digit of `steps` does depends on the finer digits only by the
    carry out of them. So the largest loss of all finer digits together is enough to know, once for
    each carry, and the maximum over all k takes as many comparisons as the tables have entries.
    """
    best = {0: 0.0}
    rest = distribution.steps
    for digit in logs:
        rest, shift = divmod(rest, digit.size)
        losses_by_carry: dict[int, float] = {}
        for carry, loss in best.items():
            added = shift + carry
            below = digit.size - added
            # Digits below `below` do not carry into the next digit; the others do, and wrap.
            without_carry = digit[:below] - digit[added:]
            with_carry = digit[below:] - digit[:added]
            for carried, losses in ((0, without_carry), (1, with_carry)):
                if losses.size:
                    largest = loss + float(losses.max())
                    known = losses_by_carry.get(carried, -math.inf)
                    losses_by_carry[carried] = max(known, largest)
        best = losses_by_carry
    n = MARGIN_SCALES
    largest = -math.inf
    for carry, loss in best.items():
        first = rest + carry
        of_scales = whole[:n] - whole[first : first + n]
        largest = max(largest, loss + float(of_scales.max()))
    return largest
