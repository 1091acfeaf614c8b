"""Conditions for a cluster to be known, active and gone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LineagePolicy:
    """Conditions for a cluster to be known, active and gone.

    Counts are readings learnt by the model, so that a replay of the log gives the same lineage;
    nothing depends on the clock.
    """

    known_share: float = 0.05
    """share of all mass at which a cluster is known at once"""
    share_min: float = 0.002
    """share below which a cluster is never known, however long it lasts"""
    confirm_readings: int = 1_000
    """readings that a smaller cluster must last to be known, and that a known one must be away to
    be gone"""
    recent_readings: float = 500.0
    """readings by which what counts as recent has faded to 1/e"""
    # Two limits, apart by a factor of three: with one, a cluster whose readings come now and then
    # would be reported at each of them.
    active_above: float = 3.0
    """recent readings above which a quiet cluster is active"""
    quiet_below: float = 1.0
    """recent readings below which an active cluster is quiet"""
    share_readings: float = 2_000.0
    """the same for the recent share"""
    share_moved: float = 0.2
    """difference of the recent share from the one last reported at which an event reports it"""
    dwell_moved: float = 1.5
    """ratio of the mean dwell in a state to the one last reported, or its inverse, from which on
    an event reports it"""
    dwell_errors: float = 4.0
    """standard errors by which the logarithms of both must differ as well; fewer are more false
    alarms"""
    dwells_min: float = 10.0
    """dwells that must have been seen of both"""


DEFAULT_POLICY = LineagePolicy()
