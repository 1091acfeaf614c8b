"""Which updates of one client have been processed: by sequence numbers, digests, and when they were
made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from shoal.errors import MessageRejected
from shoal.protocol.conflicts import DIGEST_BYTES, Mark

# This bounds what is kept of a client: 1024 numbers at most stand in `ahead`, whatever is sent in
# its name.
AHEAD_MAX = 1024
"""numbers by which a sequence number may be above the highest processed, and below it one may still
come late"""
DIGESTS_MAX = 64
"""newest updates whose digests are kept"""
RUNS_MAX = 8
"""runs of sequence numbers that are followed at a time"""


class Content(NamedTuple):
    """Content of an update: tells one that comes again from another one with the same number."""

    digest: bytes = b""
    """empty: not known"""
    made_at: float = -math.inf
    """time by the client's clock, seconds since 1970"""
    mark: Mark | None = None
    """process of the client that it is from; None: not known"""
    partition: int = 0
    """place in the log, which orders the updates of a model"""
    oldest_reading_at: float | None = None
    """seconds since 1970, as the update says; None without times"""
    newest_reading_at: float | None = None
    """the same of its newest reading"""


NO_CONTENT = Content()
UNKNOWN: Final = bytes(DIGEST_BYTES)


class SequenceWindow:
    """The sequence numbers of one run that have been processed: all below `seen_below`, and those
    in `ahead`.

    A number that never comes, because its update was damaged or lost, is waited for until the
    highest is `AHEAD_MAX` above it, and then no more: one lost update must not block a client for
    ever.
    """

    def __init__(
        self,
        seen_below: int = 1,
        ahead: Iterable[int] = (),
        may_jump: bool = True,
        first: int = 1,
        numbers: Sequence[int] = (),
        digests: bytes = b"",
        newest_made_at: float = -math.inf,
    ) -> None:
        """`may_jump`: the next number may be any. So may the first one, as a log does not reach
        back for ever.

        `digests` are those of the updates `numbers` (n,), one after the other; of zeros where one
        is not known.
        """
        if len(digests) != DIGEST_BYTES * len(numbers):
            raise ValueError("a digest for each number")
        self._seen_below = seen_below
        self._ahead = set(ahead)
        self._highest = max(self._ahead, default=seen_below - 1)
        self.may_jump = may_jump
        self.first = first
        """numbers below it are of no update of this run"""
        starts = range(0, len(digests), DIGEST_BYTES)
        of_numbers = [digests[start : start + DIGEST_BYTES] for start in starts]
        self._contents = dict(zip(numbers, of_numbers, strict=True))
        """number -> digest of the newest updates, in the order in which they came"""
        self._newest_made_at = newest_made_at

    def reaches(self, sequence: int) -> bool:
        """Whether a number can be one of this run."""
        return self.first <= sequence <= self._highest + AHEAD_MAX

    def contains(self, sequence: int) -> bool:
        """Whether `sequence` has been processed. Raises `MessageRejected` ("sequence") for one that
        cannot be."""
        if sequence < self._seen_below or sequence in self._ahead:
            return True
        if sequence > self._highest + AHEAD_MAX and not self.may_jump:
            raise MessageRejected(
                "sequence", f"{sequence} is more than {AHEAD_MAX} above {self._highest}"
            )
        return False

    def check_same(self, sequence: int, content: Content) -> None:
        """Raises `MessageRejected` ("conflict") for a number that was processed with other content.

        Of an update too old for its digest to be kept, the time tells: one that was made after all
        that were processed cannot be among them.
        """
        known = self._contents.get(sequence)
        if known is None:
            is_other = content.made_at > self._newest_made_at
        else:
            are_known = known != UNKNOWN and content.digest != b""
            is_other = are_known and known != content.digest
        if is_other:
            raise MessageRejected(
                "conflict", f"another update {sequence} of this client was processed before"
            )

    def take(self, sequence: int, content: Content = NO_CONTENT) -> bool:
        """Mark `sequence` as processed; False if it was already. Raises `MessageRejected` as
        `contains` does."""
        if self.contains(sequence):
            return False
        # The first number of a run: its log may begin in the middle of the client's updates.
        if not self._ahead and self._seen_below == self.first == 1:
            # Not below 1024 before the first: a number there is an old one that comes late, one
            # below is of another run.
            self.first = max(1, sequence - AHEAD_MAX + 1)
        self.may_jump = False
        self._ahead.add(sequence)
        self._highest = max(self._highest, sequence)
        # Here the set stays bounded: what has not come within 1024 numbers is given up.
        self._give_up_below(self._highest - AHEAD_MAX + 1)
        while self._seen_below in self._ahead:
            self._ahead.remove(self._seen_below)
            self._seen_below += 1
        self._contents[sequence] = content.digest or UNKNOWN
        if len(self._contents) > DIGESTS_MAX:
            del self._contents[next(iter(self._contents))]
        self._newest_made_at = max(self._newest_made_at, content.made_at)
        return True

    def _give_up_below(self, floor: int) -> None:
        if self._seen_below < floor:
            self._seen_below = floor
            self._ahead = {number for number in self._ahead if number >= floor}

    def state(self) -> list[Any]:
        """Plain values for `SequenceWindow(*state)`."""
        # A list of pairs would cost more than all else that a checkpoint keeps of a client.
        return [
            self._seen_below,
            sorted(self._ahead),
            self.may_jump,
            self.first,
            list(self._contents),
            b"".join(self._contents.values()),
            self._newest_made_at,
        ]


