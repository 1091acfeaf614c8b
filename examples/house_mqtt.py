"""A house over MQTT with alerts: sensors publish, shoal finds the states of the house, and new ones
raise an alert.

    python examples/house_mqtt.py 127.0.0.1:1883        # a broker such as mosquitto; writes into
    ./house

Four processes run as they would in a house: a producer that subscribes to the sensors, a client, a
server, and the forwarder of events, which publishes alerts. The sensors are made up here: a house
in two states, then in a third one that it has not had before.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

FEDERATION = """
[federation]
name = "house"
[[features]]
name = "temperature"
unit = "°C"
low = 0.0
high = 40.0
[[features]]
name = "humidity"
unit = "%"
low = 0.0
high = 100.0
[privacy]
mode = "formal"
counts_epsilon = 4.0
[[models]]
name = "states"
algorithm = "density_tree"
[mqtt]
host = "{host}"
port = {port}
[mqtt.topics]
temperature = "house/{{client}}/climate#temperature"
humidity = "house/{{client}}/climate#humidity"
[server]
port = 0
[events]
rules = "alerts.toml"
[events.mqtt]
host = "{host}"
port = {port}
topic = "alerts/{{event}}"
"""
ALERTS = (
    '[[rule]]\nname = "something new in the house"\nevents = ["birth", "parted"]\nshare_min ='
    " 0.02\n"
)
STATES = {"night": (17.0, 45.0), "day": (22.0, 55.0), "laundry": (24.0, 85.0)}
READINGS = {"night": 12_000, "day": 12_000, "laundry": 8_000}


def main(host: str, port: int) -> list[str]:
    """Run the house; the alerts that came."""
    folder = Path("house")
    folder.mkdir()
    (folder / "house.toml").write_text(FEDERATION.format(host=host, port=port), encoding="utf-8")
    (folder / "alerts.toml").write_text(ALERTS, encoding="utf-8")
    alerts: list[str] = []
    broker = Client(CallbackAPIVersion.VERSION2)
    broker.on_message = lambda _, __, message: alerts.append(
        json.loads(message.payload)["event"]["text"]
    )
    broker.max_queued_messages_set(0)
    broker.connect(host, port)
    broker.loop_start()
    broker.subscribe("alerts/#", 1)
    commands = (
        "server",
        "client --name hall --no-wait",
        "producer --mqtt --name hall",
        "events forward",
    )
    program = str(Path(sys.executable).parent / "shoal")
    running = [
        subprocess.Popen([program, *words.split(), "--config", "house.toml"], cwd=folder)
        for words in commands
    ]
    try:
        time.sleep(5)  # the producer subscribes; a sensor that sends before is not heard
        rng = np.random.default_rng(0)
        for state, number in READINGS.items():
            for temperature, humidity in (
                rng.normal(STATES[state], (0.8, 2.0), (number, 2)).round(2).tolist()
            ):
                sent = json.dumps({"temperature": temperature, "humidity": humidity})
                broker.publish("house/hall/climate", sent, qos=1).wait_for_publish(30)
            print(f"{number} readings of {state} sent")
        until = time.monotonic() + 60
        while not alerts and time.monotonic() < until:
            time.sleep(0.2)
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait()
    print("\n".join(alerts) or "no alert")
    return alerts


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:1883"
    main(address.rpartition(":")[0], int(address.rpartition(":")[2]))
