"""The file of a federation of hosts whose clients spend on rows and on counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.federation_text import federation_text

WINDOW: Final = 30
"""readings of a window of counts, and of an update"""


def text_of(host: Mapping[str, Any], **log: str) -> str:
    """The text with this section [host]; `log`: further settings of [log]."""
    return federation_text(
        "house",
        # One that learns from noisy rows, and one from counts: what each costs is charged apart.
        models=[
            {"name": "groups", "algorithm": "fcac"},
            {"name": "tree", "algorithm": "density_tree"},
        ],
        privacy={
            "mode": "formal",
            "epsilon_per_reading": 20,
            "counts_epsilon": 4,
            "window_readings": WINDOW,
        },
        log={"address": "sqlite:federation.db", **log},
        client={"folder": "clients", "publish_readings": WINDOW, "publish_s": 86400},
        server={"folder": "server", "port": 0},
        host=host,
    )
