"""docker-compose.yml, unchanged, on a real Docker engine: it starts, is monitored, is killed, and
loses nothing.

The images that it pulls are replaced by stand-ins (see image_stand_ins.py), except Grafana's;
Grafana's queries are run against the Prometheus of the project. The tests run in order: each
continues with the state that the one before left.

The last one tests the systemd units, in a container of the same engine and Debian. `make test`
brings the project up once and kills its services; the dashboards, `down` and `up`, and the units
are left to `make integration`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.compose_project import TOP, Project, wait_for
from tests.deploy.dashboard_queries import check_every_panel
from tests.deploy.docker_engine import Engine, EngineError
from tests.deploy.image_stand_ins import WITHOUT, make_all
from tests.deploy.systemd_machine import Machine, commands_of_the_docs, systemd_machine
from tests.noisy_rows import noisy_rows_file

# The first test also makes the images, for which a busy machine takes more than a quarter of an
# hour.
pytestmark = [pytest.mark.needs("docker"), pytest.mark.timeout(1800)]

MODELS = ("rooms", "fcac", "fuzzy")
CLIENTS = [f"client-{number}" for number in range(1, 6)]
PRODUCERS = [f"producer-{number}" for number in range(1, 6)]
SHOAL_SERVICES = ["server", "sensors-1", *CLIENTS, *PRODUCERS]
MQTT_PAYLOAD = '{"temperature": 21.5, "humidity": 40.0, "light": 300.0, "co2": 600.0}'
UNITS = ("shoal-server", "shoal-client@attic", "shoal-producer-mqtt@attic")
UNITS_SETTINGS = """
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
"""appended to the federation file of the synthetic stream, which has the features x and y"""
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
(at, end), readings = log.bounds(topic)[0], {}
while at < end:
    records, after = log.read(topic, {0: at}, 500, 5.0)
    at = after[0]
    for record in records:
        if dict(record.headers).get("type") == b"update":
            update = Update.decode(record.value, record.headers)
            if update.model == "fcac":
                readings[update.client, update.sequence] = update.readings
print(json.dumps([len(readings), sum(readings.values())]))
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
    # The forwarder of events is optional, and needs somewhere to forward to.
    project = Project(engine, "office", without=(*WITHOUT, "events", "docs"), profiles=["mqtt"])
    project.up()
    yield project
    project.down("--volumes")


def produced(project: Project) -> dict[str, int]:
    """Readings in each client's readings log."""
    return {client: produced_for(project, client) for client in CLIENTS}


def produced_for(project: Project, client: str) -> int:
    """Readings in the readings log of a client."""
    return int(project.run_in(client, END_OF_READINGS.format(client=client)))


def snapshot(project: Project) -> dict[str, Any]:
    """The newest snapshot of the model `fcac`, which learns every reading at once; `rooms` waits
    for full windows."""
    found: dict[str, Any] = wait_for("a snapshot", lambda: project.get("/v1/snapshot?model=fcac"))
    return found


