"""Privacy: readings in their units go in, noisy rows in unit coordinates come out; nothing raw goes
around it.

`load_mode` finds a privacy mode by name. A mode with the terms of a contract builds a client's
`Mechanism` and says what it guarantees. It needs no key for that, so the server uses it too.
"""

from shoal.privacy.base import (
    Bounds,
    Description,
    Mechanism,
    PrivacyMode,
    Released,
    RowRange,
    Term,
    load_mode,
    mode_names,
)
from shoal.privacy.keyed import Places, derive_key, load_or_create_key

__all__ = [
    "Bounds",
    "Description",
    "Mechanism",
    "Places",
    "PrivacyMode",
    "Released",
    "RowRange",
    "Term",
    "derive_key",
    "load_mode",
    "load_or_create_key",
    "mode_names",
]
