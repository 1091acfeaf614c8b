"""Finds topics from which nothing comes any more."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.producers.mqtt.topics import TOPICS_MAX


class SilenceMonitor:
    """Watches topics. Times are of any steady clock, in seconds; `silent_s` 0 reports nothing."""

    def __init__(self, topics: Iterable[str], silent_s: float) -> None:
        self._silent_s = silent_s
        self._received_at = dict.fromkeys(topics, 0.0)
        self._silent: set[str] = set()

    def start(self, now: float) -> None:
        """Note that a connection begins: silences count from now, as earlier ones are unknown."""
        # Those that are reported as silent stay so until a message comes: else each connection
        # would report them anew.
        for topic in self._received_at.keys() - self._silent:
            self._received_at[topic] = now

    def received(self, topic: str, now: float) -> float | None:
        """Note a message of `topic`; the seconds of its silence, if that was reported."""
        before = self._received_at.get(topic, now)
        # Topics that match a wildcard are known when their first message comes.
        if topic in self._received_at or len(self._received_at) < TOPICS_MAX:
            self._received_at[topic] = now
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
