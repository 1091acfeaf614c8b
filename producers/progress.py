"""Progress of a producer: a bar on a terminal, otherwise a line at intervals, as text or as a JSON
event."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, TextIO

from shoal.telemetry.events import log_event

WINDOW_S = 10.0
"""seconds over which the rate is taken"""
LINE_EVERY_S = 5.0
EVENT_EVERY_S = 60.0
"""seconds between two events: rare, because the log of a producer that runs for months is kept"""


class Meter:
    """Rate and remaining time, from positions; `now` is of any steady clock, in seconds."""

    def __init__(self) -> None:
        self._notes: deque[tuple[float, int]] = deque()
        self.position = 0
        self.total: int | None = None

    def note(self, now: float, position: int, total: int | None) -> None:
        """Note that `position` of `total` readings are stored at `now`."""
        self.position = position
        self.total = total
        # The rate divides by the time between two notes.
        if not self._notes or now > self._notes[-1][0]:
            self._notes.append((now, position))
        # The first is kept until the second is as old as the window: the rate is over a whole
        # window at least, and notes that come seldom leave two for it.
        while len(self._notes) > 2 and self._notes[1][0] <= now - WINDOW_S:
            self._notes.popleft()

    @property
    def rate(self) -> float | None:
        """Readings per second over the last seconds; None before there are two positions."""
        if len(self._notes) < 2:
            return None
        (since, rows_then) = self._notes[0]
        (now, rows_now) = self._notes[-1]
        return (rows_now - rows_then) / (now - since)

    @property
    def remaining_s(self) -> float | None:
        """Seconds to the end at this rate; None when there is no end, or no rate."""
        if self.total is None or not self.rate:
            return None
        return max(0, self.total - self.position) / self.rate

    def __str__(self) -> str:
        of = "" if self.total is None else f" of {self.total:,}"
        rate = "" if self.rate is None else f", {self.rate:,.0f} per second"
        left = "" if self.remaining_s is None else f", {duration_text(self.remaining_s)} left"
        noun = "reading" if self.position == 1 and not of else "readings"
        return f"{self.position:,}{of} {noun}{rate}{left}"


class Display(Protocol):
    """Shows the progress of a producer."""

    def show(self, position: int, total: int | None) -> None:
        """Show `position` of `total` readings, None when that is unknown; called at any rate."""
        ...

    def close(self) -> None:
        """Restore the terminal."""
        ...


class PeriodicDisplay:
    """Base of displays that print the progress every `every_s` seconds."""

    def __init__(self, clock: Callable[[], float], every_s: float) -> None:
        self._clock = clock
        self._every_s = every_s
        self._meter = Meter()
        self._next_at = clock() + every_s

    def show(self, position: int, total: int | None) -> None:
        """See `Display.show`."""
        now = self._clock()
        self._meter.note(now, position, total)
        if now >= self._next_at:
            self._next_at = now + self._every_s
            self._print(position, total)

    def close(self) -> None:
        """See `Display.close`; there is nothing to restore."""

    def _print(self, position: int, total: int | None) -> None:
        raise NotImplementedError


class LineDisplay(PeriodicDisplay):
    """Prints a line every few seconds."""

    def __init__(
        self, stream: TextIO, clock: Callable[[], float], every_s: float = LINE_EVERY_S
    ) -> None:
        super().__init__(clock, every_s)
        self._stream = stream

    def _print(self, position: int, total: int | None) -> None:
        print(self._meter, file=self._stream, flush=True)


class EventDisplay(PeriodicDisplay):
    """Logs an event once a minute, for programs that read the log."""

    def __init__(self, clock: Callable[[], float], every_s: float = EVENT_EVERY_S) -> None:
        super().__init__(clock, every_s)

    def _print(self, position: int, total: int | None) -> None:
        rate = self._meter.rate
        per_second = None if rate is None else round(rate, 1)
        log_event("readings_stored", readings=position, total=total, per_second=per_second)


class BarDisplay:
    """A bar on one changing line, by rich. Raises ImportError when rich is not installed."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        # rich comes with the extra `demo`; an edge client has no terminal to show it on.
        from rich.console import Console  # noqa: PLC0415 - an extra
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415 - an extra

        self._clock = clock
        self._meter = Meter()
        self._progress = Progress(
            BarColumn(bar_width=30),
            TextColumn("{task.description}"),
            console=Console(file=stream),
            transient=True,
        )
        self._task = self._progress.add_task("", total=None)
        self._progress.start()

    def show(self, position: int, total: int | None) -> None:
        """See `Display.show`."""
        self._meter.note(self._clock(), position, total)
        self._progress.update(
            self._task, completed=position, total=total, description=str(self._meter)
        )

    def close(self) -> None:
        """See `Display.close`."""
        self._progress.stop()


def display_on(stream: TextIO, clock: Callable[[], float], as_events: bool = False) -> Display:
    """The best display for `stream`; with `as_events`, one that logs events."""
    if as_events:
        return EventDisplay(clock)
    if stream.isatty():
        try:
            return BarDisplay(stream, clock)
        # rich is an extra, and lines show the same.
        except ImportError:
            pass
    return LineDisplay(stream, clock)


def duration_text(seconds: float) -> str:
    """45 -> "45 s", 125 -> "2 min 5 s", 8000 -> "2 h 13 min"."""
    whole = round(seconds)
    for name, smaller, size in (("d", "h", 86400), ("h", "min", 3600), ("min", "s", 60)):
        if whole >= size:
            part = whole % size // {"h": 3600, "min": 60, "s": 1}[smaller]
            return f"{whole // size} {name} {part} {smaller}"
    return f"{whole} s"
