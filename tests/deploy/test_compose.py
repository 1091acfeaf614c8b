"""docker-compose.yml as it is, on a real Docker engine: it comes up, it is watched, it is hurt, and it loses nothing.

The images that it pulls are stood in for (see stand_ins.py), all but Grafana's; what Grafana would ask is asked of the
Prometheus that runs. The tests stand in the order of a day: each goes on with what the one before has left.

The last one is of the systemd units, on a machine that the same engine and the same Debian can be.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from producers.synthetic.source import federation_file
from tests.deploy.compose_project import TOP, Project, wait_for
from tests.deploy.dashboard_queries import check_every_panel
from tests.deploy.docker_engine import Engine
from tests.deploy.image_stand_ins import WITHOUT, make_all
from tests.deploy.systemd_machine import Machine, commands_of_the_docs, systemd_machine

pytestmark = [pytest.mark.needs("docker"), pytest.mark.timeout(900)]

CLIENTS = [f"client-{number}" for number in range(1, 6)]
PRODUCERS = [f"producer-{number}" for number in range(1, 6)]
OURS = ["server", "sensors-1", *CLIENTS, *PRODUCERS]
SAID = '{"temperature": 21.5, "humidity": 40.0, "light": 300.0, "co2": 600.0}'
UNITS = ("shoal-server", "shoal-client@attic", "shoal-producer-mqtt@attic")
OF_UNITS = """
[log]
address = "sqlite:/var/lib/shoal-log/federation.db"
[client]
publish_readings = 10
[mqtt]
host = "127.0.0.1"
[mqtt.topics]
"x" = "rooms/{client}#x"
"y" = "rooms/{client}#y"
"""
"""besides the synthetic stream's two features"""
END_OF_READINGS = """
from shoal.transports import open_log
log = open_log("sqlite:/var/lib/shoal/clients/{client}/readings.db")
print(log.bounds("readings")[0][1])
"""
UPDATES_ON_THE_LOG = """
import json
from pathlib import Path
from shoal.protocol.messages import Update
from shoal.config.settings import load_config
from shoal.transports import open_log
config = load_config(Path("/etc/shoal/federation.toml"))
log, topic = open_log(config.log), config.contract.updates_topic
log.ensure(topic)
(at, end), told = log.bounds(topic)[0], {}
while at < end:
    records, after = log.read(topic, {0: at}, 500, 5.0)
    at = after[0]
    for record in records:
        if dict(record.headers).get("type") == b"update":
            update = Update.decode(record.value, record.headers)
            if update.model == "rooms":
                told[update.client, update.sequence] = update.readings
print(json.dumps([len(told), sum(told.values())]))
"""


@pytest.fixture(scope="module")
def engine(can_run_docker: None) -> Iterator[Engine]:
    engine = Engine()
    try:
        make_all(engine)
        yield engine
    finally:
        engine.stop()


@pytest.fixture(scope="module")
def project(engine: Engine) -> Iterator[Project]:
    project = Project(engine, "office", without=WITHOUT, profiles=["mqtt"])
    project.up()
    yield project
    project.down("--volumes")


def produced(project: Project) -> dict[str, int]:
    """Readings in each client's own log."""
    return {client: int(project.run_in(client, END_OF_READINGS.format(client=client))) for client in CLIENTS}


def snapshot(project: Project) -> dict[str, Any]:
    """The newest of the model `rooms`."""
    found: dict[str, Any] = wait_for("a snapshot", lambda: project.asked("/snapshot?model=rooms"))
    return found


def check_that_nothing_is_lost(project: Project) -> int:
    """With the producers stopped: what they put in is what the clients learnt and what the server absorbed, once.

    How many readings that are. The clients have ended when it returns.
    """
    project.compose("stop", *PRODUCERS, "sensors-1")
    readings = produced(project)
    total = sum(readings.values())
    wait_for(f"{total} readings absorbed", lambda: snapshot(project)["readings"] >= total)
    updates, behind_them = json.loads(project.run_in("server", UPDATES_ON_THE_LOG))
    assert (snapshot(project)["readings"], snapshot(project)["updates"]) == (total, updates)
    assert behind_them == total
    project.compose("stop", *CLIENTS)
    for client in CLIENTS:
        last = json.loads(project.docker("logs", "--tail", "100", project.container(client)).splitlines()[-1])
        assert (last["learned"], last["rejected"], last["withheld"]) == (readings[client], 0, 0), client
    return total


