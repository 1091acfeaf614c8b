"""The mode `masked`: a guarantee for all readings of a client in a window, from noisy sums.

Clients count whole windows and add masks to the counts. Helpers, parties named in the contract,
take the masks away from the sum over a batch of clients, and each adds the whole noise to it
(`shoal.privacy.masks`, `shoal.protocol.masked`). As long as one helper keeps its secret and follows
the protocol, the sum with its noise is all that anybody learns, whatever the server, the other
helpers and all other clients do: noise does not depend on clients, so invented ones cannot thin it.

A client's counts are cut off at a squared length of `clip` x `clip`. No count is below zero, so two
such vectors are at most the root of 2 apart times `clip`, and with noise of variance v a window
costs rho = `clip`^2 / v.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from shoal.errors import SettingsError
from shoal.kernels.arrays import Bools, Ints
from shoal.privacy.base import (
    GAPS_IN_COUNTS,
    READING,
    Bounds,
    Description,
    Guarantee,
    Helper,
    Mechanism,
    PrivacyMode,
    PrivacyUnit,
    RowRange,
    Term,
    UnitName,
)
from shoal.privacy.count_noise import CountNoise
from shoal.privacy.formal import beliefs, title_of
from shoal.privacy.gaussian import (
    NANO,
    GaussianNoise,
    certify,
    chance_beyond,
    epsilon_of,
    gaussian_noise,
    nano_rho,
    nano_rho_of,
)
from shoal.privacy.gaussian import variance_for as smallest_variance
from shoal.text import counted

MECHANISM: Final = "masked-gaussian-counts"
DELTA: Final = 1e-6
CLIP_AXES: Final = 8
"""a window whose readings all lie in two bins of each of the `axes` is longer than W / sqrt(8
axes), and is cut off"""
CLIENTS_ADVISED: Final = 100
"""least number of clients: with fewer, noise hides most clusters"""
SIGNAL_NEEDED: Final = ((2, 200.0), (4, 250.0), (8, 370.0), (16, 430.0))
"""(features, clients x readings of a window x root of windows / standard deviation of the noise)
from which on density_tree found 4 to 8 Gaussian clusters that lie apart: an adjusted Rand index of
.95
(python -m benchmarks privacy.masked --choosing)"""
SECONDS_OF_A_DAY: Final = 86_400.0
DAYS_OF_A_YEAR: Final = 365.0
COUNT_LIMIT: Final = 2**31
"""sums of counts and noise stay below it, as they travel modulo twice as much"""
NOISE_REACH: Final = 40.0
"""standard deviations: more noise on a sum happens in one of e^800 counts"""
NOT_COVERED: Final = (
    "That a client takes part, when, and how many readings each of its windows has.",
    "A client in several windows: each window is protected, but what they cost adds up, to the "
    "budget if there is one.",
    "Helpers that all work together with somebody who reads the log: then nothing is protected. "
    "This rests on a contract between people, not on code.",
    "A faulty client: it can spoil the sum of its batch. One whose messages make sums impossible "
    "is found by leaving halves out of later batches; one whose counts are possible and wrong is "
    "not. So clients cannot be put into quarantine or unlearned, their claims cannot be checked, "
    "and shares per client are not shown.",
    "What a client has sent is in sums for good: it cannot be erased from a model.",
)


class Masked(PrivacyMode):
    """Differential privacy of all that a client publishes of a window, from masked sums of counts.

    The idea. If every client adds noise for itself, m clients carry m noises. Where nobody can see
    more than their sum, one noise is enough, and the signal of a cluster grows with the number of
    clients. So a client adds masks to its counts that only helpers can compute, and helpers give
    away only the sum of the masks of a whole batch of clients, less a noise. A message is

        y = counts + sum over helpers j of mask(K_cj, name)  modulo 2^32

    where K_cj is a key that client c and helper j agree on (X25519, HKDF), and `name` is all that
    the message is for.

    The steps of a round, in order:

    1. The server opens a round with a plan of counting, in its snapshot (`OpenRound`; all messages
       are in `shoal.protocol.masked`).
    2. A client counts a window under the plan. It leaves out readings, in a public order, until the
       sum of the squares of the counts is at most `clip_squared` (`clip_order`, `readings_within`).
    3. It charges `window_nano` to its ledger, once a window (`ledger.Ledger.charge_masked`), makes
       a nonce that depends on the counts (`masks.synthetic_nonce`), adds a mask for each helper
       (`masks.pair_key`, `masks.mask`), and publishes `MaskedCounts`. After a kill the same bytes
       come again.
    4. The server closes the round when at least `batch_min` clients have answered, and names the
       messages of the batch (`CloseRound`). At most `batch_max` fit into 32 bits.
    5. Each helper reads these messages from the log itself, refuses a window that was ever
       unmasked, adds up their masks, takes its own noise away (`noise`, `gaussian.GaussianNoise`),
       stores the result and publishes it signed (`HelperSum`). The same batch gets the same bytes.
    6. The server adds up the messages, takes the sums of all helpers away, and has the sum of the
       counts with the noise of all helpers (`signed_counts`). The model absorbs it as one update
       whose counts have `counts_variance`.

    What protects. As long as one helper keeps its secret, the sums of its masks are random numbers
    to everybody else; and as it adds the whole noise, the sum that comes out is private whatever
    the server, the other helpers and all other clients do. Noise does not depend on clients, so
    invented clients cannot thin it. With noise of variance v, a window costs rho =
    `squared_distance` / (2 v), and epsilon for any number of windows follows from the sum of rhos
    (`gaussian.epsilon_of`).

    What is kept. The mode keeps nothing: client, helper and server keep the windows, rounds and
    sums that they have taken, each in its own checkpoint.

    What it costs. The standard deviation of the noise is that of one helper times the root of their
    number. A message has 4 bytes a cell and about 200 more; a mask of 250 cells takes 15 us, the
    agreement on a key 95 us, once for each pair; a helper takes 34 ms for a round of 1 000 clients
    with 1 000 cells. Rounds wait while a helper is away. Nothing can be attributed to one client
    any more: see `NOT_COVERED`.

    Source: the arrangement of helpers is our own; the accounting is that of Canonne, Kamath and
    Steinke 2020 and of Balle and Wang 2018, see `shoal.privacy.gaussian`.
    """

    name = "masked"
    summary = (
        "guaranteed for all readings of a client in a window, where helpers that do not collude "
        "unmask sums"
    )
    mechanism_name = MECHANISM
    terms: ClassVar = {
        "epsilon": Term(
            "what a client's readings in `budget_windows` windows may cost together",
            at_most=40.0,
        ),
        "delta": Term("probability with which it may cost more", at_most=1e-3, default=DELTA),
        "budget_windows": Term("windows that `epsilon` is for", default=1.0, whole=True),
        "budget_epsilon": Term(
            "most that a client spends in any `budget_days`; as much as `epsilon` if left out",
            at_most=1e3,
            default=math.inf,
        ),
        "budget_days": Term(
            "span of the budget: further windows wait, or are left out",
            at_most=3660.0,
            default=math.inf,
        ),
        "clip": Term(
            "length at which the counts of a window are cut off; window_readings / sqrt(8 axes) if "
            "left out",
            default=math.inf,
        ),
        "axes": Term(
            "axes of each leaf of density_tree that a round counts",
            at_most=1024.0,
            default=2.0,
            whole=True,
        ),
        "batch_min": Term(
            "fewest clients in a batch", above=1.0, at_most=1e5, default=20.0, whole=True
        ),
        "batch_s": Term(
            "seconds that the server waits for more clients after the first of a round",
            at_most=1e7,
            default=600.0,
        ),
    }
    formal = True
    counts = True
    fills_gaps = True
    masked = True

    def __init__(
        self,
        bounds: Bounds,
        values: Mapping[str, float] | None = None,
        shares: Sequence[float] | None = None,
        counts_epsilon: float | None = None,
        unit: PrivacyUnit = READING,
        helpers: Sequence[Helper] = (),
        window_readings: int = 400,
    ) -> None:
        super().__init__(bounds, values, shares, counts_epsilon, unit)
        helpers_of: dict[str, list[Helper]] = {}
        for helper in helpers:
            helpers_of.setdefault(helper.region, []).append(helper)
        self.helpers = tuple(helpers_of.pop("", ()))
        self.regions = {region: tuple(members) for region, members in helpers_of.items()}
        """region -> its helpers, where all clients are in regions"""
        # A sum of one batch is unmasked by the helpers of one region, or by those of the
        # federation.
        if self.helpers and self.regions:
            raise SettingsError(
                "[[privacy.helpers]]: some have a region and some none. A federation of regions "
                "has no clients of its own: put them into a region"
            )
        if not helpers:
            raise SettingsError(
                'mode = "masked" needs [[privacy.helpers]]: at least one party other than the '
                "server that takes the "
                "masks away; make its key with `shoal keys helper`"
            )
        declared = self.values
        if "budget_epsilon" in declared and "budget_days" not in declared:
            raise SettingsError("budget_epsilon needs budget_days, the span that it is for")
        self.values = {}
        for name, term in self.terms.items():
            if name in declared:
                self.values[name] = declared[name]
            elif term.default is not None:
                self.values[name] = term.default
        self._axes = int(self.values["axes"])
        self._windows = int(self.values["budget_windows"])
        self.delta = float(self.values["delta"])
        self.clip_squared, self.variance = sum_terms(
            declared["epsilon"],
            self.delta,
            self._windows,
            window_readings,
            self._axes,
            declared.get("clip"),
        )
        """largest sum of the squares of a client's counts, and the variance of a helper's noise"""
        reach = NOISE_REACH * math.sqrt(self.variance * self._noises)
        # The square root: all counts of a client may be in one cell, whose square is then all that
        # the clip allows.
        most = min(window_readings, math.isqrt(self.clip_squared))
        self.batch_max = max(0, math.floor((COUNT_LIMIT - 1 - reach) / most))
        """clients whose counts and noise together fit into 32 bits in every cell"""
        if self.batch_max < self.values["batch_min"]:
            raise SettingsError(
                f"sums over batch_min = {self.values['batch_min']:g} clients and their noise do "
                "not fit into 32 bits: take a larger epsilon, a smaller clip, or a smaller "
                "batch_min"
            )
        # Found out now and not by clients that publish nothing without an error.
        if self.span_nano is not None and self.span_nano < self.window_nano:
            raise SettingsError(
                f"budget_epsilon is less than one window costs, {self.window_epsilon:.3g}: no "
                "client could publish any"
            )

    @classmethod
    def check_terms(
        cls,
        values: Mapping[str, float],
        counts_epsilon: float | None = None,
        unit: UnitName = "reading",
    ) -> None:
        """Raises `SettingsError`."""
        if counts_epsilon is not None:
            raise SettingsError(
                f'counts_epsilon means nothing in mode = "{cls.name}": epsilon is that of all '
                "models"
            )
        # The contract has to state it: what is protected must not depend on a default.
        if unit != "client":
            raise SettingsError(
                f'mode = "{cls.name}" protects all that a client says in a window: write unit = '
                '"client"'
            )
        super().check_terms(values, None, unit)

    @property
    def _noises(self) -> int:
        """Helpers whose noise is in a sum, in the region that has most."""
        return max(len(helpers) for helpers in (self.helpers, *self.regions.values()))

    @property
    def squared_distance(self) -> int:
        """Greatest squared distance of two vectors of counts of one client."""
        return 2 * self.clip_squared

    @property
    def window_nano(self) -> int:
        """Billionths of rho that one window of a client costs in one model."""
        return nano_rho(self.squared_distance, self.variance)

    @property
    def window_epsilon(self) -> float:
        """Epsilon of one window in one model, at `delta`."""
        return epsilon_of(self.window_nano / NANO, self.delta)

    @property
    def span_s(self) -> float | None:
        """Seconds of the span of the budget; None without one."""
        days = self.values["budget_days"]
        if math.isinf(days):
            return None
        return days * SECONDS_OF_A_DAY

    @property
    def span_nano(self) -> int | None:
        """Billionths of rho that a client may spend in such a span in all its models.

        None without a budget.
        """
        if self.span_s is None:
            return None
        epsilon = self.values["budget_epsilon"]
        if math.isinf(epsilon):
            epsilon = self.values["epsilon"]
        return nano_rho_of(epsilon, self.delta)

    def windows_needed(self, clients: int, features: int, readings: float) -> int:
        """Windows of `readings` of each client until density_tree finds clusters that lie apart.

        See `SIGNAL_NEEDED`; more features than are known there need at least what the most do.
        """
        signal_needed = 0.0
        for features_max, signal in SIGNAL_NEEDED:
            signal_needed = signal
            if features <= features_max:
                break
        deviation = math.sqrt(self.variance * self._noises)
        # The signal grows with the root of the windows: solved for their number.
        return max(1, math.ceil((signal_needed * deviation / (clients * readings)) ** 2))

    def noise(self) -> GaussianNoise:
        """The noise that each helper adds to each count of a sum.

        Raises `SettingsError` for a table that is wrong.
        """
        noise = gaussian_noise(self.variance)
        certify(noise)
        return noise

    def epsilon_per_feature(self) -> tuple[float, ...]:
        return ()

    def mechanism(self, key: bytes | None, client: str, source: bytes) -> Mechanism:
        raise SettingsError(
            f'mode = "{self.name}" releases no rows: take models that learn from counts'
        )

    def row_range(self) -> RowRange:
        return RowRange(np.zeros(self.bounds.d), np.ones(self.bounds.d))

    def count_noise(self, epsilon: float | None) -> CountNoise | None:
        """None: a client adds masks, and helpers the noise."""
        if epsilon is not None:
            raise SettingsError(
                f'counts_epsilon means nothing in mode = "{self.name}": epsilon is that of all '
                "models"
            )
        return None

    def counts_variance(self, epsilon: float | None) -> float:
        # Sums of regions come with how many such noises are in them, as their numbers of helpers
        # may differ.
        if self.regions:
            return float(self.variance)
        return float(self.variance * len(self.helpers))

    def counts_epsilon_of(self, epsilon: float | None) -> float | None:
        return self.window_epsilon

    def epsilon_spent(self) -> tuple[float, float]:
        return self.window_epsilon, self.window_epsilon

    def sum_of_epsilons(self, epsilons: Sequence[float]) -> float:
        """Rhos add up, not epsilons: each stream costs the rho of a window."""
        # Epsilons of several windows add up to less than their sum: converted once, at the end.
        streams = sum(epsilon > 0.0 for epsilon in epsilons)
        return epsilon_of(streams * self.window_nano / NANO, self.delta)

    def count_statement(self, epsilon: float | None, window_readings: int) -> dict[str, Any]:
        return {
            **self.statement(),
            "epsilon": self.window_epsilon,
            "delta": self.delta,
            "rho_nano": self.window_nano,
            "window_readings": window_readings,
            "helpers": self.trusted,
        }

    @property
    def trusted(self) -> list[str]:
        """The helpers by name, those of a region as `region/name`."""
        names = [helper.name for helper in self.helpers]
        for region, helpers in self.regions.items():
            for helper in helpers:
                names.append(f"{region}/{helper.name}")
        return names

    def statement(self) -> dict[str, Any]:
        return {**super().statement(), "mechanism": MECHANISM}

    def describe(self) -> Description:
        title, tone = title_of(self._promised_epsilon, "all that a client says")
        return Description(
            title,
            tone,
            (
                "EXPERIMENTAL: this mode has had no audit; do not rely on it yet for readings "
                "that need protection.",
                "Every client counts its readings in windows and masks the counts before they "
                f"leave it. The helpers {', '.join(self.trusted)} take the masks away from sums "
                f"over batches of at least {self.values['batch_min']:g} clients only, and each "
                "adds the whole noise. The noise protects, not the number of clients.",
                *self._gap_sentences(),
                "Take at least 100 clients, 200 for 8 features or more: with fewer, few clusters "
                "are found.",
            ),
            NOT_COVERED,
            self._guarantee(),
        )

    @property
    def _promised_epsilon(self) -> float:
        """Epsilon of the whole span of the budget; without one, of the windows it is declared
        for."""
        if self.span_nano is None:
            return self.values["epsilon"]
        return epsilon_of(self.span_nano / NANO, self.delta)

    @property
    def _chance_beyond(self) -> float:
        """Probability with which somebody learns more than the promised epsilon says, at most."""
        rho = self._windows * self.window_nano
        if self.span_nano is not None:
            rho = self.span_nano
        chance = chance_beyond(rho / NANO, self._promised_epsilon)
        # One digit, rounded up: a bound never shrinks where it is shown.
        unit = 10.0 ** math.floor(math.log10(chance))
        return math.ceil(chance / unit) * unit

    def _guarantee(self) -> Guarantee:
        epsilon = self.values["epsilon"]
        windows = "in one window" if self._windows == 1 else f"in any {self._windows} windows"
        whose = " of its region" if self.regions else ""
        return Guarantee(
            "a client: all that its readings are about together.",
            f"all readings of a client {windows}, at epsilon {epsilon:g} for each model; one "
            f"window costs {self.window_epsilon:.3g}.",
            self._budget_sentence(),
            "everybody who reads the log, the server and all other clients, also all together and "
            "whatever else they know.",
            f"{beliefs(self._promised_epsilon)} What is published tells more than that with a "
            f"probability of at most {self._chance_beyond:.1g}. It follows from delta, "
            f"{self.delta:g}: by so much a set of results may be likelier than epsilon allows.",
            "all helpers together with somebody who reads the log: it holds as long as ONE of the "
            f"helpers{whose} keeps its secret and its state and follows the protocol. Or breaking "
            "the encryption (X25519, AES), or reading the client's folder, which has the raw "
            "readings." + "".join(f" {sentence}" for sentence in self._region_sentences()),
        )

    def _region_sentences(self) -> tuple[str, ...]:
        """Whom the clients of each region trust."""
        sentences = []
        for region, helpers in self.regions.items():
            names = " or ".join(helper.name for helper in helpers)
            sentences.append(
                f"A client of region {region} relies on {names}; no helper of another region "
                "protects it."
            )
        return tuple(sentences)

    def _gap_sentences(self) -> tuple[str, ...]:
        if self.missing == "learn":
            return (GAPS_IN_COUNTS,)
        return ()

    def _budget_sentence(self) -> str:
        if self.span_s is None or self.span_nano is None:
            return "there is no budget: with every further window a client spends as much again."
        windows = self.span_nano // self.window_nano
        return (
            f"in any {self.span_s / SECONDS_OF_A_DAY:g} days a client spends at most epsilon "
            f"{self._promised_epsilon:.3g} in all models together, which is "
            f"{counted(windows, 'window')} of one model; its ledger refuses more, "
            "also to masked models of other federations on the same readings."
            f"{self._year_sentence()}"
        )

    def _year_sentence(self) -> str:
        """What the spans of a year cost together; empty where one span is a year or more."""
        assert self.span_s is not None
        assert self.span_nano is not None
        # A year lies in as many spans that follow each other, each with its budget.
        spans = math.ceil(DAYS_OF_A_YEAR * SECONDS_OF_A_DAY / self.span_s)
        if spans < 2:
            return ""
        epsilon = epsilon_of(spans * self.span_nano / NANO, self.delta)
        return f" Spans add up: in a year to epsilon {epsilon:.3g} at most."


def sum_terms(
    epsilon: float,
    delta: float,
    windows: int,
    window_readings: int,
    axes: int,
    clip: float | None = None,
) -> tuple[int, int]:
    """(largest sum of the squares of a client's counts, variance of the noise).

    They are those for `epsilon` in this many windows. `axes`: how many of each leaf are counted.
    `clip`: largest length of the counts; None: what the readings of two bins of each axis have.
    Raises `SettingsError` for a clip that allows no reading.
    """
    longest = clip
    if longest is None:
        longest = window_readings / math.sqrt(CLIP_AXES * axes)
    # Rounded down: counts are integers, so the sum of their squares is one too.
    squared = math.floor(longest * longest)
    if squared < 1:
        raise SettingsError("clip must be at least 1: no reading could be counted")
    # Two vectors of counts of length L with no negative entry are at most L times the root of 2
    # apart.
    return squared, smallest_variance(2 * squared, nano_rho_of(epsilon, delta) // windows)


def clip_order(name: bytes, number: int, places: int) -> Ints:
    """A public order (places,) of the places of window `number`: what is cut off is spread over all
    of it.

    `name`: the public name of the client and its model.
    """
    # Public and new for each window: a fixed order would leave out the same hours every day.
    drawn = hashlib.shake_256(b"clip order" + name + number.to_bytes(8, "little"))
    # Little-endian and stable: the order is a part of the protocol, and must not depend on the
    # machine.
    return np.argsort(np.frombuffer(drawn.digest(8 * places), dtype="<u8"), kind="stable")


def readings_within(
    counts_of: Any, valid: Bools, order: Ints, clip_squared: int
) -> tuple[Any, int]:
    """The counts of as many valid readings as the clip allows, and how many those are.

    `counts_of` counts the readings that a mask (n,) names; `order` (n,) is the public order in
    which readings are left out from its end. A further reading never makes a sum of squares
    smaller, so bisection finds the most. It takes as many steps, each of which counts as many
    readings, whether anything is cut off or not: the time at which a window is published must not
    tell how its readings lie.
    """
    # A power of two, so that the number of steps depends on the public length of the window alone.
    low = 0
    high = 1 << len(valid).bit_length()
    while high - low > 1:
        middle = (low + high) // 2
        first = _only(valid, order[:middle])
        counted = counts_of(first)
        # For its time alone: with these, every step counts each valid reading once.
        counts_of(valid & ~first)
        if middle <= len(valid) and _squared(counted.counts) <= clip_squared:
            low = middle
        else:
            high = middle
    kept = _only(valid, order[:low])
    return counts_of(kept), int(kept.sum())


def _only(valid: Bools, places: Ints) -> Bools:
    kept = np.zeros(len(valid), dtype=np.bool_)
    kept[places] = True
    return kept & valid


def _squared(counts: Ints) -> int:
    return int(counts @ counts)
