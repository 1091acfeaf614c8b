"""Forwarding of cluster events: every matching event reaches every sink in order, also through
outages and restarts."""

from __future__ import annotations

import base64
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from paho.mqtt import subscribe
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from shoal.config.settings import Config, load_config
from shoal.errors import InvalidState, LogUnavailable, MessageRejected, SettingsError
from shoal.protocol.events import EVENT_KINDS, ClusterEventMessage
from shoal.protocol.topics import ensure_topics
from shoal.runtime.checkpoint import Checkpoint
from shoal.server_node.outputs.alert_rules import EVERYTHING, Rule, load_rules
from shoal.server_node.outputs.events_command import events as events_command
from shoal.server_node.outputs.forwarding import Forwarder, Topic
from shoal.server_node.outputs.sinks.base import Sinks
from shoal.server_node.outputs.sinks.webhook import cloud_event_headers
from shoal.transports import open_log
from tests.federation_text import federation_text

FILE = federation_text(
    "office",
    features=[{"name": "Light", "low": 0.0, "high": 1000.0}],
    models=[{"name": "rooms", "algorithm": "fcac"}],
)


class Receiver:
    """A webhook on the loopback that keeps what it is sent; `statuses` are answered first, then
    200."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []
        self.headers: list[Any] = []
        self.bodies: list[bytes] = []
        self.statuses: list[int] = []
        self.location = ""
        self.requests = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.requests += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver.statuses.pop(0) if receiver.statuses else 200
                if status == 200:
                    receiver.alerts.append(json.loads(body))
                    receiver.tokens.append(self.headers["Authorization"])
                    receiver.headers.append(self.headers)
                    receiver.bodies.append(body)
                self.send_response(status)
                if receiver.location and 300 <= status < 400:
                    self.send_header("Location", receiver.location)
                self.end_headers()

            def do_GET(self) -> None:
                receiver.requests += 1
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing on the terminal."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def ids(self) -> list[str]:
        return [alert["event"]["id"] for alert in self.alerts]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def configured(tmp_path: Path, settings: str) -> Config:
    (tmp_path / "data").mkdir(exist_ok=True)
    file = tmp_path / "office.toml"
    file.write_text(FILE + settings, encoding="utf-8")
    config = load_config(file)
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
    return config


def event(place: int, kind: str = "birth", **other: Any) -> ClusterEventMessage:
    given = {"version": place, "readings": 100, "at": 1e9, "cluster": 1, "share": 0.5} | other
    return ClusterEventMessage(f"rooms/{place}/0", kind, "office", "rooms", **given)


def publish(config: Config, *events: ClusterEventMessage) -> None:
    with closing(open_log(config.log)) as log:
        for event in events:
            log.publish(config.contract.events_topic, event.encode(), b"rooms", event.headers())
        log.flush()


def forward(config: Config, steps: int = 1, sinks: type[Sinks] = Sinks) -> Forwarder:
    """A forwarder as it is after a start from its folder and so many steps."""
    owner = "event forwarder of office"
    with (
        closing(open_log(config.log)) as log,
        Checkpoint(config.events.folder / "checkpoint.db", owner) as checkpoint,
        sinks(config.sinks, "office") as opened,
    ):
        node = Forwarder(
            Topic(config.contract.events_topic, ClusterEventMessage.decode),
            log,
            checkpoint,
            load_rules(config.events.rules),
            opened,
        )
        node.resume()
        for _ in range(steps):
            node.step()
        return node


def test_every_event_is_delivered_once_and_in_order_over_restarts(
    tmp_path: Path, receiver: Receiver
) -> None:
    config = configured(tmp_path, f'[events.webhook]\nurl = "{receiver.url}"')
    publish(config, event(1), event(2))
    forward(config, steps=2)
    publish(config, event(3))
    forward(config, steps=2)
    assert receiver.ids == ["rooms/1/0", "rooms/2/0", "rooms/3/0"]
    assert receiver.alerts[0]["alert"] == EVERYTHING.name
    assert receiver.tokens == [None] * 3


def test_what_a_sink_does_not_take_while_it_is_away_is_delivered_later_and_repeats_nothing(
    tmp_path: Path, receiver: Receiver
) -> None:
    config = configured(tmp_path, f'[events.webhook]\nurl = "{receiver.url}"')
    publish(config, event(1), event(2), event(3))
    receiver.statuses = [200, 503]
    with pytest.raises(LogUnavailable, match="503"):
        forward(config)
    assert receiver.ids == ["rooms/1/0"]
    forward(config)
    assert receiver.ids == ["rooms/1/0", "rooms/2/0", "rooms/3/0"]


def test_a_webhook_that_is_not_there_is_tried_again(tmp_path: Path, receiver: Receiver) -> None:
    config = configured(tmp_path, '[events.webhook]\nurl = "http://127.0.0.1:9/none"')
    publish(config, event(1))
    with pytest.raises(LogUnavailable, match=r"127\.0\.0\.1:9"):
        forward(config)
    forward(configured(tmp_path, f'[events.webhook]\nurl = "{receiver.url}"'))
    assert receiver.ids == ["rooms/1/0"]


def test_an_alert_that_the_receiver_rejects_for_good_stops_no_other(
    tmp_path: Path, receiver: Receiver
) -> None:
    config = configured(tmp_path, f'[events.webhook]\nurl = "{receiver.url}"')
    publish(config, event(1), event(2))
    receiver.statuses = [400]
    forward(config)
    assert receiver.ids == ["rooms/2/0"]


def test_a_token_is_read_from_its_file_at_each_request(tmp_path: Path, receiver: Receiver) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    token.chmod(0o600)
    config = configured(tmp_path, f'[events.webhook]\nurl = "{receiver.url}"\ntoken_file = "token"')
    publish(config, event(1))
    forward(config)
    token.write_text("second")
    publish(config, event(2))
    forward(config)
    assert receiver.tokens == ["Bearer first", "Bearer second"]


def test_what_is_not_an_event_is_passed_over(tmp_path: Path, receiver: Receiver) -> None:
    config = configured(tmp_path, f'[events.webhook]\nurl = "{receiver.url}"')
    with closing(open_log(config.log)) as log:
        for value in (b"", b"{", b"[]", b'{"schema": 2}', b"\xff" * 100, b"[" * 5000, None):
            log.publish(config.contract.events_topic, value, b"rooms", ())
        log.flush()
    publish(config, event(1))
    forward(config)
    assert receiver.ids == ["rooms/1/0"]


def test_events_reach_an_mqtt_broker(tmp_path: Path, mosquitto_port: int) -> None:
    section = f'[events.mqtt]\nhost = "127.0.0.1"\nport = {mosquitto_port}\ntopic = "t/{{event}}"'
    config = configured(tmp_path, section)
    publish(config, event(1), event(2, "quiet"))
    arrived: list[tuple[str, Any]] = []
    listening = threading.Event()

    def listen() -> None:
        def on_message(client: Any, userdata: object, message: Any) -> None:
            if message.topic == "t/ready":
                listening.set()
                return
            arrived.append((message.topic, json.loads(message.payload)["event"]["id"]))
            if len(arrived) == 2:
                client.disconnect()

        subscribe.callback(on_message, "t/#", hostname="127.0.0.1", port=mosquitto_port, qos=1)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    from paho.mqtt import publish as say  # noqa: PLC0415 - the name is taken above

    while not listening.wait(0.1):
        say.single("t/ready", b"", hostname="127.0.0.1", port=mosquitto_port)
    assert forward(config).forwarded == 2
    listener.join(30)
    assert arrived == [("t/birth", "rooms/1/0"), ("t/quiet", "rooms/2/0")]


def test_a_broker_that_is_away_is_tried_again(tmp_path: Path) -> None:
    config = configured(tmp_path, '[events.mqtt]\nhost = "127.0.0.1"\nport = 9')
    publish(config, event(1))
    with pytest.raises(LogUnavailable, match=r"127\.0\.0\.1:9"):
        forward(config)


def test_a_forwarder_of_another_log_does_not_go_on(tmp_path: Path, receiver: Receiver) -> None:
    config = configured(tmp_path, f'[events.webhook]\nurl = "{receiver.url}"')
    publish(config, event(1))
    forward(config)
    for file in (tmp_path / "data").glob("federation.db*"):
        file.unlink()
    config = configured(tmp_path, f'[events.webhook]\nurl = "{receiver.url}"')
    with pytest.raises(InvalidState):
        forward(config)


# Rules.


@pytest.mark.parametrize(
    ("rule", "matching"),
    [
        ({}, [1, 2, 3]),
        ({"events": ["birth"]}, [1]),
        ({"events": ["quiet", "gone"]}, [2, 3]),
        ({"share_min": 0.6}, [2]),
        ({"share_max": 0.4}, [3]),
        ({"cluster": "night"}, [2]),
        ({"cluster": "1"}, [1, 2]),
        ({"model": "other"}, []),
    ],
)
def test_a_rule_matches_events_that_meet_all_its_conditions(
    rule: dict[str, Any], matching: list[int]
) -> None:
    given = [
        event(1),
        event(2, "quiet", share=0.7, name="night"),
        event(3, "gone", share=0.1, cluster=4),
    ]
    assert [event.version for event in given if Rule(name="r", **rule).matches(event)] == matching


def test_rules_are_read_from_their_file(tmp_path: Path, receiver: Receiver) -> None:
    rules = (
        '[[rule]]\nname = "large"\nevents = ["birth"]\nshare_min = 0.02\n[[rule]]\nname ='
        ' "end"\nevents = ["gone"]\n'
    )
    (tmp_path / "alerts.toml").write_text(rules)
    config = configured(
        tmp_path, f'[events]\nrules = "alerts.toml"\n[events.webhook]\nurl = "{receiver.url}"'
    )
    publish(config, event(1), event(2, share=0.01), event(3, "gone"))
    forward(config)
    assert [alert["alert"] for alert in receiver.alerts] == ["large", "end"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rule = 1", "rule"),
        ('[[rule]]\nname = "x"\nevents = ["birht"]', "birht"),
        ('[[rule]]\nname = "x"\nshare_min = 2', "share_min"),
        ('[[rule]]\nname = "x"\nsahre = 2', "sahre"),
        ("", "no \\[\\[rule\\]\\]"),
        ("[", "not TOML"),
    ],
)
def test_a_mistake_in_a_rule_is_named_with_its_place(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "alerts.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=message):
        load_rules(file)


# Settings and messages.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            '[events.webhook]\nurl = "ftp://x"',
            r"\[events\.webhook\]: url: must begin with http:// or https://",
        ),
        ('[events.webhook]\ntoken_file = "token"', r"\[events\.webhook\]: url: is missing"),
        ('[events]\nwebhook = "http://x"', r"\[events\.webhook\] is not a table"),
        ('[events.mqtt]\nhost = "x"\nuser = "me"', "user and secret_file are set together"),
        ('[events.mqtt]\nhost = "x"\nca_file = "ca.pem"', "set tls = true"),
        ('[events.mqtt]\nhost = "x"\ntopic = "{place}"', "topic may hold"),
        ('[events.mqtt]\nhosts = "x"', "hosts: unknown name"),
        (
            '[events.slack]\nurl = "x"',
            r"\[events\.slack\]; there are \[events\.home_assistant\], \[events\.mqtt\]",
        ),
    ],
)
def test_a_mistake_in_the_settings_is_named(tmp_path: Path, settings: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        configured(tmp_path, settings)


def test_nowhere_to_forward_to_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"there are \[events\.home_assistant\], \[events\.mqtt\]"
    ):
        Sinks(configured(tmp_path, "").sinks, "office")


def test_a_variable_of_a_section_configures_the_sink_and_wins_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    monkeypatch.setenv("SHOAL_EVENTS_MQTT_HOST", "")
    monkeypatch.setenv("SHOAL_EVENTS_WEBHOOK_URL", receiver.url)
    monkeypatch.setenv("SHOAL_EVENTS_FOLDER", str(tmp_path / "elsewhere"))
    for section in ("", '[events.webhook]\nurl = "http://127.0.0.1:9/none"'):
        config = configured(tmp_path, section)
        assert list(config.sinks) == ["webhook"]
        assert config.sinks["webhook"].model_dump()["url"] == receiver.url
        assert config.events.folder == tmp_path / "elsewhere"


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("SHOAL_EVENTS_WEBHOOK", r"SHOAL_EVENTS_WEBHOOK: no setting of \[events\]"),
        (
            "SHOAL_EVENTS_WEBHOOK_TOKEN",
            r"SHOAL_EVENTS_WEBHOOK_TOKEN: no setting of \[events\.webhook\]",
        ),
        ("SHOAL_EVENTS_MQTT_PORT", r"SHOAL_EVENTS_MQTT_PORT: should be a valid integer"),
        (
            "SHOAL_EVENTS_MQTT_USER",
            r"\[events\.mqtt\] and SHOAL_EVENTS_MQTT_\.\.\.: host: is missing",
        ),
    ],
)
def test_a_mistake_in_a_variable_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, message: str
) -> None:
    monkeypatch.setenv(variable, "x")
    with pytest.raises(SettingsError, match=message):
        configured(tmp_path, "")


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "explosion"},
        {"share": float("nan")},
        {"share": 2.0},
        {"cluster": -1},
        {"at": "now"},
        {"centre": {"Light": "x" * 2000}},  # a short text is a value of a category
        {"centre": {"Light": None}},
        {"text": "x" * 2000},
        {"other": 1.5},
    ],
)
def test_an_event_that_cannot_be_true_cannot_be_made_or_read(wrong: dict[str, Any]) -> None:
    with pytest.raises(MessageRejected):
        event(1, **wrong)
    table = json.loads(event(1).encode()) | {name: str(value) for name, value in wrong.items()}
    with pytest.raises(MessageRejected):
        ClusterEventMessage.decode(json.dumps(table | {"kind": "explosion"}).encode())


def test_an_event_is_read_as_it_was_written() -> None:
    written = event(
        1, centre={"Light": 3.5}, units={"Light": "lux"}, name="night", share_before=0.1, other=3
    )
    assert ClusterEventMessage.decode(written.encode()) == written
    assert (
        ClusterEventMessage.decode(json.dumps(json.loads(written.encode()) | {"later": 1}).encode())
        == written
    )


# The commands.


def test_the_command_lists_and_forwards(tmp_path: Path, receiver: Receiver) -> None:
    config = configured(tmp_path, f'[events.webhook]\nurl = "{receiver.url}"')
    file = str(tmp_path / "office.toml")
    listed = CliRunner().invoke(events_command, ["list", "--config", file])
    assert (listed.exit_code, listed.stdout) == (0, "")
    assert listed.stderr.startswith("No events: no client ")
    publish(config, event(1, text='cluster 1 "night" was born'), event(2, "quiet"))
    listed = CliRunner().invoke(events_command, ["list", "--config", file])
    assert listed.output.splitlines()[0] == '2001-09-09T01:46:40Z rooms cluster 1 "night" was born'
    as_json = CliRunner().invoke(
        events_command, ["list", "--config", file, "--json", "--model", "rooms"]
    )
    assert [json.loads(line)["kind"] for line in as_json.output.splitlines()] == ["birth", "quiet"]
    forwarded = CliRunner().invoke(
        events_command, ["forward", "--config", file, "--until-idle", "0.3", "--json"]
    )
    assert forwarded.exit_code == 0, forwarded.output
    assert json.loads(forwarded.stdout.splitlines()[-1]) == {"forwarded": 2}
    assert receiver.ids == ["rooms/1/0", "rooms/2/0"]


@pytest.mark.parametrize(("lasted_s", "lines"), [(1.0, 1), (60.0, 3)])
def test_a_cluster_that_merges_away_within_a_minute_is_not_listed(
    tmp_path: Path, lasted_s: float, lines: int
) -> None:
    config = configured(tmp_path, "")
    publish(
        config,
        event(1, "birth", cluster=1, reading_at=1e9),
        event(2, "birth", cluster=7, reading_at=1e9),
        event(3, "merged", cluster=7, reading_at=1e9 + lasted_s),
    )
    options = ["list", "--config", str(tmp_path / "office.toml")]
    listed = CliRunner().invoke(events_command, options)
    assert len(listed.stdout.splitlines()) == lines, listed.output
    assert ("2 events of clusters" in listed.stderr) == (lines == 1)
    assert len(CliRunner().invoke(events_command, [*options, "--json"]).stdout.splitlines()) == 3


# What receivers can trust, and what they recognise.


def test_an_alert_has_the_attributes_of_a_cloud_event(tmp_path: Path, receiver: Receiver) -> None:
    config = configured(tmp_path, f'[events.webhook]\nurl = "{receiver.url}"')
    publish(config, event(1, cluster=4))
    forward(config)
    expected = {
        "specversion": "1.0",
        "id": "rooms/1/0/cluster%20event",
        "source": "/shoal/office",
        "type": "shoal.cluster.birth",
        "subject": "rooms/4",
        "time": "2001-09-09T01:46:40Z",
    }
    assert {name: receiver.headers[0][f"ce-{name}"] for name in expected} == expected
    assert receiver.headers[0]["webhook-signature"] is None
    site = {
        "id": "x",
        "kind": "novel_streak",
        "federation": "f",
        "client": "c",
        "model": "m",
        "cluster": None,
        "at": None,
    }
    given = cloud_event_headers({"alert": 'große \n „Halle"', "event": site})
    assert given["ce-id"] == "x/gro%C3%9Fe%20%0A%20%E2%80%9EHalle%22"
    assert (given["ce-source"], given["ce-type"], given["ce-subject"]) == (
        "/shoal/f/c",
        "shoal.site.novel_streak",
        "m",
    )
    assert "ce-time" not in given


@pytest.mark.parametrize("secret", ["a secret of this site", "whsec_c2l4dGVlbiBieXRlcyBvZg=="])
def test_a_receiver_can_tell_who_has_sent_an_alert(
    tmp_path: Path, receiver: Receiver, secret: str
) -> None:
    (tmp_path / "key").write_text(f"{secret}\n")
    (tmp_path / "key").chmod(0o600)
    config = configured(
        tmp_path, f'[events.webhook]\nurl = "{receiver.url}"\nsigning_key_file = "key"'
    )
    publish(config, event(1))
    forward(config)
    given = receiver.headers[0]
    body = receiver.bodies[0]
    key = b"sixteen bytes of" if secret.startswith("whsec_") else secret.encode()
    signed = f"{given['webhook-id']}.{given['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(key, signed, "sha256").digest()).decode()
    assert given["webhook-signature"] == f"v1,{expected}"
    assert given["webhook-id"] == given["ce-id"]
    assert abs(int(given["webhook-timestamp"]) - time.time()) < 600


def test_a_signing_key_that_is_no_base64_is_named(tmp_path: Path, receiver: Receiver) -> None:
    (tmp_path / "key").write_text("whsec_not base64")
    (tmp_path / "key").chmod(0o600)
    config = configured(
        tmp_path, f'[events.webhook]\nurl = "{receiver.url}"\nsigning_key_file = "key"'
    )
    publish(config, event(1))
    with pytest.raises(SettingsError, match="must be base64"):
        forward(config)
    assert receiver.alerts == []


# Home Assistant.


def retained(port: int) -> dict[str, Any]:
    """topic -> its retained message, as a new subscriber gets them."""
    found: dict[str, Any] = {}
    done = threading.Event()
    client = Client(CallbackAPIVersion.VERSION2)

    def on_message(_: Any, userdata: object, message: Any) -> None:
        if message.topic == "end":
            done.set()
        elif message.retain:
            found[message.topic] = json.loads(message.payload)

    client.on_message = on_message
    client.connect("127.0.0.1", port)
    client.loop_start()
    client.subscribe([("homeassistant/#", 1), ("shoal/#", 1)])
    # The broker sends what it has retained before what is published after it.
    client.on_subscribe = lambda *_: client.publish("end", b"", qos=1)
    client.subscribe("end", 1)
    assert done.wait(60)
    client.disconnect()
    client.loop_stop()
    return found


def test_home_assistant_finds_clusters_as_sensors_and_events_as_triggers(
    tmp_path: Path, mosquitto_port: int
) -> None:
    config = configured(
        tmp_path, f'[events.home_assistant]\nhost = "127.0.0.1"\nport = {mosquitto_port}'
    )
    publish(
        config,
        event(1, label="Light high"),
        event(2, cluster=2),
        event(3, "quiet", share=0.0),
        event(4, "named", name="day"),
    )
    assert forward(config).forwarded == 4
    device = "shoal_office_rooms"
    found = retained(mosquitto_port)
    sensor = found[f"homeassistant/sensor/{device}/cluster_1/config"]
    assert (sensor["name"], sensor["unit_of_measurement"]) == ("day", "%")
    assert sensor["device"]["identifiers"] == [device]
    state = found[sensor["state_topic"]]
    assert (state["share"], state["active"], state["last_event"]) == (50.0, True, "named")
    assert f"homeassistant/sensor/{device}/cluster_2/config" in found
    trigger = found[f"homeassistant/device_automation/{device}/birth/config"]
    assert (trigger["automation_type"], trigger["type"], trigger["subtype"]) == (
        "trigger",
        "birth",
        "rooms",
    )
    triggers = {topic.split("/")[-2] for topic in found if "/device_automation/" in topic}
    assert triggers == set(EVENT_KINDS)
    assert trigger["topic"] not in found, (
        "a trigger is a moment: what is retained would fire again at every start"
    )
    arrived: list[str] = []
    listener = Client(CallbackAPIVersion.VERSION2)
    subscribed = threading.Event()
    came = threading.Event()
    listener.on_subscribe = lambda *_: subscribed.set()
    listener.on_message = lambda _, __, message: (arrived.append(message.topic), came.set())[1]
    listener.connect("127.0.0.1", mosquitto_port)
    listener.loop_start()
    listener.subscribe(trigger["topic"].replace("birth", "gone"), 1)
    assert subscribed.wait(60)
    publish(config, event(5, "gone", cluster=2))
    forward(config)
    assert came.wait(60)
    listener.loop_stop()
    assert f"homeassistant/sensor/{device}/cluster_2/config" not in retained(mosquitto_port)
