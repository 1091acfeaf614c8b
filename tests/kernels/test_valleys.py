"""Valleys of noisy histograms."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.kernels.density_tree import find_valleys

NOISE_FREE = np.zeros((1, 16))


def histogram(
    *masses: tuple[float, float, float], n: int = 16, readings: int = 4000
) -> NDArray[np.float64]:
    """(1, n) readings of Gaussians (middle, width, share), in bins over 0..n."""
    middle = np.arange(n) + 0.5
    total = sum(
        share * np.exp(-0.5 * ((middle - at) / width) ** 2) / width for at, width, share in masses
    )
    return np.asarray(readings * total / np.sum(total))[None]


def test_the_valley_between_two_peaks_is_found_at_its_middle() -> None:
    found = find_valleys(histogram((4, 1, 1), (12, 1, 1)), NOISE_FREE, 0.4)
    assert found.significance[0] > 20
    assert found.position[0] == pytest.approx(8.0, abs=0.5)
    assert found.hint[0] >= found.significance[0]


@pytest.mark.parametrize(
    "counts", [histogram((8, 2, 1)), np.full((1, 16), 100.0), np.zeros((1, 16))]
)
def test_one_peak_a_plain_and_nothing_have_no_valley(counts: NDArray[np.float64]) -> None:
    assert find_valleys(counts, NOISE_FREE, 0.4).significance[0] < 2.5


def test_a_shallow_valley_is_a_hint_only() -> None:
    found = find_valleys(histogram((5.5, 1.6, 1), (10.5, 1.6, 1)), NOISE_FREE, 0.2)
    assert found.significance[0] == -1
    assert found.hint[0] > 5


def test_noise_alone_is_not_significant_and_makes_a_real_valley_less_so() -> None:
    generator = np.random.default_rng(5)
    noise = generator.normal(0, 10, size=(500, 16))
    variances = np.full((500, 16), 100.0)
    assert (find_valleys(noise, variances, 0.4).significance > 4).mean() < 0.02
    real = histogram((4, 1, 1), (12, 1, 1))
    assert (
        find_valleys(real, np.full((1, 16), 1000.0), 0.4).significance
        < find_valleys(real, NOISE_FREE, 0.4).significance
    )


def test_each_histogram_is_judged_by_itself() -> None:
    counts = np.concatenate(
        [histogram((4, 1, 1), (12, 1, 1)), histogram((8, 2, 1)), histogram((3, 0.8, 1), (9, 1, 3))]
    )
    together = find_valleys(counts, np.zeros((3, 16)), 0.4)
    for i in range(3):
        alone = find_valleys(counts[i : i + 1], NOISE_FREE, 0.4)
        for both, valley in zip(together, alone, strict=True):
            assert both[i] == valley[0]


def test_what_noise_makes_beside_a_peak_is_no_second_peak() -> None:
    generator = np.random.default_rng(6)
    counts = np.concatenate(
        [np.full((2000, 1), 4000.0), generator.normal(0, 30, size=(2000, 15))], axis=1
    )
    found = find_valleys(counts, np.full((2000, 16), 900.0), 0.4)
    # The difference of the highest and the lowest of 14 noises is often more than 4 of its standard
    # deviations.
    assert (found.significance > 3).mean() < 0.01


def test_the_noise_of_the_peak_counts_as_well_as_that_of_the_valley() -> None:
    counts = np.zeros((1, 16))
    counts[0, [2, 13]] = 4000, 400
    alike = np.full((1, 16), 900.0)
    noisy_peak = np.full((1, 16), 900.0)
    noisy_peak[0, 13] = 9000.0
    low = find_valleys(counts, noisy_peak, 0.4).significance[0]
    assert low == pytest.approx(400 / np.sqrt(900 + 9000 + 400))
    assert find_valleys(counts, alike, 0.4).significance[0] == pytest.approx(
        400 / np.sqrt(900 + 900 + 400)
    )
