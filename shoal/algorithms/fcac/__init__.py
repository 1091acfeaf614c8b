"""FCAC: federated clustering via adaptive resonance theory (Masuyama et al., 2023).

Each client learns prototypes of its rows, called nodes, with CA+ and publishes them. The server
learns the nodes of all clients with CAEFC, which connects nodes by edges; each connected component
is a cluster. `FCAC` declares both halves as an algorithm of a federation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from shoal.algorithms.claims import Claims, check_at_most, check_masses, require_possible
from shoal.algorithms.fcac.ca_plus import (
    REGION_UPDATE,
    SNAPSHOT,
    UPDATE,
    CAPlus,
    FcacAggregator,
    check_parts,
)
from shoal.algorithms.fcac.caefc import CAEFC, predict, predictor, view
from shoal.algorithms.fcac.options import FcacOptions
from shoal.algorithms.streaming import Aggregation, Arrays, StreamingAlgorithm

__all__ = ["CAEFC", "CAPlus", "FcacOptions"]


NODES_MAX: Final = 2000
"""default of the option `nodes_max` in a federation, so that an endless stream does not fill the
memory; the library itself sets no limit"""
CLIENT_SHARE_MAX: Final = 0.95
"""default of the option `client_share_max` in a federation; the library, as the paper, has no bound
"""
COUNT_SUM_MAX: Final = 2.0**53
"""whole numbers up to this one are exact as 64-bit floats"""


def _with_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"nodes_max": NODES_MAX, "client_share_max": CLIENT_SHARE_MAX, **options}


def check_claims(options: Mapping[str, Any], arrays: Arrays, claims: Claims) -> None:
    """Raises `InvalidData` for more nodes than the options allow, or winning counts beyond what a
    client can learn.

    A winning count counts the readings since the client's start, so it may be above the readings of
    one update. What nodes have won since the update before is of these, and a part of their counts.
    """
    if "part" in arrays:
        check_parts(arrays)
    # Read from the mapping and not parsed into `FcacOptions`: this runs once for each update, and
    # the contract has checked the options.
    nodes_max = options.get("nodes_max", NODES_MAX)
    if nodes_max is not None:
        check_at_most("weight", len(arrays["weight"]), nodes_max)
    # Summed as floats, which round where a sum of integers would overflow into a negative one.
    require_possible(
        float(arrays["count"].sum(dtype=np.float64)) <= COUNT_SUM_MAX,
        "winning counts beyond any stream",
    )
    check_masses("won", arrays["won"], claims)
    require_possible(
        bool((arrays["won"] <= arrays["count"]).all()), "a node has won more than it ever has"
    )


FCAC: Final = StreamingAlgorithm(
    name="fcac",
    client=lambda options, dimensions: CAPlus(dimensions, **_with_defaults(options)),
    server=lambda options, dimensions: CAEFC(dimensions, **_with_defaults(options)),
    update=UPDATE,
    snapshot=SNAPSHOT,
    predict=predict,
    predictor=predictor,
    view=view,
    check_claims=check_claims,
    new_readings="won",
    aggregation=Aggregation(
        lambda options, dimensions: FcacAggregator(_with_defaults(options), dimensions),
        update=REGION_UPDATE,
    ),
)
