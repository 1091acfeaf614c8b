"""The sink `mqtt`: publishes each alert as JSON to a topic of an MQTT broker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from shoal.server_node.outputs.sinks.base import SinkType
from shoal.server_node.outputs.sinks.mqtt_broker import BrokerSettings, MqttPublisher


class MqttSinkSettings(BrokerSettings):
    """[events.mqtt]: a topic for each kind of event."""

    topic: str = Field(
        default="shoal/{federation}/{model}/{event}",
        min_length=1,
        description="topic; `{federation}`, `{model}` and `{event}` (its kind) are filled in",
    )

    @model_validator(mode="after")
    def _topic_can_be_filled_in(self) -> Self:
        try:
            # Tried when the settings are read: a slip in the topic would otherwise show with the
            # first alert, at night.
            self.topic.format(federation="", model="", event="")
        except (KeyError, IndexError, ValueError):
            raise ValueError("topic may hold {federation}, {model} and {event} only") from None
        return self


class MqttSink:
    """Publishes each alert as JSON."""

    def __init__(self, settings: MqttSinkSettings, federation: str) -> None:
        """Raises `MissingExtra`."""
        self._topic = settings.topic
        self._federation = federation
        self._publisher = MqttPublisher(settings, f"shoal-{federation}-events")

    def deliver(self, alert: Mapping[str, Any], event: str, model: str) -> bool:
        """See `Sink.deliver`."""
        topic = self._topic.format(federation=self._federation, model=model, event=event)
        self._publisher.publish(topic, json.dumps(alert).encode())
        return True

    def close(self) -> None:
        """See `Sink.close`."""
        self._publisher.close()


class MqttSinkType(SinkType):
    """The sink `mqtt`."""

    name = "mqtt"
    settings = MqttSinkSettings

    def open(self, settings: MqttSinkSettings, federation: str) -> MqttSink:
        """See `SinkType.open`."""
        return MqttSink(settings, federation)


MQTT = MqttSinkType()
