"""The declaration of FCAC as an algorithm of a federation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shoal.algorithms.fcac.arrays import SNAPSHOT, UPDATE
from shoal.algorithms.fcac.ca_plus import CAPlus
from shoal.algorithms.fcac.caefc import CAEFC
from shoal.algorithms.fcac.snapshot import predict, view
from shoal.algorithms.streaming import StreamingAlgorithm

NODES_MAX: Final = 2000
"""default of the option `nodes_max` in a federation, so that an endless stream does not fill the memory; the library
itself sets no limit"""


def _with_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"nodes_max": NODES_MAX, **options}


FCAC: Final = StreamingAlgorithm(
    name="fcac",
    client=lambda options, dimensions: CAPlus(dimensions, **_with_defaults(options)),
    server=lambda options, dimensions: CAEFC(dimensions, **_with_defaults(options)),
    update=UPDATE,
    snapshot=SNAPSHOT,
    predict=predict,
    view=view,
)