class Names:
    """Keeps a cluster of each model named.

    A name ends with its cluster, and a model that starts again with another number of clusters may
    end the named one.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._asked: dict[str, int] = {}
        """model -> the cluster for which a name was asked and not seen yet"""

    def are_there(self) -> bool:
        """Whether a cluster of each model has a name; asks for one where none has."""
        return all(self._is_there(model) for model in MODELS)

    def _is_there(self, model: str) -> bool:
        known = (self._project.get(f"/v1/clusters?model={model}") or {"clusters": []})["clusters"]
        if any(cluster["name"] for cluster in known):
            self._asked.pop(model, None)
            return True
        if known and self._asked.get(model) not in [cluster["identity"] for cluster in known]:
            self._asked[model] = known[0]["identity"]
            identity = ("--model", model, str(self._asked[model]), "night")
            name_it = ("shoal", "name", "--config", "/etc/shoal/federation.toml", *identity)
            self._project.docker("exec", self._project.container("server"), *name_it)
        return False


@pytest.fixture(scope="module")
def names(project: Project) -> Names:
    return Names(project)


def check_that_nothing_is_lost(project: Project) -> int:
    """Stop the producers and check that clients learnt and the server absorbed every reading
    exactly once.

    Returns the number of readings. The clients have stopped when it returns.
    """
    project.compose("stop", *PRODUCERS, "sensors-1")
    readings = produced(project)
    total = sum(readings.values())
    wait_for(f"{total} readings absorbed", lambda: snapshot(project)["readings"] >= total)
    updates, readings_behind = json.loads(project.run_in("server", UPDATES_ON_THE_LOG))
    assert (snapshot(project)["readings"], snapshot(project)["updates"]) == (total, updates)
    assert readings_behind == total
    project.compose("stop", *CLIENTS)
    for client in CLIENTS:
        last = json.loads(
            project.docker("logs", "--tail", "100", project.container(client)).splitlines()[-1]
        )
        assert last["readings"] == readings[client], client
    return total


def test_every_service_is_up_and_healthy(project: Project) -> None:
    others = {"kafka", "topics", "secrets", "prometheus", "alertmanager", "mosquitto"}
    assert set(project.services) == others | {*SHOAL_SERVICES}
    for service in project.services:
        seen = project.inspect(service)
        assert ("Health" in seen["State"]) == (service not in ("topics", "secrets")), service
        assert seen["HostConfig"]["Memory"] > 0, service
        assert seen["HostConfig"]["NanoCpus"] > 0, service
    answer = "import urllib.request as r; print(r.urlopen('http://kafka:9092', timeout=5))"
    with pytest.raises(EngineError):  # a producer of a file has no network at all
        project.run_in("producer-1", answer)


def test_clusters_appear_on_the_page_and_in_prometheus(project: Project, names: Names) -> None:
    wait_for("clusters", lambda: snapshot(project)["clusters"])
    assert snapshot(project)["federation"] == "office"
    wait_for("every target", lambda: sum(project.query("up").values()) >= len(CLIENTS) + 1)
    wait_for("a named cluster of each model", names.are_there)
    wait_for(
        "clusters in Prometheus",
        lambda: project.query('shoal_clusters{model="rooms"}').get("rooms"),
    )
    learned = 'shoal_readings_total{job="shoal-client",result="learned"} > 0'
    wait_for("all clients in Prometheus", lambda: set(project.query(learned)) == set(CLIENTS))


@pytest.mark.integration
def test_every_panel_of_every_dashboard_has_data(project: Project, names: Names) -> None:
    check_every_panel(
        project.prometheus,
        TOP / "deploy/grafana/dashboards",
        timeout_s=600.0,
        meanwhile=names.are_there,
    )


def test_every_log_line_is_an_event_with_its_level_process_and_client(project: Project) -> None:
    wait_for("progress of a producer", lambda: "readings_stored" in project.logs("producer-1"))
    for service in SHOAL_SERVICES:
        lines = [json.loads(line) for line in project.log_lines(service)]
        assert lines[0]["event"] == "started", service
        assert all({"time", "level", "event", "process"} <= set(line) for line in lines), service
        assert {line.get("client") for line in lines} == {
            None if service == "server" else f"client-{service[-1]}"
        }
    events = [json.loads(line) for service in CLIENTS for line in project.log_lines(service)]
    published = {
        (line["client"], line["model"]) for line in events if line["event"] == "updates_published"
    }
    assert published >= {(client, "rooms") for client in CLIENTS}


def test_containers_have_no_privileges_and_publish_ports_on_loopback_only(project: Project) -> None:
    for service in SHOAL_SERVICES:
        seen = project.inspect(service)
        host = seen["HostConfig"]
        assert seen["Config"]["User"] == "shoal"
        assert (host["ReadonlyRootfs"], host["CapDrop"], host["Privileged"]) == (
            True,
            ["ALL"],
            False,
        )
        assert host["SecurityOpt"] == ["no-new-privileges:true"]
    for service in ("kafka", "prometheus", "alertmanager", "mosquitto", *SHOAL_SERVICES):
        for bound in project.inspect(service)["HostConfig"]["PortBindings"].values():
            assert [place["HostIp"] for place in bound] == ["127.0.0.1"], service
    rejected = (
        "import pathlib\ntry: pathlib.Path('/opt/shoal/x').touch()\nexcept OSError as no:"
        " print(no.strerror)"
    )
    assert project.run_in("server", rejected).strip() == "Read-only file system"


def test_a_container_has_no_other_clients_key_or_volume(project: Project) -> None:
    for service in SHOAL_SERVICES:
        own = set() if service == "server" else {f"client-{service[-1]}"}
        found = project.run_in(
            service, "import pathlib; print(*pathlib.Path('/').glob('var/lib/shoal/**/noise.key'))"
        )
        assert {path.split("/")[-2] for path in found.split()} == own, service
        mounted = {
            mount["Name"]
            for mount in project.inspect(service)["Mounts"]
            if mount["Type"] == "volume"
        }
        expected = (own or {"server", "page-token"}) | (
            {"mqtt-password"} if service == "sensors-1" else set()
        )
        assert mounted == {f"{project.name}_{name}" for name in expected}


def test_readings_over_mqtt_reach_their_client(project: Project) -> None:
    project.compose("stop", "producer-1")
    wait_for("the sensors' producer", lambda: "mqtt_connected" in project.logs("sensors-1"))
    before = produced_for(project, "client-1")
    for _ in range(3):
        login = 'exec mosquitto_pub -u shoal -P "$(cat /run/shoal/mqtt/password)" "$@"'
        publish = ["-q", "1", "-t", "rooms/client-1/climate", "-m", MQTT_PAYLOAD]
        project.docker("exec", project.container("mosquitto"), "sh", "-c", login, "sh", *publish)
    wait_for("three readings", lambda: produced_for(project, "client-1") == before + 3)
    project.compose("start", "producer-1")


def test_stopped_services_exit_with_zero(project: Project) -> None:
    project.compose("stop", "client-3", "producer-3", "server")
    for service in ("client-3", "producer-3", "server"):
        assert project.inspect(service)["State"]["ExitCode"] == 0, project.logs(service)
    project.compose("start", "client-3", "producer-3", "server")


# The same kills outside containers, on Kafka too: tests/house/test_sigkill.py and
# test_kafka_outages.py.
@pytest.mark.integration
def test_killed_services_lose_nothing(project: Project) -> None:
    for service in ("client-2", "server", "kafka", "producer-4", "client-2"):
        version = snapshot(project)["version"]
        project.kill(service)
        wait_for(
            "the next snapshot", lambda version=version: snapshot(project)["version"] > version
        )
    project.compose("restart", "kafka", "server", "client-5")
    assert check_that_nothing_is_lost(project) > 0
    project.compose("start", *CLIENTS, *PRODUCERS, "sensors-1")


@pytest.mark.integration
def test_after_down_and_up_services_resume_from_their_volumes(project: Project) -> None:
    before = snapshot(project)
    readings = produced(project)
    project.down()
    assert not project.compose("ps", "--quiet").split()
    project.up()
    after = snapshot(project)
    assert after["version"] >= before["version"]
    assert after["readings"] >= before["readings"]
    assert after["contract"] == before["contract"]
    [[_, position]] = after["positions"]
    [[_, was]] = before["positions"]
    assert position >= was
    wait_for(
        "new readings",
        lambda: all(produced(project)[client] > readings[client] for client in CLIENTS),
    )
    check_that_nothing_is_lost(project)


def publish_readings(machine: Machine, number: int) -> None:
    """Publish `number` readings over MQTT."""
    one = 'echo "{\\"x\\": $((n * 7 % 100)), \\"y\\": $((n * 3 % 100))}"'
    machine.run(f"for n in $(seq {number}); do {one}; done | mosquitto_pub -q 1 -t rooms/attic -l")


@pytest.mark.integration
def test_the_units_installed_as_documented_lose_nothing(engine: Engine) -> None:
    with systemd_machine(engine) as machine:
        file = noisy_rows_file("gaussians") + UNITS_SETTINGS
        machine.run(f"mkdir /etc/shoal; cat > /etc/shoal/federation.toml <<'END'\n{file}END")
        machine.run(commands_of_the_docs())
        for unit in UNITS:
            seen = machine.properties(unit, "ActiveState", "User", "PrivateUsers")
            assert seen == ["active", "shoal", "yes"], machine.run(f"journalctl -u {unit} -n 20")
        journal = "journalctl -u shoal-client@attic -o cat"
        publish_readings(machine, 300)
        wait_for("300 readings", lambda: "readings=300" in machine.run(journal))
        for unit in UNITS:
            machine.run(f"kill -9 $(systemctl show --value -p MainPID {unit})")
        for unit in UNITS:
            wait_for(
                unit,
                lambda unit=unit: (
                    machine.properties(unit, "NRestarts", "ActiveState") == ["1", "active"]
                ),
            )
        publish_readings(machine, 120)
        wait_for("120 more", lambda: "readings=420" in machine.run(journal))
        machine.run("systemctl stop shoal.target")
        for unit in UNITS:
            wait_for(
                f"the end of {unit}",
                lambda unit=unit: machine.properties(unit, "ActiveState") != ["deactivating"],
            )
            assert machine.properties(unit, "ActiveState", "Result", "ExecMainStatus") == [
                "inactive",
                "success",
                "0",
            ], unit
        assert "stopped readings=420 updates=" in machine.run(journal)
        assert machine.run("stat -c %a /var/lib/private/shoal-client/attic").strip() == "700"
        # After an error that a restart cannot repair there is no restart.
        machine.run("echo nonsense > /etc/shoal/federation.toml; ! systemctl start shoal-server")
        assert machine.properties("shoal-server", "ActiveState", "ExecMainStatus", "NRestarts") == [
            "failed",
            "2",
            "0",
        ]
