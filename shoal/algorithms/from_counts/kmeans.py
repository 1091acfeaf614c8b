"""kmeans_from_counts: kmeans on rows that the server draws from private counts."""

from __future__ import annotations

from typing import Final

from shoal.algorithms.from_counts.rounds import rounds_from_counts
from shoal.algorithms.rounds.kmeans import KMEANS

KMEANS_FROM_COUNTS: Final = rounds_from_counts(KMEANS)
