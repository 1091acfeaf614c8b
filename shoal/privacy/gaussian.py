"""Exact discrete Gaussian noise for sums of counts, with a certificate, and its cost in privacy.

P(k) is proportional to exp(-k^2 / (2 v)) on the whole numbers, v a whole number. For two vectors of
counts whose difference has the length D, noise of this kind on every count is D^2 / (2 v)-zCDP
(Canonne, Kamath and Steinke 2020). Ledgers charge a little more, D^2 / (2 (v - 4)), for
which more is true: it is the rho of a continuous Gaussian that protects no better. Rho adds up over
windows, whatever was learnt from those before, and a total is the (epsilon, delta) of one
continuous Gaussian for every delta (`epsilon_of`): the noise for epsilon 1 to 4 is 6 to 7 % less
than by way of zCDP alone.

The sampler is the inversion of the distribution function. A word of 63 random bits is looked up in
a table of the function's leading 63 bits. Where the word is larger or smaller than an entry, all
further bits of both make no difference. Where it is equal, as one word in about 10^15 is, further
bits are drawn and the function is computed to more digits until they differ. So no result is cut
off and none is rounded: the distribution is the discrete Gaussian itself.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Final

import numpy as np

from shoal.errors import SettingsError
from shoal.kernels.arrays import Ints, Words
from shoal.privacy.keyed import Lookup

NANO: Final = 10**9
"""a rho of 1 in whole numbers, as the ledger has it"""
TABLE_BITS: Final = 63
VARIANCE_MAX: Final = 10**10
"""squared readings: a table for more would take seconds to make"""
# 63 bits are 19 digits; the others make sure that rounding decides no entry of the table.
_DIGITS: Final = 50
# More than the table was made with, so that the certificate finds an error of its making.
_CERTIFICATE_DIGITS: Final = 60
# Each term is the one before times a ratio; made anew this often, rounding cannot add up.
_CERTIFICATE_BLOCK: Final = 256
_WORD_BYTES: Final = 8
# A word falls on an entry once in 2^63 draws, and again on the finer one hardly ever.
_FINER_BITS: Final = 128
_PI: Final = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803"
)


@dataclass(frozen=True, eq=False)
class GaussianNoise:
    """The discrete Gaussian of a variance; all of it is public."""

    variance: int
    """v, in squared readings; the variance of one draw is this or hardly less"""
    below: Words
    """(n,) the whole part of 2^63 times the probability of a magnitude of at most 0 .. n - 1"""

    @cached_property
    def _lookup(self) -> Lookup:
        return Lookup(self.below)

    @cached_property
    def _entries(self) -> Words:
        return np.unique(self.below)

    def draw(self, seed: bytes, cells: int) -> Ints:
        """The noises (cells,) of a secret seed.

        Each takes 64 bits of SHAKE-256, and more where a word is an entry of the table.
        """
        words = np.frombuffer(hashlib.shake_256(seed).digest(_WORD_BYTES * cells), dtype="<u8")
        return self.of_words(words.astype(np.uint64, copy=False), seed)

    def of_words(self, words: Words, seed: bytes) -> Ints:
        """words (n,) of 64 random bits -> (n,) noises; `seed` gives further bits.

        The lowest bit of a word is the sign, the others are looked up.
        """
        upper = words >> np.uint64(1)
        noise = self._lookup.find(upper)
        # Words on an entry of the table fall between two noises: only finer bits can tell which.
        place = np.minimum(np.searchsorted(self._entries, upper), len(self._entries) - 1)
        for cell in np.flatnonzero(self._entries[place] == upper).tolist():
            noise[cell] = self._finer(int(upper[cell]), seed, cell)
        # A magnitude of 0 has both signs: its entry in the table has its whole probability, the
        # entries of all others twice theirs.
        return np.where(words & np.uint64(1), -noise, noise)

    def _finer(self, word: int, seed: bytes, cell: int) -> int:
        """The magnitude for a word that is an entry of the table: more bits of both decide."""
        level = 1
        while True:
            bits = TABLE_BITS + level * _FINER_BITS
            more = hashlib.shake_256(seed + b"finer" + cell.to_bytes(8, "little")).digest(
                level * _FINER_BITS // 8
            )
            drawn = word << (level * _FINER_BITS) | int.from_bytes(more, "big")
            magnitude = _magnitude(self.variance, drawn, bits)
            if magnitude is not None:
                return magnitude
            level += 1


def _magnitude(variance: int, drawn: int, bits: int) -> int | None:
    """The smallest j whose distribution function lies above drawn / 2^bits.

    None where more bits must decide: the function lies between `drawn` and the next number, or too
    near to either for its digits.
    """
    # log10(2) is .30103: as many digits as the bits have, and twenty for rounding on the way.
    digits = int(bits * 0.302) + 20
    exact = Context(prec=digits + 10, rounding=ROUND_HALF_EVEN)
    unit = Decimal(2**bits)
    error = exact.multiply(unit, Decimal(10) ** -digits)
    low = Decimal(drawn)
    high = Decimal(drawn + 1)
    total = _normaliser(variance, exact)
    for j, reached in enumerate(_running_sums(variance, exact)):
        at = exact.multiply(unit, exact.divide(reached, total))
        if exact.subtract(at, error) >= high:
            return j
        if exact.add(at, error) > low:
            return None
    raise AssertionError("a distribution function reaches 1")


def _running_sums(variance: int, exact: Context) -> Iterator[Decimal]:
    """The sum of exp(-k^2 / (2 v)) over |k| <= j, for j = 0, 1, 2, ...

    By repeated multiplication: k^2 grows by 2 k + 1, so the weight shrinks by a ratio that itself
    shrinks by exp(-2 / (2 v)) each time. An exponential for every k would take seconds.
    """
    two_v = Decimal(2 * variance)
    weight = Decimal(1)
    total = Decimal(1)
    ratio = exact.exp(exact.divide(Decimal(-1), two_v))
    step = exact.exp(exact.divide(Decimal(-2), two_v))
    while True:
        yield total
        weight = exact.multiply(weight, ratio)
        ratio = exact.multiply(ratio, step)
        total = exact.add(total, 2 * weight)


def _normaliser(variance: int, exact: Context) -> Decimal:
    """The sum of exp(-k^2 / (2 v)) over all k, until no further term changes it."""
    before = Decimal(0)
    for total in _running_sums(variance, exact):
        if total == before:
            return total
        before = total
    raise AssertionError("the sum converges")


@lru_cache(maxsize=8)
def gaussian_noise(variance: int) -> GaussianNoise:
    """The discrete Gaussian of this whole-numbered variance.

    Raises `SettingsError` for one out of range.
    """
    if not 1 <= variance <= VARIANCE_MAX:
        raise SettingsError(
            f"noise of variance {variance} is outside 1..{VARIANCE_MAX}: take a larger epsilon, a "
            "smaller clip, or fewer windows to a budget"
        )
    exact = Context(prec=_DIGITS, rounding=ROUND_HALF_EVEN)
    total = _normaliser(variance, exact)
    unit = exact.divide(Decimal(2**TABLE_BITS), total)
    last = 2**TABLE_BITS - 1
    below: list[int] = []
    for reached in _running_sums(variance, exact):
        # Rounded down: a word that equals an entry is decided by further bits.
        entry = min(int(exact.multiply(reached, unit)), last)
        below.append(entry)
        if entry == last:
            break
    return GaussianNoise(variance, np.array(below, dtype=np.uint64))


def certify(noise: GaussianNoise) -> None:
    """Raises `SettingsError` unless the table is the discrete Gaussian's distribution function.

    It must hold the leading 63 bits of that. They are computed in other ways than the table was
    made: the normaliser by Poisson's summation formula, and the weights from exponentials of their
    own every 256 entries. With a table that passes, a draw has the distribution exactly.
    """
    exact = Context(prec=_CERTIFICATE_DIGITS, rounding=ROUND_HALF_EVEN)
    v = Decimal(noise.variance)
    # Poisson's summation formula: sqrt(2 pi v) times the sum of exp(-2 pi^2 v m^2) over all m. For
    # v >= 1 the term of m = 5 is below 10^-200, so that four on each side are enough.
    total = exact.sqrt(exact.multiply(2 * _PI, v))
    turn = exact.multiply(exact.multiply(-2 * _PI, _PI), v)
    others = Decimal(0)
    for m in range(1, 5):
        others += exact.exp(turn * m * m)
    total = exact.multiply(total, 1 + 2 * others)
    unit = Decimal(2**TABLE_BITS)
    # Far above what rounding adds up to in 10^6 steps, and far below one part in 2^63.
    slack = Decimal(10) ** -15
    reached = Decimal(0)
    weight = Decimal(0)
    ratio = Decimal(0)
    step = Decimal(0)
    entries = noise.below.tolist()
    for j, entry in enumerate(entries):
        if j % _CERTIFICATE_BLOCK == 0:
            weight = exact.exp(exact.divide(Decimal(-j * j), 2 * v))
            ratio = exact.exp(exact.divide(Decimal(-2 * j - 1), 2 * v))
            step = exact.exp(exact.divide(Decimal(-1), v))
        # Of magnitude 0 there is one number, of every other one there are two.
        numbers = 1 if j == 0 else 2
        reached = exact.add(reached, numbers * weight)
        at = exact.divide(exact.multiply(unit, reached), total)
        if not entry - slack <= at <= entry + 1 + slack:
            raise SettingsError(
                "the table of Gaussian noise is not what it must be: do not use this build of shoal"
            )
        # exp(-(j + 1)^2 / (2 v)) from that of j: the exponent falls by (2 j + 1) / (2 v).
        weight = exact.multiply(weight, ratio)
        ratio = exact.multiply(ratio, step)
    if not entries or entries[-1] != 2**TABLE_BITS - 1:
        raise SettingsError(
            "the table of Gaussian noise ends too early: do not use this build of shoal"
        )


def certified_rho(noise: GaussianNoise, squared_distance: int) -> Fraction:
    """The true rho of two vectors of counts that are the square root of `squared_distance` apart.

    Raises `SettingsError` as `certify` does.
    """
    certify(noise)
    return Fraction(squared_distance, 2 * noise.variance)


ROUNDED: Final = 4
"""variance by which the discrete Gaussian may exceed the continuous one whose cost it is charged;
see `epsilon_of`"""


def nano_rho(squared_distance: int, variance: int) -> int:
    """Billionths of rho that a ledger is charged, rounded up.

    They are those of a continuous Gaussian of `ROUNDED` less variance. Raises `SettingsError` for a
    variance that is no larger than that.
    """
    if variance <= ROUNDED:
        raise SettingsError(
            f"noise of variance {variance} costs no rho that could be named: take a smaller epsilon"
        )
    return -(-NANO * squared_distance // (2 * (variance - ROUNDED)))


def variance_for(squared_distance: int, nano: int) -> int:
    """The smallest variance for which `nano_rho` is at most `nano`.

    Raises `SettingsError` where there is none.
    """
    if nano < 1:
        raise SettingsError(
            "the budget is less than a billionth of rho for each window: take a larger epsilon"
        )
    return ROUNDED + max(1, -(-NANO * squared_distance // (2 * nano)))


_SLACK: Final = 1e-9
"""relative, on epsilon and delta: above what floats lose here, and what rounding the continuous
Gaussian changes"""
# Beyond it exp and erfc come near to overflow and underflow (at 37), and four terms of the series
# are enough: a delta is below e^-312 there.
_MILLS_DIRECT: Final = 25.0


def epsilon_of(rho: float, delta: float) -> float:
    """The epsilon that a total charge of `rho` guarantees together with `delta`.

    It is exact for continuous Gaussian noise (Balle and Wang 2018), of which rounds that
    add up to this rho are no worse than a single one, whatever was learnt from those before (Dong,
    Roth and Su 2022, corollary 3.3). And it holds for the discrete Gaussian of variance v, because
    that is what remains of a continuous one of variance v - 4 if every count is then rounded by a
    discrete Gaussian of variance 4 around it: by Poisson's summation formula the chances of all
    results agree up to a factor of 1 + 8 exp(-8 pi^2), which is 1 + 4 / 10^34, so that not even
    10^12 counts add up to anything that `_SLACK` does not cover.
    """
    if rho <= 0.0:
        return 0.0
    mu = math.sqrt(2.0 * rho)
    low = 0.0
    high = 1.0
    while gaussian_delta(mu, high) > delta / (1.0 + _SLACK):
        low = high
        high = 2.0 * high
    # More halvings than a float has bits: the interval has ended at two neighbouring numbers.
    for _ in range(100):
        middle = (low + high) / 2.0
        if gaussian_delta(mu, middle) > delta / (1.0 + _SLACK):
            low = middle
        else:
            high = middle
    # The upper end, so that an error of the search states too much and never too little.
    return high * (1.0 + _SLACK)


def chance_beyond(rho: float, epsilon: float) -> float:
    """A bound on the probability that what a total charge of `rho` publishes multiplies somebody's
    odds by more than exp(epsilon); larger than the delta of this epsilon.

    With L the logarithm of the odds' factor, delta(e) is at least the mean of 1 - exp(e - L) where
    L is above e, and so at least P(L > epsilon) (1 - exp(e - epsilon)) for each e below epsilon:
    the bound is the smallest quotient of the two over a hundred such e. Like `epsilon_of` it also
    holds for what is computed from the results.
    """
    mu = math.sqrt(2.0 * rho)
    quotients = [1.0]
    for percent in range(100):
        nearer = epsilon * percent / 100.0
        quotients.append(
            gaussian_delta(mu, nearer) * (1.0 + _SLACK) / -math.expm1(nearer - epsilon)
        )
    return min(quotients)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The least delta for this epsilon of two continuous Gaussians `mu` deviations apart.

    Source: Balle and Wang 2018, the analytic Gaussian mechanism, with mu = sensitivity / standard
    deviation.
    """
    # The theorem's delta is P(Z > near) - exp(epsilon) P(Z > far), whose terms are almost equal for
    # small delta. They have the density at `near` in common, as that at `far` is exp(-epsilon)
    # times it: what remains is a difference of two quotients, which never overflow.
    near = epsilon / mu - mu / 2.0
    far = epsilon / mu + mu / 2.0
    # There the exponential of `_mills` overflows, and the chance is 1 in all digits of a float.
    if near < -_MILLS_DIRECT:
        return 1.0
    return math.exp(-near * near / 2.0) / math.sqrt(2.0 * math.pi) * (_mills(near) - _mills(far))


def _mills(x: float) -> float:
    """Mills' ratio: the chance of a standard Gaussian above x over its density at x."""
    if x <= _MILLS_DIRECT:
        return math.sqrt(math.pi / 2.0) * math.exp(x * x / 2.0) * math.erfc(x / math.sqrt(2.0))
    # 1/x - 1/x^3 + 3/x^5 - 15/x^7, the asymptotic series.
    return (1.0 - (1.0 - (3.0 - 15.0 / (x * x)) / (x * x)) / (x * x)) / x


@lru_cache(maxsize=256)  # milliseconds each, and a mode asks for the same at every turn
def nano_rho_of(epsilon: float, delta: float) -> int:
    """The largest whole billionths of rho that cost at most this epsilon and delta."""
    # Bisection on whole numbers: the answer is exact, and the same on every machine.
    low = 0
    high = NANO
    while epsilon_of(high / NANO, delta) <= epsilon:
        low = high
        high = 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if epsilon_of(middle / NANO, delta) <= epsilon:
            low = middle
        else:
            high = middle
    return low
