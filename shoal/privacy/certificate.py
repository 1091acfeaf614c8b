"""The true epsilon of the noise tables, computed from their integers.

It is the largest log-ratio of probabilities over all results (the two ends included) and all pairs of grid values. It
uses no statistics and does not rely on how the tables were derived. The digits of k are independent, so that the
maximum over all k is found digit by digit with a carry, in about a millisecond.

Why the pairs k, k + steps suffice. For a result between the ends two grid values need magnitudes k at most
`steps` apart, and P falls with k (checked), so those exactly `steps` apart are the worst. An end atom is the
sum of P(k) over all k from some k0 on, against the same sum from at most k0 + steps on: its ratio is a mean of
ratios P(k) / P(k + steps), and these repeat with every level of whole scales, of which the margin holds more
than one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from shoal.errors import SettingsError
from shoal.privacy.laplace import ESCAPE, MARGIN_SCALES, TABLE_BITS, DiscreteLaplace


def certified_epsilon(distribution: DiscreteLaplace) -> float:
    """Largest |ln P(y | g) - ln P(y | g')| over all y and all g, g' in 0..steps, to about 1e-13.

    Raises `SettingsError` if the probabilities do not fall with distance, without which the pairs examined
    (those `steps` apart) need not be the worst, or if the levels end inside the margin.
    """
    if distribution.levels * ESCAPE * distribution.scale < distribution.steps + distribution.margin:
        raise SettingsError("the noise tables end before the margin does: do not use this build of shoal")
    logs = [np.log(digit.weights.astype(np.float64)) for digit in distribution.inner]
    whole = _log_whole_scales(distribution)
    _check_falling([*logs, whole])
    return _farthest_pairs(distribution, logs, whole)


def _log_whole_scales(distribution: DiscreteLaplace) -> NDArray[np.float64]:
    """ln P(A) + const for A = 0, 1, ... whole scales, over all levels, as far as the certificate needs them."""
    level = np.log(distribution.scales.weights.astype(np.float64)) - TABLE_BITS * math.log(2)
    count = MARGIN_SCALES + distribution.steps // distribution.scale + 2
    passed, digit = np.divmod(np.arange(count), ESCAPE)
    logs: NDArray[np.float64] = passed * level[ESCAPE] + level[digit]
    return logs


def _check_falling(logs: list[NDArray[np.float64]]) -> None:
    """P(k) >= P(k + 1) everywhere: increasing a digit loses at least what resetting all finer digits gains."""
    gain = 0.0
    for digit in logs:
        if digit.size > 1 and (-np.diff(digit)).min() < gain:
            raise SettingsError("the noise tables do not fall with distance: do not use this build of shoal")
        gain += float(digit[0] - digit[-1])


def _farthest_pairs(
    distribution: DiscreteLaplace, logs: list[NDArray[np.float64]], whole: NDArray[np.float64]
) -> float:
    """max over k < margin of ln P(k) - ln P(k + steps): digit-wise addition of `steps` with carry."""
    best = {0: 0.0}
    rest = distribution.steps
    for digit in logs:
        rest, shift = divmod(rest, digit.size)
        reached: dict[int, float] = {}
        for carry, value in best.items():
            by = shift + carry
            stay, wrap = digit.size - by, by
            for out, losses in ((0, digit[:stay] - digit[by:]), (1, digit[stay:] - digit[:wrap])):
                if losses.size:
                    reached[out] = max(reached.get(out, -math.inf), value + float(losses.max()))
        best = reached
    n = MARGIN_SCALES
    return max(value + float((whole[:n] - whole[rest + c : rest + c + n]).max()) for c, value in best.items())
