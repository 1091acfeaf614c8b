"""Row D1: at the service's default, three messages of one client join no clusters of FCAC."""

from __future__ import annotations

from typing import Any

from benchmarks.robustness.streaming import fcac_messages, fcac_run, with_bridges
from shoal.algorithms.registry import streaming_algorithm

SEED = 2


def test_three_messages_of_bridges_join_no_clusters_at_the_default_of_the_service() -> None:
    served: Any = streaming_algorithm("fcac").server({}, 2)
    sent = with_bridges(fcac_messages("four of six", SEED, 12), SEED, from_half=False)
    assert fcac_run(sent, served.options.client_share_max, SEED) > 0.95
    assert fcac_run(sent, 1.0, SEED) < 0.5, "without a bound they do"
