"""gmm_from_counts: gmm on rows that the server draws from private counts."""

from __future__ import annotations

from typing import Final

from shoal.algorithms.from_counts.rounds import rounds_from_counts
from shoal.algorithms.rounds.gmm import GMM

GMM_FROM_COUNTS: Final = rounds_from_counts(GMM)
