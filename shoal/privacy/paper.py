"""The mode `paper`: the noise of the FCAC paper. IT GIVES NO FORMAL GUARANTEE.

It is for reproduction and comparison. Source: Masuyama et al. 2023, "Privacy-preserving Continual
Federated Clustering via Adaptive Resonance Theory", eq. 2-4: x' = x + L(v), L(v) = -(range /
epsilon) sgn(v) ln(1 - 2|v|), v uniform in (-0.5, 0.5), where range is the maximum minus the minimum
of the feature *in the data themselves*, and epsilon applies to each feature. The range depends on
the readings, so the noise of all of them reveals the extremes, and no epsilon holds.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeGuard

import numpy as np

from shoal.errors import InvalidData, InvalidState, SettingsError
from shoal.kernels.arrays import Bools, Floats, Words
from shoal.privacy.base import (
    NOT_COVERED,
    Bounds,
    Description,
    Mechanism,
    PrivacyMode,
    Released,
    RowRange,
    Term,
    check_state,
    require_key,
)
from shoal.privacy.keyed import KeyedRandomness, Places

GRAIN = 2.0**-20
"""rows are rounded to this part of the range: a double of full precision would show which readings
are impossible"""
UNIT_NOISE_MAX = 52 * float(np.log(2.0))
"""largest |L(v)| for range / epsilon = 1, since |v| is at most (1 - 2^-52) / 2"""
STATE_VERSION = 1


def unit_laplace(words: Words) -> Floats:
    """words (...) of 64 random bits -> (...) noises of eq. 3 with mean 0 and range / epsilon = 1.

    v lies half-way between multiples of 2^-52 (exact in doubles), so -0.5, whose logarithm is
    infinite, cannot occur.
    """
    v = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52 - 0.5
    unit: Floats = -np.sign(v) * np.log(1.0 - 2.0 * np.abs(v))
    return unit


def paper_noise(
    rows: Floats, epsilon: float, noise: np.random.Generator | Floats, *, rounded: bool = True
) -> Floats:
    """rows (n, d) -> the rows with the noise of eq. 2-4, the same nominal `epsilon` for every
    feature.

    `noise` is a generator, or unit-scale Laplace values (n, d). A feature that does not vary gets
    no noise, as in the paper. Rounded to 2^-20 of each feature's range unless `rounded` is false.
    Raises `InvalidData`.
    """
    rows = np.asarray(rows, dtype=np.float64)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise InvalidData(f"rows of shape {rows.shape} where finite (n, d) are needed")
    if not epsilon > 0:
        raise SettingsError(f"epsilon must be above 0, not {epsilon}")
    if isinstance(noise, np.random.Generator):
        noise = unit_laplace(noise.integers(0, 2**64, size=rows.shape, dtype=np.uint64))
    if noise.shape != rows.shape:
        raise InvalidData(f"unit noise of shape {noise.shape} for rows of shape {rows.shape}")
    if not len(rows):
        return rows.copy()
    span = np.ptp(rows, axis=0)
    noised: Floats = rows + noise * (span / epsilon)
    if not rounded:
        return noised
    # A feature that does not vary would divide by 0; it stays as it is.
    grain = np.where(span > 0, span, 1.0) * GRAIN
    return np.where(span > 0, np.rint(noised / grain) * grain, noised)


class Paper(PrivacyMode):
    """Equations 2 to 4 with the running range of the client's own readings.

    Epsilon only names a noise level.
    """

    name = "paper"
    summary = "equations 2-4 of FCAC, no guarantee"
    mechanism_name = "laplace-running-range"
    terms: ClassVar = {
        "epsilon_nominal_per_feature": Term(
            "the epsilon of equation 3 of the paper, the same for each feature"
        )
    }

    def epsilon_per_feature(self) -> tuple[float, ...]:
        return (float(self.values["epsilon_nominal_per_feature"]),) * self.bounds.d

    def mechanism(self, key: bytes | None, client: str, source: bytes) -> Mechanism:
        randomness = KeyedRandomness(
            require_key(key, self.name), client, source, self.context(), self.bounds.d
        )
        return PaperNoise(self.bounds, self.values["epsilon_nominal_per_feature"], randomness)

    def row_range(self) -> RowRange:
        # The range is at most that of the bounds, the noise at most UNIT_NOISE_MAX scales, and
        # rounding adds a grain.
        beyond = UNIT_NOISE_MAX / np.array(self.epsilon_per_feature()) + GRAIN
        return RowRange(-beyond, 1.0 + beyond)

    def describe(self) -> Description:
        epsilon = self.values["epsilon_nominal_per_feature"]
        d = self.bounds.d
        return Description(
            "Noise without a formal guarantee",
            "warn",
            (
                "Every client adds Laplace noise to each reading before anything learns from it, "
                "as in equations 2 to 4 of Masuyama et al. 2023, with a nominal epsilon of "
                f"{epsilon:g} for each of {d} features. The reading itself never leaves the "
                "client.",
                "There is NO FORMAL GUARANTEE: the noise is scaled to the range of the client's "
                "own readings and not to declared bounds, so its size reveals extreme readings, "
                "and epsilon only names a noise level. Use this mode to reproduce and compare, "
                "never for readings that must stay private.",
            ),
            (
                "The range of a client's readings: it shows in the size of the noise, so that an "
                "extreme reading can be recognised.",
                *NOT_COVERED,
            ),
        )


class PaperNoise:
    """Eq. 2-4 on a stream: the range is that of the readings so far, in unit coordinates.

    As long as any feature has not varied its noise would be zero and the reading public. Such
    readings are withheld: dropped, and counted in `withheld`.
    """

    def __init__(self, bounds: Bounds, epsilon: float, randomness: KeyedRandomness) -> None:
        self._bounds = bounds
        self._epsilon = epsilon
        self._randomness = randomness
        self._low = np.full(bounds.d, np.inf)
        self._high = np.full(bounds.d, -np.inf)
        self.withheld = 0

    def privatise(self, readings: Floats, places: Places) -> Released:
        inside, clipped = self._bounds.clip(readings)
        unit = self._bounds.to_unit(inside)
        # The reading is a part of what the noise is drawn from: another reading at the same place
        # gets other noise.
        words = self._randomness.draw(
            places, np.rint(unit / GRAIN).astype(np.int64), self._bounds.d
        )
        # Bounds grow reading by reading, so a batch gets the noise that single readings would get.
        low = np.minimum.accumulate(np.vstack([self._low, unit]), axis=0)
        high = np.maximum.accumulate(np.vstack([self._high, unit]), axis=0)
        span = high[1:] - low[1:]
        # All features must have varied: noise on some of them alone would leave the others public.
        kept: Bools = np.min(span, axis=1) > 0
        noised = unit[kept] + unit_laplace(words[kept]) * (span[kept] / self._epsilon)
        self._low = low[-1]
        self._high = high[-1]
        self.withheld += int((~kept).sum())
        return Released(np.rint(noised / GRAIN) * GRAIN, kept, clipped)

    def state(self) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "mode": Paper.name,
            "fingerprint": self._randomness.fingerprint,
            "low": self._low.copy(),
            "high": self._high.copy(),
            "withheld": self.withheld,
        }

    def restore(self, state: dict[str, Any]) -> None:
        check_state(state, STATE_VERSION, Paper.name, self._randomness.fingerprint)
        low = state.get("low")
        high = state.get("high")
        withheld = state.get("withheld")
        if not (_is_row(low, self._bounds.d) and _is_row(high, self._bounds.d)):
            raise InvalidState(
                "a saved running range does not fit these features; start from an intact checkpoint"
            )
        unseen = np.isposinf(low).all() and np.isneginf(high).all()
        if not (unseen or ((low >= 0) & (low <= high) & (high <= 1)).all()):
            raise InvalidState(
                "a saved running range is not within the bounds; start from an intact checkpoint"
            )
        if not isinstance(withheld, int) or withheld < 0:
            raise InvalidState(
                "a saved count of withheld readings is not a count; start from an intact checkpoint"
            )
        self._low = low.copy()
        self._high = high.copy()
        self.withheld = withheld


def _is_row(value: object, d: int) -> TypeGuard[Floats]:
    return isinstance(value, np.ndarray) and value.shape == (d,) and value.dtype == np.float64
