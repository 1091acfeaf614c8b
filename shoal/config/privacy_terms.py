"""The privacy section of a contract as the values that shoal.privacy takes."""

from __future__ import annotations

from shoal.config.contract import Contract
from shoal.privacy import Bounds, PrivacyTerms


def privacy_terms_of(contract: Contract) -> PrivacyTerms:
    """The contract's privacy as the privacy room takes it. Raises `SettingsError`."""
    features = contract.features
    return PrivacyTerms(
        mode=contract.privacy.mode,
        bounds=bounds_of(contract),
        epsilon_per_reading=contract.privacy.epsilon_per_reading,
        epsilon_nominal_per_feature=contract.privacy.epsilon_nominal_per_feature,
        shares=[feature.share for feature in features],
    )


def bounds_of(contract: Contract) -> Bounds:
    """The declared bounds of all features."""
    return Bounds([feature.low for feature in contract.features], [feature.high for feature in contract.features])