def test_every_service_is_up_and_well(project: Project) -> None:
    assert set(project.services) == {"kafka", "topics", "prometheus", "mosquitto", *OURS}
    for service in project.services:
        watched = service in {"kafka", "prometheus", "mosquitto", "server", *CLIENTS}
        assert ("Health" in project.inspect(service)["State"]) == watched, service


def test_clusters_appear_on_the_page_and_in_prometheus(project: Project) -> None:
    wait_for("clusters", lambda: snapshot(project)["clusters"])
    assert snapshot(project)["federation"] == "office"
    wait_for("every target", lambda: sum(project.query("up").values()) >= len(CLIENTS) + 1)
    wait_for("clusters in Prometheus", lambda: project.query('shoal_clusters{model="rooms"}').get("rooms"))
    learned = 'shoal_readings_total{job="shoal-client",result="learned"} > 0'
    wait_for("all clients in Prometheus", lambda: set(project.query(learned)) == set(CLIENTS))


def test_every_panel_of_every_dashboard_shows_something(project: Project) -> None:
    check_every_panel(project.prometheus, TOP / "deploy/grafana/dashboards", patience_s=180.0)


def test_every_line_that_they_say_is_an_event_with_its_level_and_whose_it_is(project: Project) -> None:
    wait_for("progress of a producer", lambda: "readings_stored" in project.said("producer-1"))
    for service in OURS:
        lines = [json.loads(line) for line in project.all_said(service)]
        assert lines[0]["event"] == "started", service
        assert all({"time", "level", "event", "process"} <= set(line) for line in lines), service
        assert {line.get("client") for line in lines} == {None if service == "server" else f"client-{service[-1]}"}
    events = [json.loads(line) for service in CLIENTS for line in project.all_said(service)]
    spoken = {(line["client"], line["model"]) for line in events if line["event"] == "updates_published"}
    assert spoken >= {(client, "rooms") for client in CLIENTS}


def test_containers_may_do_nothing_but_their_work(project: Project) -> None:
    for service in OURS:
        seen = project.inspect(service)
        host = seen["HostConfig"]
        assert seen["Config"]["User"] == "shoal"
        assert (host["ReadonlyRootfs"], host["CapDrop"], host["Privileged"]) == (True, ["ALL"], False)
        assert host["SecurityOpt"] == ["no-new-privileges:true"]
    for service in ("kafka", "prometheus", "mosquitto", *OURS):
        for bound in project.inspect(service)["HostConfig"]["PortBindings"].values():
            assert [place["HostIp"] for place in bound] == ["127.0.0.1"], service
    rejected = "import pathlib\ntry: pathlib.Path('/opt/shoal/x').touch()\nexcept OSError as no: print(no.strerror)"
    assert project.run_in("server", rejected).strip() == "Read-only file system"


def test_nobody_has_anybody_elses_key(project: Project) -> None:
    for service in OURS:
        own = set() if service == "server" else {f"client-{service[-1]}"}
        found = project.run_in(service, "import pathlib; print(*pathlib.Path('/').glob('var/lib/shoal/**/noise.key'))")
        assert {path.split("/")[-2] for path in found.split()} == own, service
        mounted = {mount["Name"] for mount in project.inspect(service)["Mounts"] if mount["Type"] == "volume"}
        assert mounted == {f"{project.name}_{name}" for name in own or {"server"}}


