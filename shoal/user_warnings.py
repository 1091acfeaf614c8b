"""Warnings at the line of a user's program that has called this library."""

from __future__ import annotations

import inspect
import os
import warnings
from pathlib import Path
from typing import Final

PACKAGE: Final = str(Path(__file__).parent) + os.sep


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that has called a function of this package from outside of it.

    A number of calls in between, as `stacklevel` takes one, would be wrong wherever a function is
    called from two places, and after every change of what calls what.
    """
    # The level of this function itself.
    level = 1
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)
