"""Fuzzy memberships of rows in centres (Bezdek), without overflow for any fuzzifier above 1."""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.kernels import forms
from shoal.kernels.distance import FEW_FEATURES, Floats, column_sums, squared_distances

SHARE_OF_LEARNING: Final = 0.01
"""time of a row's weights, relative to that in which CA+ learns one: how soon the compiled form is worth loading"""


def fuzzy_weights(rows: Floats, centres: Floats, fuzzifier: float) -> Floats:
    """rows (n, d), centres (k, d), fuzzifier > 1 -> (k, n) the memberships of the rows to the power of the fuzzifier.

    With 2, the compiled form computes the same bits from distances that are a matrix product in both forms, or sums of
    differences for few features; with any other, powers take most of the time in either.
    """
    compiled = forms.PROCESS.compiled_for(SHARE_OF_LEARNING * len(rows)) if fuzzifier == 2.0 else None
    if compiled is None:
        return powers(memberships(squared_distances(rows, centres), fuzzifier), fuzzifier).T
    if rows.shape[1] <= FEW_FEATURES:
        weights = np.empty((len(centres), len(rows)))
    else:
        weights = np.ascontiguousarray(squared_distances(rows, centres).T)
    compiled.fuzzy_weights(np.ascontiguousarray(rows), np.ascontiguousarray(centres), weights)
    return weights


def memberships(squared_distances: Floats, fuzzifier: float) -> Floats:
    """distances² (n, k), fuzzifier > 1 -> (n, k), rows adding up to 1 (federated FCM, eq. 9; FFCM, eq. 5).

    A row that equals a centre belongs to it alone, or in equal parts to all centres it equals. Distances are relative
    to the row's smallest one, so no power can overflow however near the fuzzifier is to 1.
    """
    # A centre in each line: NumPy is slow at many short rows.
    squared = np.ascontiguousarray(squared_distances.T)
    least = squared.min(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.divide(least, squared)
    on_centre = np.flatnonzero(least == 0.0)
    if len(on_centre):
        shares[:, on_centre] = squared[:, on_centre] == 0.0
    if fuzzifier != 2.0:
        np.power(shares, 1.0 / (fuzzifier - 1.0), out=shares)
    shares *= 1.0 / column_sums(shares)
    return np.asarray(shares.T)


def powers(shares: Floats, fuzzifier: float) -> Floats:
    """memberships (n, k) -> their powers by the fuzzifier, in place: the weight of each row in each centre."""
    return np.multiply(shares, shares, out=shares) if fuzzifier == 2.0 else np.power(shares, fuzzifier, out=shares)
