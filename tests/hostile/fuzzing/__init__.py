"""A fuzzer: valid messages, requests and files, changed at random, against the parts that read them.

Every case is made from its number alone, so a failure names the case and `cases(first=NUMBER, count=1)` makes it again.
`SHOAL_FUZZ_CASES` is how many cases all targets have together: 2 000 in CI, 100 000 in `make fuzz`.
"""

from __future__ import annotations

import os

CASES = int(os.environ.get("SHOAL_FUZZ_CASES", "2000"))
FIRST = int(os.environ.get("SHOAL_FUZZ_FIRST", "0"))
"""the number of the first case of each target"""


def share_of(part: float) -> int:
    """How many of all cases a target has."""
    return max(20, int(CASES * part))
