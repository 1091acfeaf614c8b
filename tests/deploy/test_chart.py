"""The Helm chart renders, its objects have the fields that Kubernetes knows, and its rules hold in
what it renders."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import shoal
from shoal.client_nodes.host_metrics import HostMetrics
from tests.conftest import without

# To build helm takes minutes, on a busy machine many.
pytestmark = pytest.mark.timeout(1800)
ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "deploy" / "kubernetes"
HELM = "helm.sh/helm/v3/cmd/helm@v3.16.4"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "shoal"
FEDERATION = '[federation]\nname = "office"\n'
VALUES: dict[str, Any] = {
    "federation": FEDERATION,
    "log": {
        "address": "kafka://kafka.example:9094",
        "user": "u",
        "passwordSecret": "kafka",
        "caSecret": "kafka-ca",
    },
    "server": {"allowedHosts": ["shoal.example"], "signingKeySecret": "signing"},
    "clients": [
        {
            "name": "hall",
            "signingKeySecret": "hall-key",
            "producer": {"arguments": ["--mqtt", "--name=hall"]},
        },
        {"name": "roof", "storage": "1Gi"},
    ],
    "clientDefaults": {"metricsOnSite": True},
    "host": {
        "enabled": True,
        "address": "kafka://site.example:9092",
        "signingKeysSecret": "host-keys",
        "replicas": 3,
    },
    "helper": {"enabled": True},
    "events": {"enabled": True, "rules": "[[rule]]\n"},
    "upstream": {"federation": '[federation]\nname = "world"\n'},
    "networkPolicy": {
        "pageFrom": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}],
        "metricsFrom": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
        "egress": [{"ports": [{"protocol": "TCP", "port": 1883}]}],
    },
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {
        "enabled": True,
        "docs": "http://docs.example",
        "labels": {"release": "prometheus"},
    },
    "dashboards": {"enabled": True},
}
OF_THE_OPERATOR = {"ServiceMonitor", "PrometheusRule"}
KEDA = "github.com/kedacore/keda/v2@v2.16.1"
SCALED_OBJECTS = "config/crd/bases/keda.sh_scaledobjects.yaml"
SCALING: dict[str, Any] = {
    **VALUES["host"],
    "noiseKeySecret": "site-key",
    "autoscaling": {
        "enabled": True,
        "group": "plant-hosts",
        "topic": "readings",
        "maxReplicas": 6,
        "authentication": "site-broker",
        "prometheus": "http://prometheus.example:9090",
    },
}


def test_the_chart_has_the_version_of_shoal_and_a_schema_for_every_value() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (shoal.__version__, shoal.__version__)
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert set(values) == set(schema["properties"]) - {"global"}
    for name, part in values.items():
        if isinstance(part, dict) and "properties" in schema["properties"][name]:
            assert set(part) == set(schema["properties"][name]["properties"]), name


@pytest.fixture(scope="module")
def helm() -> str:
    """The program, built once from its source."""
    if found := shutil.which("helm"):
        return found
    if not (CACHE / "helm").exists():
        go = shutil.which("go") or "/usr/local/go/bin/go"
        if not Path(go).exists():
            without("helm", "neither it nor Go, which builds it, is on the PATH")
        subprocess.run(
            [go, "install", HELM], env=os.environ | {"GOBIN": str(CACHE)}, check=True, timeout=1800
        )
    return str(CACHE / "helm")


def rendered(helm: str, folder: Path, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    file = folder / "values.json"
    file.write_text(json.dumps(values), encoding="utf-8")
    words = [helm, "template", "office", str(CHART), "--values", str(file), "--namespace", "plant"]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def scaling(**changed: Any) -> dict[str, Any]:
    """Values of hosts that KEDA scales, with other ones of `autoscaling`."""
    return SCALING | {"autoscaling": SCALING["autoscaling"] | changed}


def objects(text: str) -> list[dict[str, Any]]:
    return [resource for resource in yaml.safe_load_all(text) if resource]


@pytest.mark.integration
def test_the_chart_is_clean_and_refuses_values_that_cannot_be(helm: str, tmp_path: Path) -> None:
    (tmp_path / "values.json").write_text(json.dumps(VALUES), encoding="utf-8")
    lint = [helm, "lint", "--strict", str(CHART), "--values", str(tmp_path / "values.json")]
    assert subprocess.run(lint, capture_output=True, text=True, check=False).returncode == 0
    for wrong, word in (
        ({}, "federation"),
        ({"federation": "no file"}, "federation"),
        (VALUES | {"clients": [{"name": "Hall 1"}]}, "clients.0.name"),
        (VALUES | {"helper": {"keySecret": "helper"}}, "keySecret"),
        (VALUES | {"log": {"user": "me"}}, "log.passwordSecret"),
        (VALUES | {"host": {"enabled": True, "replicas": 0}}, "replicas"),
        (VALUES | {"host": {"enabled": True, "replicas": 2, "producer": ["--kafka"]}}, "replicas"),
        (VALUES | {"host": {**SCALING, "noiseKeySecret": ""}}, "host.noiseKeySecret"),
        (VALUES | {"host": {**SCALING, "address": ""}}, "host.address"),
        (VALUES | {"host": scaling(group="")}, "autoscaling.group"),
        (VALUES | {"host": scaling(topic="")}, "autoscaling.topic"),
        (VALUES | {"host": scaling(maxReplicas=0)}, "autoscaling.maxReplicas"),
        (VALUES | {"host": scaling(lag=0)}, "autoscaling.lag"),
        (VALUES | {"sever": {}}, "sever"),
    ):
        ended = rendered(helm, tmp_path, wrong)
        assert (ended.returncode != 0, word in ended.stderr) == (True, True), ended.stderr


@pytest.mark.integration
def test_kubernetes_knows_every_field_of_what_the_chart_renders(helm: str, tmp_path: Path) -> None:
    """Strictly decoded into the types of the Kubernetes API itself, in Go."""
    program = tmp_path / "check"
    shutil.copytree(Path(__file__).parent / "chart_check", program)
    go = shutil.which("go") or "/usr/local/go/bin/go"
    for values in (VALUES, {"federation": FEDERATION}):
        text = rendered(helm, tmp_path, values).stdout
        words = [go, "run", "-mod=mod", "."]
        ended = subprocess.run(
            words,
            input=text,
            cwd=program,
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
        )
        assert ended.returncode == 0, ended.stderr
        checked = int(re.findall(r"(\d+) objects", ended.stdout)[0])
        assert checked == sum(resource["kind"] not in OF_THE_OPERATOR for resource in objects(text))
    broken = text.replace("serviceName:", "serviceNme:")
    ended = subprocess.run(
        words, input=broken, cwd=program, capture_output=True, text=True, check=False, timeout=600
    )
    assert "serviceNme" in ended.stderr


@pytest.mark.integration
def test_a_token_endpoint_is_named_to_every_process_that_logs_in(helm: str, tmp_path: Path) -> None:
    url = "https://idp.example/token"
    log = {**VALUES["log"], "sasl": "oauthbearer", "oauthUrl": url, "oauthScope": "kafka"}
    found = objects(rendered(helm, tmp_path, VALUES | {"log": log}).stdout)
    told = []
    for resource in found:
        if resource["kind"] != "StatefulSet":
            continue
        for container in resource["spec"]["template"]["spec"]["containers"]:
            variables = {
                variable["name"]: variable.get("value") for variable in container.get("env", ())
            }
            if "SHOAL_LOG_USER" in variables:
                told.append((variables["SHOAL_LOG_OAUTH_URL"], variables["SHOAL_LOG_OAUTH_SCOPE"]))
    # Server, two clients, host, helper, events.
    assert told == [(url, "kafka")] * 6
    without_endpoint = rendered(helm, tmp_path, VALUES).stdout
    assert "OAUTH" not in without_endpoint


@pytest.mark.integration
def test_hosts_of_a_group_have_one_noise_key_and_no_numbers(helm: str, tmp_path: Path) -> None:
    host = {**VALUES["host"], "noiseKeySecret": "site-key"}
    found = objects(rendered(helm, tmp_path, VALUES | {"host": host}).stdout)
    (stateful,) = (
        resource
        for resource in found
        if resource["kind"] == "StatefulSet" and resource["metadata"]["name"] == "office-host"
    )
    spec = stateful["spec"]["template"]["spec"]
    names = {variable["name"] for variable in spec["containers"][0]["env"]}
    assert {"SHOAL_HOST_NOISE_KEY_FILE", "SHOAL_HOST_MEMBER", "SHOAL_HOST_SESSION_S"} <= names
    assert not names & {"SHOAL_HOST_HOSTS", "SHOAL_HOST_NUMBER"}
    assert "site-key" in str(spec["volumes"])


@pytest.fixture(scope="module")
def scaled_object_schema() -> dict[str, Any]:
    """The schema of KEDA's ScaledObject, by which names that it does not have are errors."""
    go = shutil.which("go") or "/usr/local/go/bin/go"
    if not Path(go).exists():
        without("KEDA", "Go, which fetches it, is not on the PATH")
    words = [go, "mod", "download", "-json", KEDA]
    fetched = subprocess.run(words, capture_output=True, text=True, check=True, timeout=600)
    text = (Path(json.loads(fetched.stdout)["Dir"]) / SCALED_OBJECTS).read_text(encoding="utf-8")
    (version,) = yaml.safe_load(text)["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    close_schema(schema)
    return schema


def close_schema(schema: Any) -> None:
    """Let objects have the named properties alone: Kubernetes drops others without a word."""
    if isinstance(schema, list):
        for part in schema:
            close_schema(part)
    if not isinstance(schema, dict):
        return
    for part in schema.values():
        close_schema(part)
    # Metadata has no properties in the schema, as Kubernetes itself knows them.
    if "properties" in schema and schema.get("type") == "object":
        schema["additionalProperties"] = False


@pytest.mark.integration
def test_keda_knows_every_field_of_the_autoscaler_which_is_off_at_first(
    helm: str, scaled_object_schema: dict[str, Any], tmp_path: Path
) -> None:
    assert "ScaledObject" not in rendered(helm, tmp_path, VALUES).stdout
    found = objects(rendered(helm, tmp_path, VALUES | {"host": SCALING}).stdout)
    (scaled,) = (resource for resource in found if resource["kind"] == "ScaledObject")
    jsonschema.validate(scaled, scaled_object_schema)
    (host,) = (
        resource
        for resource in found
        if resource["kind"] == "StatefulSet" and resource["metadata"]["name"] == "office-host"
    )
    assert scaled["spec"]["scaleTargetRef"]["name"] == "office-host"
    # An upgrade must not take back what the autoscaler has set.
    assert "replicas" not in host["spec"]
    assert "topologySpreadConstraints" in host["spec"]["template"]["spec"]
    kafka, prometheus = scaled["spec"]["triggers"]
    assert kafka["metadata"] == {
        "bootstrapServers": "site.example:9092",
        "consumerGroup": "plant-hosts",
        "topic": "readings",
        "lagThreshold": "50000",
        "offsetResetPolicy": "earliest",
    }
    assert kafka["authenticationRef"] == {"name": "site-broker"}
    (name,) = re.findall(r"sum\((\w+)\{", prometheus["metadata"]["query"])
    assert name in {family.name for family in HostMetrics().registry.collect()}
    misspelt = json.loads(json.dumps(scaled).replace("maxReplicaCount", "maxReplicas"))
    with pytest.raises(jsonschema.ValidationError, match="maxReplicas"):
        jsonschema.validate(misspelt, scaled_object_schema)


@pytest.mark.integration
def test_pods_have_no_rights_volumes_of_their_own_and_limits(helm: str, tmp_path: Path) -> None:
    found = objects(rendered(helm, tmp_path, VALUES).stdout)
    kinds = {
        kind: [resource for resource in found if resource["kind"] == kind]
        for kind in {resource["kind"] for resource in found}
    }
    assert {
        "StatefulSet",
        "Service",
        "ConfigMap",
        "Secret",
        "PodDisruptionBudget",
        "NetworkPolicy",
    } <= set(kinds)
    names = {stateful["metadata"]["name"] for stateful in kinds["StatefulSet"]}
    assert names == {
        f"office-{name}"
        for name in ("server", "client-hall", "client-roof", "host", "helper", "events")
    }
    services = {service["metadata"]["name"] for service in kinds["Service"]}
    for stateful in kinds["StatefulSet"]:
        spec = stateful["spec"]["template"]["spec"]
        is_host = stateful["metadata"]["name"] == "office-host"
        assert stateful["spec"]["replicas"] == (3 if is_host else 1)
        # Without a number of its own each of three would read all partitions.
        assert ("pod-index" in str(spec)) == is_host
        assert ("topologySpreadConstraints" in spec) == is_host
        assert stateful["spec"]["serviceName"] in services
        assert spec["securityContext"]["runAsNonRoot"]
        assert not spec["automountServiceAccountToken"]
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"], container["name"]
            assert "livenessProbe" in container or container["name"] in (
                "producer",
                "events",
                "key",
                "topics",
            )
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            there = {volume["name"] for volume in spec["volumes"]} | {"data"}
            assert mounted <= there
    (server,) = (
        stateful
        for stateful in kinds["StatefulSet"]
        if stateful["metadata"]["name"] == "office-server"
    )
    env = {
        variable["name"]: variable.get("value")
        for variable in server["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert env["SHOAL_SERVER_ALLOWED_HOSTS"].split(",")[0] == "$(POD_IP)"
    assert "shoal.example" in env["SHOAL_SERVER_ALLOWED_HOSTS"]


@pytest.mark.integration
def test_metrics_of_clients_are_reached_on_their_own_site_only(helm: str, tmp_path: Path) -> None:
    away = VALUES | {"clientDefaults": {"metricsOnSite": False}}
    text = rendered(helm, tmp_path, away).stdout
    assert "SHOAL_CLIENT_METRICS_HOST" not in text
    monitors = [
        resource["metadata"]["name"]
        for resource in objects(text)
        if resource["kind"] == "ServiceMonitor"
    ]
    assert monitors == ["office-server"]


@pytest.mark.integration
def test_alerts_and_dashboards_are_those_that_every_other_way_to_run_it_has(
    helm: str, tmp_path: Path
) -> None:
    found = {
        resource["metadata"]["name"]: resource
        for resource in objects(rendered(helm, tmp_path, VALUES).stdout)
    }
    shipped = (ROOT / "deploy" / "prometheus" / "rules.yml").read_text(encoding="utf-8")
    linked = shipped.replace("{{ $externalLabels.docs }}", "http://docs.example")
    assert linked.count("http://docs.example/how-to/alerts.html#") == linked.count("- alert:")
    assert found["office-alerts"]["spec"] == yaml.safe_load(linked)
    dashboards = (ROOT / "deploy" / "grafana" / "dashboards").glob("*.json")
    assert found["office-dashboards"]["data"] == {
        dashboard.name: dashboard.read_text(encoding="utf-8") for dashboard in dashboards
    }
    assert found["office-dashboards"]["metadata"]["labels"]["grafana_dashboard"] == "1"
