"""The privacy mode and the bounds that a contract declares, as `shoal.privacy` takes them."""

from __future__ import annotations

from shoal.config.contract import Contract
from shoal.privacy import Bounds, PrivacyMode, load_mode


def privacy_mode(contract: Contract) -> PrivacyMode:
    """The contract's privacy mode with its terms. Raises `SettingsError`."""
    mode = load_mode(contract.privacy.mode)
    return mode(declared_bounds(contract), contract.privacy.terms, [feature.share for feature in contract.features])


def declared_bounds(contract: Contract) -> Bounds:
    """The declared bounds of all features."""
    return Bounds([feature.low for feature in contract.features], [feature.high for feature in contract.features])
