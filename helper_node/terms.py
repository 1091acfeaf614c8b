"""What a helper needs of the contract, for helpers that are other programs."""

from __future__ import annotations

from typing import Any, cast

from shoal.config.resolved import ResolvedContract
from shoal.errors import SettingsError
from shoal.privacy.masked import Masked


def helper_terms(contract: ResolvedContract) -> dict[str, Any]:
    """Plain values for JSON: names, keys of the helpers, and numbers that follow from the terms.

    `clip_squared` and `variance` give what a window costs: rho = `clip_squared` / `variance`.
    Raises `SettingsError` for a contract without masked counts.
    """
    if not contract.mode.masked:
        raise SettingsError(
            f'helpers unmask counts of mode = "masked"; this federation has "{contract.mode.name}"'
        )
    mode = cast("Masked", contract.mode)
    return {
        "federation": contract.federation,
        "contract": contract.digest,
        "topic": contract.contract.updates_topic,
        "models": [model.name for model in contract.counted],
        "helpers": {helper.name: helper.key.hex() for helper in mode.helpers},
        "batch_min": int(mode.values["batch_min"]),
        "clip_squared": mode.clip_squared,
        "variance": mode.variance,
    }
