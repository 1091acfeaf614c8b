"""The topics of MQTT whose messages hold features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from shoal.config.contract import Contract
from shoal.errors import SettingsError
from shoal.producers.messages import TopicField
from shoal.producers.mqtt.settings import MqttSettings, parse_place
from shoal.protocol.readings import codes_of

TOPICS_MAX = 10_000
"""topics that match a wildcard and are remembered"""


# MQTT writes the length of a text in 16 bits.
TOPIC_BYTES_MAX = 65535
"""longest topic of MQTT"""


def topics_of(
    settings: MqttSettings, contract: Contract, client: str
) -> dict[str, list[TopicField]]:
    """topic or filter -> the features in its messages.

    Raises `SettingsError` without topics, for an impossible one, and for two filters that match one
    topic: brokers may send its messages twice.
    """
    if not settings.topics:
        raise SettingsError(
            "--mqtt needs the section [mqtt.topics] in the federation file: a topic for each"
            " feature"
        )
    wanted: dict[str, list[TopicField]] = {}
    codes = codes_of(contract)
    for place, feature in enumerate(contract.features):
        topic, field = parse_place(settings.topics[feature.name].replace("{client}", client))
        if len(topic.encode()) > TOPIC_BYTES_MAX:
            raise SettingsError(
                f"[mqtt.topics] {feature.name}: a topic has at most {TOPIC_BYTES_MAX} bytes"
            )
        wanted.setdefault(topic, []).append(
            TopicField(
                place,
                field,
                codes.get(place),
                settings.quality.get(feature.name, ""),
                tuple(settings.na_values_of.get(feature.name, ())),
            )
        )
    for topic, features in wanted.items():
        # A plain number is also JSON, so that it would not be known which of both a message is.
        are_plain = [feature.field == "" for feature in features]
        if any(are_plain) and not all(are_plain):
            raise SettingsError(
                f"[mqtt.topics] {topic}: its messages are plain numbers or JSON, not both"
            )
    for first, second in combinations(wanted, 2):
        if _overlap(first.split("/"), second.split("/")):
            raise SettingsError(
                f"[mqtt.topics] {first} and {second} match the same topics; write one filter for"
                " both"
            )
    return wanted


def _overlap(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether there is a topic that both filters, as levels, match."""
    for level, other in zip(first, second, strict=False):
        if "#" in (level, other):
            return True
        if level != other and "+" not in (level, other):
            return False
    # `a/#` matches `a` too.
    longer, shorter = sorted((first, second), key=len, reverse=True)
    return len(longer) == len(shorter) or longer[len(shorter)] == "#"


class TopicTable:
    """Finds the features in the messages of a topic."""

    def __init__(self, topics: Mapping[str, Sequence[TopicField]]) -> None:
        """`topics`: topic or filter -> the features in its messages."""
        self.filters = topics
        self._found: dict[str, Sequence[TopicField] | None] = {}
        """topic -> what `find` gave for it, of the newest ones that match no filter by name"""

    def find(self, topic: str) -> Sequence[TopicField] | None:
        """The features in messages of that topic; None where no filter matches it."""
        if topic in self.filters:
            return self.filters[topic]
        if topic not in self._found:
            # Publishers choose topics, so that their number has a limit.
            if len(self._found) >= TOPICS_MAX:
                self._found.clear()
            self._found[topic] = self._matching(topic.split("/"))
        return self._found[topic]

    def _matching(self, levels: Sequence[str]) -> Sequence[TopicField] | None:
        for topic_filter, features in self.filters.items():
            # A topic has no wildcards, so that it overlaps with the filters that match it and no
            # others.
            if _overlap(topic_filter.split("/"), levels):
                return features
        return None
