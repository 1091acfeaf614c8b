"""The number of examples that a test of a property draws."""

from __future__ import annotations

import os


def examples(whole: int) -> int:
    """All of them; a fifth, and at least three, in `make check`, which is run after every small
    change."""
    return max(3, whole // 5) if os.environ.get("SHOAL_EXAMPLES") == "few" else whole
