"""fcm_from_counts: fcm on rows that the server draws from private counts."""

from __future__ import annotations

from typing import Final

from shoal.algorithms.from_counts.rounds import rounds_from_counts
from shoal.algorithms.rounds.fcm import FCM

FCM_FROM_COUNTS: Final = rounds_from_counts(FCM)