def test_what_sensors_say_over_mqtt_is_learnt(project: Project) -> None:
    project.compose("stop", "producer-1")
    wait_for("the sensors' producer", lambda: "mqtt_connected" in project.said("sensors-1"))
    before = produced(project)["client-1"]
    for _ in range(3):
        say = ["mosquitto_pub", "-q", "1", "-t", "rooms/client-1/climate", "-m", SAID]
        project.docker("exec", project.container("mosquitto"), *say)
    wait_for("three readings", lambda: produced(project)["client-1"] == before + 3)
    project.compose("start", "producer-1")


def test_asked_to_stop_they_end_with_zero(project: Project) -> None:
    project.compose("stop", "client-3", "producer-3", "server")
    for service in ("client-3", "producer-3", "server"):
        assert project.inspect(service)["State"]["ExitCode"] == 0, project.said(service)
    project.compose("start", "client-3", "producer-3", "server")


def test_killed_and_restarted_they_lose_nothing(project: Project) -> None:
    for service in ("client-2", "server", "kafka", "producer-4", "client-2"):
        version = snapshot(project)["version"]
        project.kill(service)
        wait_for("the next snapshot", lambda version=version: snapshot(project)["version"] > version)
    project.compose("restart", "kafka", "server", "client-5")
    assert check_that_nothing_is_lost(project) > 0
    project.compose("start", *CLIENTS, *PRODUCERS, "sensors-1")


def test_taken_down_and_up_again_they_go_on_from_their_volumes(project: Project) -> None:
    before, readings = snapshot(project), produced(project)
    project.down()
    assert not project.compose("ps", "--quiet").split()
    project.up()
    after = snapshot(project)
    assert after["version"] >= before["version"]
    assert after["readings"] >= before["readings"]
    assert after["contract"] == before["contract"]
    [[_, position]], [[_, was]] = after["positions"], before["positions"]
    assert position >= was
    wait_for("new readings", lambda: all(produced(project)[client] > readings[client] for client in CLIENTS))
    check_that_nothing_is_lost(project)


def say_to_units(box: Machine, number: int) -> None:
    """So many readings over MQTT."""
    one = 'echo "{\\"x\\": $((n * 7 % 100)), \\"y\\": $((n * 3 % 100))}"'
    box.run(f"for n in $(seq {number}); do {one}; done | mosquitto_pub -q 1 -t rooms/attic -l")


def test_the_units_run_under_systemd_as_the_docs_say_and_lose_nothing(engine: Engine) -> None:
    with systemd_machine(engine) as box:
        file = federation_file("gaussians") + OF_UNITS
        box.run(f"mkdir /etc/shoal; cat > /etc/shoal/federation.toml <<'END'\n{file}END")
        box.run(commands_of_the_docs())
        for unit in UNITS:
            seen = box.shows(unit, "ActiveState", "User", "PrivateUsers")
            assert seen == ["active", "shoal", "yes"], box.run(f"journalctl -u {unit} -n 20")
        said = "journalctl -u shoal-client@attic -o cat"
        say_to_units(box, 300)
        wait_for("300 readings", lambda: "learned=300" in box.run(said))
        for unit in UNITS:
            box.run(f"kill -9 $(systemctl show --value -p MainPID {unit})")
        for unit in UNITS:
            wait_for(unit, lambda unit=unit: box.shows(unit, "NRestarts", "ActiveState") == ["1", "active"])
        say_to_units(box, 120)
        wait_for("120 more", lambda: "learned=420" in box.run(said))
        box.run("systemctl stop shoal.target")
        for unit in UNITS:
            wait_for(f"the end of {unit}", lambda unit=unit: box.shows(unit, "ActiveState") != ["deactivating"])
            assert box.shows(unit, "ActiveState", "Result", "ExecMainStatus") == ["inactive", "success", "0"], unit
        assert "stopped learned=420 rejected=0" in box.run(said)
        assert box.run("stat -c %a /var/lib/private/shoal-client/attic").strip() == "700"
        # What does not mend itself is not tried again.
        box.run("echo nonsense > /etc/shoal/federation.toml; ! systemctl start shoal-server")
        assert box.shows("shoal-server", "ActiveState", "ExecMainStatus", "NRestarts") == ["failed", "2", "0"]
