"""Spans: what took how long, as a tree. They are passed on where OpenTelemetry exports them, and
cost nothing elsewhere.

Times are seconds since 1970; attributes are names, numbers and times, never the value of a reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Attribute = str | int | float | bool


@dataclass(frozen=True)
class Span:
    """A piece of work with its parts."""

    name: str
    start: float
    end: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    parts: Sequence[Span] = ()
    error: str = ""
    """why it failed; empty if it did not"""


class SpanReceivers:
    """Functions that are called with each span of this process."""

    def __init__(self) -> None:
        self._receive: list[Callable[[Span], None]] = []

    @property
    def wanted(self) -> bool:
        """Whether there is any: without one no span needs to be made."""
        return bool(self._receive)

    def add(self, receive: Callable[[Span], None]) -> None:
        """Call this with each span that has ended."""
        self._receive.append(receive)

    def remove(self, receive: Callable[[Span], None]) -> None:
        """Call it no more."""
        self._receive.remove(receive)

    def end(self, span: Span) -> None:
        """Pass on a span that has ended, with all its parts."""
        for receive in self._receive:
            receive(span)


SPANS = SpanReceivers()
"""those of this process"""
