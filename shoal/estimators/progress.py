"""Progress of a long fit, and the end of its time."""

from __future__ import annotations

import sys
import time
import warnings

from shoal.errors import SettingsError

__all__ = ["Progress", "StoppedEarly"]

try:
    from sklearn.exceptions import ConvergenceWarning as _Warning
except ImportError:
    _Warning = UserWarning

# A line for every round of a fast fit would cost more than the round.
SHOWN_EVERY_S = 1.0


class StoppedEarly(_Warning):  # type: ignore[misc]  # scikit-learn has no types
    """`fit` has stopped at `max_seconds`; also a ConvergenceWarning of scikit-learn where that is installed.

    Examples
    --------
    >>> import warnings
    >>> import shoal
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     model = shoal.FCAC(max_seconds=1e-9).fit([[0.1, 0.2]] * 600)
    >>> [warning.category is shoal.StoppedEarly for warning in caught]
    [True]
    """


class Progress:
    """Shows a line a second on standard error if `verbose`, and tells when `max_seconds` are over.

    `unit`: what is counted, as a plural. Raises `SettingsError` for a limit that is not above 0.
    """

    def __init__(self, verbose: object = False, max_seconds: float | None = None, unit: str = "rows") -> None:
        if max_seconds is not None and not max_seconds > 0:
            raise SettingsError(f"max_seconds = {max_seconds!r}, must be above 0, or None for no limit")
        self._verbose, self._unit, self._max_seconds = bool(verbose), unit, max_seconds
        self._start = self._shown = time.monotonic()
        self._done = 0
        self.is_over = False
        """whether the time was over when last looked at"""

    def advance(self, n: int, detail: str = "") -> bool:
        """Count n more; whether the time is over, and the work is to stop here."""
        self._done += n
        now = time.monotonic()
        if self._verbose and now - self._shown >= SHOWN_EVERY_S:
            self._shown = now
            sys.stderr.write(f"{self._done} {self._unit} in {now - self._start:.0f} s{detail}\n")
        if self._max_seconds is not None and now - self._start >= self._max_seconds:
            self.is_over = True
        return self.is_over

    def finish(self, wanted: int, estimator: object) -> None:
        """Show the sum, and warn with `StoppedEarly` if less was done than wanted because the time was over."""
        if self._verbose:
            took = time.monotonic() - self._start
            sys.stderr.write(f"{type(estimator).__name__}: {self._done} {self._unit} in {took:.1f} s\n")
        if self.is_over and self._done < wanted:
            warnings.warn(
                f"fit stopped at max_seconds = {self._max_seconds:g} after {self._done} of at most {wanted} "
                f"{self._unit}: the model is what was learnt by then. Give it more time, or fewer rows",
                StoppedEarly,
                stacklevel=3,
            )