class ClientSequences:
    """The runs of sequence numbers of one client, the one used last at the end.

    A client has one run. Any writer can send an update in a client's name before the client does,
    where updates are not signed, and its number may be any. So a number below all that a run can
    have begins a run of its own, and the client's updates are processed whatever number was sent
    first.
    """

    def __init__(self, windows: Iterable[SequenceWindow] = ()) -> None:
        self._windows = list(windows)

    def contains(self, sequence: int, content: Content = NO_CONTENT) -> bool:
        """Whether `sequence` has been processed. Raises `MessageRejected` ("sequence",
        "conflict")."""
        window = self._window_of(sequence)
        if window is None or not window.contains(sequence):
            return False
        window.check_same(sequence, content)
        return True

    def take(self, sequence: int, content: Content = NO_CONTENT) -> bool:
        """Mark `sequence` as processed; False if it was already. Raises as `contains` does."""
        window = self._window_of(sequence) or SequenceWindow()
        if not window.take(sequence, content):
            window.check_same(sequence, content)
            return False
        if self._windows != [window]:
            for other in self._windows:
                # One jump was allowed, and this run has used it: another that could still jump
                # would take a forged number.
                other.may_jump = False
            # The run used last goes to the end, and the one longest unused is dropped: a forger can
            # begin any number of runs, and the one that the client goes on with must stay.
            others = [other for other in self._windows if other is not window]
            self._windows = [*others, window][-RUNS_MAX:]
        return True

    def allow_jump(self) -> None:
        """Accept any number as the next one."""
        for window in self._windows:
            window.may_jump = True

    def state(self) -> list[Any]:
        """Plain values for `restored_sequences`."""
        return [window.state() for window in self._windows]

    def _window_of(self, sequence: int) -> SequenceWindow | None:
        """The run of a number; None for one that begins a run. Raises `MessageRejected`
        ("sequence")."""
        near = [window for window in self._windows if window.reaches(sequence)]
        if len(near) == 1:
            return near[0]
        for window in near:
            if window.contains(sequence):
                return window
        # Numbers that several runs could have go to the run used last, as a client goes on where it
        # was.
        if near:
            return near[-1]
        begins_a_run = not self._windows
        for window in self._windows:
            begins_a_run |= window.may_jump or sequence < window.first
        if not begins_a_run:
            # It is above all that a run can have, and its error says how far.
            self._windows[-1].contains(sequence)
        return None


def restored_sequences(state: Iterable[Any]) -> ClientSequences:
    """The sequences that `state` was made of.

    Raises `TypeError` or `ValueError` for a damaged one.
    """
    return ClientSequences(SequenceWindow(*window) for window in state)
