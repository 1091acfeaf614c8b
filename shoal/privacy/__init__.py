"""Privacy: readings in their units come in, private rows in unit coordinates go out; nothing raw passes by.

Start at `mechanism_for`. `PrivacyTerms` is what the contract says, `Mechanism` what the client node uses;
`expected_statement`, `reach_for` and `announce` need no key, so the server uses them too.
"""

from shoal.privacy.base import Mechanism, Reach, Released
from shoal.privacy.bounds import Bounds
from shoal.privacy.keyed import Places, load_or_create_key
from shoal.privacy.mechanisms import epsilon_spent, mechanism_for, reach_for
from shoal.privacy.paper import paper_noise
from shoal.privacy.statement import announce, expected_statement
from shoal.privacy.terms import Mode, PrivacyTerms

__all__ = [
    "Bounds",
    "Mechanism",
    "Mode",
    "Places",
    "PrivacyTerms",
    "Reach",
    "Released",
    "announce",
    "epsilon_spent",
    "expected_statement",
    "load_or_create_key",
    "mechanism_for",
    "paper_noise",
    "reach_for",
]
