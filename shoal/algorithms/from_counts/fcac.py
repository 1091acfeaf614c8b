"""fcac_from_counts: CAEFC learns rows made from private counts of one to three features, without CA+ on clients."""

from __future__ import annotations

from typing import Final

from shoal.algorithms.fcac.algorithm import FCAC
from shoal.algorithms.from_counts.algorithm import from_counts

FCAC_FROM_COUNTS: Final = from_counts(FCAC, "weight", ["contribute", "second_winner_factor", "client_share_max"])
