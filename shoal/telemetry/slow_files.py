"""Says of a file that its disk is slow, or that another process holds it: the process waits, and
would otherwise not say for what."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shoal.telemetry.events import log_event

SLOW_S: Final = 5.0
"""a write takes less on a busy machine and on a slow card"""
SAID_AGAIN_S: Final = 60.0
"""a disk that is slow is slow at each write: one line a minute for each file"""
_SAID_AT: Final[dict[Path, float]] = {}


@contextmanager
def noting_slowness(
    file: Path | None, clock: Callable[[], float] = time.monotonic
) -> Iterator[None]:
    """Log `write_slow` where what is done inside takes `SLOW_S` seconds or more, also where it
    fails.

    `file` None: it is in memory. `clock` gives seconds and never goes back.
    """
    began = clock()
    try:
        yield
    finally:
        ended = clock()
        took_s = ended - began
        if (
            file is not None
            and took_s >= SLOW_S
            and ended - _SAID_AT.get(file, -math.inf) >= SAID_AGAIN_S
        ):
            _SAID_AT[file] = ended
            log_event("write_slow", logging.WARNING, file=str(file), took_s=round(took_s, 1))
