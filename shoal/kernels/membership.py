"""Fuzzy memberships of rows in centres (Bezdek), without overflow for any fuzzifier above 1."""

from __future__ import annotations

import numpy as np

from shoal.kernels.distance import Floats, row_minima


def memberships(squared_distances: Floats, fuzzifier: float) -> Floats:
    """distances² (n, k), fuzzifier > 1 -> (n, k), rows adding up to 1 (federated FCM, eq. 9; FFCM, eq. 5).

    A row that equals a centre belongs to it alone, or in equal parts to all centres it equals. Distances are relative
    to the row's smallest one, so no power can overflow however near the fuzzifier is to 1.
    """
    least = row_minima(squared_distances)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.divide(least, squared_distances)
    on_centre = np.flatnonzero(least[:, 0] == 0.0)
    if len(on_centre):
        shares[on_centre] = squared_distances[on_centre] == 0.0
    if fuzzifier != 2.0:
        np.power(shares, 1.0 / (fuzzifier - 1.0), out=shares)
    shares /= (shares @ np.ones(shares.shape[1]))[:, None]
    return np.asarray(shares)


def powers(shares: Floats, fuzzifier: float) -> Floats:
    """memberships (n, k) -> their powers by the fuzzifier, in place: the weight of each row in each centre."""
    return np.multiply(shares, shares, out=shares) if fuzzifier == 2.0 else np.power(shares, fuzzifier, out=shares)
