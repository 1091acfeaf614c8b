"""Contracts of a small federation with models that learn from counts."""

from __future__ import annotations

from typing import Any

from shoal.config.contract import Contract, parse_contract

COUNTED = {"name": "counted", "algorithm": "density_tree"}
ROWS = {"name": "rows", "algorithm": "fcac"}


def agreed(*models: dict[str, Any], mode: str = "formal", **privacy: Any) -> Contract:
    """The contract of a federation with two features and these models; `privacy`: further settings
    of its section."""
    return parse_contract(
        {
            "federation": {"name": "plant"},
            "features": [
                {"name": "warm", "low": 0, "high": 1},
                {"name": "damp", "low": 0, "high": 1},
            ],
            "privacy": {"mode": mode, **privacy},
            "models": list(models),
        }
    )
