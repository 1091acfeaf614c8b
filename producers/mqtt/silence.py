"""Which topics have gone silent: told once per silence, and once more when it ends."""

from __future__ import annotations

from collections.abc import Iterable


class SilenceMonitor:
    """`silent_s` 0: nobody minds. Times are of any steady clock, in seconds."""

    def __init__(self, topics: Iterable[str], silent_s: float) -> None:
        self._silent_s = silent_s
        self._heard_at = dict.fromkeys(topics, 0.0)
        self._silent: set[str] = set()

    def listen(self, now: float) -> None:
        """From now on one can hear them: what was said before, nobody knows."""
        for topic in self._heard_at.keys() - self._silent:
            self._heard_at[topic] = now

    def hear(self, topic: str, now: float) -> float | None:
        """`topic` said something; for how long it had been silent, if that was told."""
        before, self._heard_at[topic] = self._heard_at[topic], now
        if topic not in self._silent:
            return None
        self._silent.remove(topic)
        return now - before

    def newly_silent(self, now: float) -> list[str]:
        """The topics that have said nothing for `silent_s` and were not told before."""
        if not self._silent_s:
            return []
        told = [topic for topic, heard_at in self._heard_at.items() if now >= heard_at + self._silent_s]
        fresh = sorted(set(told) - self._silent)
        self._silent.update(fresh)
        return fresh
