"""The family of an algorithm as data: what its clients do with readings, and what its server does with updates.

Every algorithm has one (`algorithm.family`). Code that treats models differently asks for the property that makes the
difference, so another family needs no new branch where its answer is that of a known one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Family:
    """What all algorithms of one family can do. One of the three `client_...` is true."""

    name: str
    title: str
    """an algorithm of it in words, as messages call it"""
    learns_from: str
    """form of readings that leaves the privacy stage for it, in words: "noisy rows" or "private counts" """
    client_learns: bool = False
    """a half on each client learns every noisy row, and contributes what it has learnt when an update is due"""
    client_counts: bool = False
    """each client publishes private counts of whole windows of readings, at an epsilon of their own"""
    client_answers: bool = False
    """each client answers requests of the server from the window of noisy rows that it keeps"""

    @property
    def in_rounds(self) -> bool:
        """Whether the server asks and combines answers round by round; otherwise it absorbs updates as they come."""
        return self.client_answers

    @property
    def takes_rows(self) -> bool:
        """Whether its clients need noisy rows."""
        return self.client_learns or self.client_answers


STREAMING: Final = Family("streaming", "a streaming algorithm", "noisy rows", client_learns=True)
COUNTING: Final = Family("counting", "a streaming algorithm", "private counts", client_counts=True)
ROUNDS: Final = Family("rounds", "an algorithm in rounds", "noisy rows", client_answers=True)
