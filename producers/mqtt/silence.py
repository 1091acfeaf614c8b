"""Silence of sensors: which topics have had no message for too long, reported once per silence and once at its end."""

from __future__ import annotations

from collections.abc import Iterable


class SilenceMonitor:
    """Watches topics. Times are of any steady clock, in seconds; `silent_s` 0 reports nothing."""

    def __init__(self, topics: Iterable[str], silent_s: float) -> None:
        self._silent_s = silent_s
        self._received_at = dict.fromkeys(topics, 0.0)
        self._silent: set[str] = set()

    def start(self, now: float) -> None:
        """A connection begins: messages sent before it are unknown, so silences are counted from now."""
        for topic in self._received_at.keys() - self._silent:
            self._received_at[topic] = now

    def received(self, topic: str, now: float) -> float | None:
        """Note a message of `topic`; the seconds it had been silent, if that silence was reported."""
        before, self._received_at[topic] = self._received_at[topic], now
        if topic not in self._silent:
            return None
        self._silent.remove(topic)
        return now - before

    def newly_silent(self, now: float) -> list[str]:
        """The topics without a message for `silent_s` that were not reported before."""
        if not self._silent_s:
            return []
        silent = [topic for topic, at in self._received_at.items() if now >= at + self._silent_s]
        fresh = sorted(set(silent) - self._silent)
        self._silent.update(fresh)
        return fresh
