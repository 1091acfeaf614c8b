"""Warnings at the line of a user's program that has called this library."""

from __future__ import annotations

import inspect
import warnings
from types import FrameType
from typing import Final

# scikit-learn calls `fit` from a pipeline, a search, and from `fit_predict`.
CALLED_FROM: Final = frozenset({"shoal", "sklearn", "river"})
"""packages whose lines are none of a user's program"""


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that has called a function of this package from outside of `CALLED_FROM`.

    A number of calls in between, as `stacklevel` takes one, would be wrong wherever a function is
    called from two places, and after every change of what calls what.
    """
    # The level of this function itself.
    level = 1
    frame = inspect.currentframe()
    while frame is not None and _package_of(frame) in CALLED_FROM:
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)


def _package_of(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]
