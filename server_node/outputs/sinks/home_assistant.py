"""The sink `home_assistant`: each cluster is a sensor of Home Assistant, and each event a trigger,
by MQTT discovery.

Home Assistant finds entities in retained messages under its discovery prefix. A model is a device;
a cluster is a sensor whose value is its share of the recent readings, as of its newest event; a
kind of event is a device trigger.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from shoal import __version__
from shoal.protocol.events import EVENT_KINDS, SITE_EVENT_KINDS
from shoal.server_node.outputs.sinks.base import SinkType
from shoal.server_node.outputs.sinks.mqtt_broker import BrokerSettings, MqttPublisher

ENDED = ("gone", "merged")
"""kinds of event after which a cluster is no more"""


class HomeAssistantSettings(BrokerSettings):
    """[events.home_assistant]: the broker that Home Assistant reads."""

    discovery_prefix: str = Field(
        default="homeassistant",
        pattern=r"^[^+#\s]+$",
        description="prefix of the topics in which Home Assistant looks for devices",
    )


class HomeAssistant:
    """Publishes what Home Assistant must know of a cluster, and the event, before the next one."""

    def __init__(self, settings: HomeAssistantSettings, federation: str) -> None:
        """Raises `MissingExtra`."""
        self._prefix = settings.discovery_prefix
        self._federation = federation
        self._publisher = MqttPublisher(settings, f"shoal-{federation}-home-assistant")
        self._described: set[str] = set()
        """topics of triggers that have been described since the start"""

    def deliver(self, alert: Mapping[str, Any], event: str, model: str) -> bool:
        """See `Sink.deliver`.

        What is published is the same whenever the alert is delivered again.
        """
        kinds = SITE_EVENT_KINDS if event in SITE_EVENT_KINDS else EVENT_KINDS
        # The trigger and the sensor first: Home Assistant drops a message that nothing has
        # described to it.
        self._describe_triggers(model, kinds)
        if event in EVENT_KINDS:
            self._publish_sensor(alert["event"], model)
        body = json.dumps(dict(alert), ensure_ascii=False).encode()
        self._publisher.publish(self._trigger_topic(model, event), body)
        return True

    def close(self) -> None:
        """See `Sink.close`."""
        self._publisher.close()

    def _describe_triggers(self, model: str, kinds: tuple[str, ...]) -> None:
        for kind in kinds:
            topic = f"{self._prefix}/device_automation/{self._device(model)}/{kind}/config"
            if topic in self._described:
                continue
            config = {
                "automation_type": "trigger",
                "type": kind,
                "subtype": model,
                "topic": self._trigger_topic(model, kind),
                "device": self._device_json(model),
            }
            self._publisher.publish(topic, _json(config), retain=True)
            # Only once the broker has it: after an error it is described again.
            self._described.add(topic)

    def _publish_sensor(self, event: Mapping[str, Any], model: str) -> None:
        """Describe the sensor of the cluster and publish its value; take it away where the cluster
        is no more."""
        place = f"{self._device(model)}/cluster_{event['cluster']}"
        config = f"{self._prefix}/sensor/{place}/config"
        state = f"shoal/home_assistant/{place}"
        if event["kind"] in ENDED:
            # An empty retained message removes what was retained.
            self._publisher.publish(config, b"", retain=True)
            self._publisher.publish(state, b"", retain=True)
            return
        described = {
            "name": event["name"] or event["label"] or f"cluster {event['cluster']}",
            "unique_id": place.replace("/", "_"),
            "state_topic": state,
            "value_template": "{{ value_json.share }}",
            "unit_of_measurement": "%",
            "state_class": "measurement",
            "icon": "mdi:shape",
            "json_attributes_topic": state,
            "device": self._device_json(model),
        }
        value = {
            "share": round(100 * event["share"], 1),
            "active": event["kind"] != "quiet",
            "cluster": event["cluster"],
            "name": event["name"],
            "label": event["label"],
            "text": event["text"],
            "version": event["version"],
            "centre": event["centre"],
            "units": event["units"],
            "last_event": event["kind"],
        }
        # Retained, so that Home Assistant finds it when it starts later than this.
        self._publisher.publish(config, _json(described), retain=True)
        self._publisher.publish(state, _json(value), retain=True)

    def _trigger_topic(self, model: str, kind: str) -> str:
        return f"shoal/home_assistant/{self._device(model)}/event/{kind}"

    def _device(self, model: str) -> str:
        """The model's name in topics and ids, which have letters, digits, _ and - alone.

        Home Assistant ignores a discovery topic with anything else.
        """
        return re.sub(r"[^A-Za-z0-9_-]", "_", f"shoal_{self._federation}_{model}")

    def _device_json(self, model: str) -> dict[str, Any]:
        return {
            "identifiers": [self._device(model)],
            "name": f"{self._federation} {model}",
            "manufacturer": "shoal",
            "sw_version": __version__,
        }


class HomeAssistantType(SinkType):
    """The sink `home_assistant`."""

    name = "home_assistant"
    settings = HomeAssistantSettings

    def open(self, settings: HomeAssistantSettings, federation: str) -> HomeAssistant:
        """See `SinkType.open`."""
        return HomeAssistant(settings, federation)


HOME_ASSISTANT = HomeAssistantType()


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
