"""Which upstream snapshot a region's model follows."""

from __future__ import annotations

from typing import Final, NamedTuple

from shoal.protocol.messages import Snapshot


class Followed(NamedTuple):
    """The upstream snapshot that was adopted last."""

    version: int
    """0 before the first"""
    made_at: float
    """seconds since 1970, by the clock of the upstream server"""

    def is_before(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot is to be adopted in its place.

        After a start the bridge reads older snapshots first. In a log that was made anew, versions begin again.
        """
        return snapshot.version > self.version or snapshot.made_at > self.made_at


NOTHING_FOLLOWED: Final = Followed(0, 0.0)
