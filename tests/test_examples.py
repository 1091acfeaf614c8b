"""Examples that need a server, a broker or an installation, run against the real one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import jsonschema
import pytest
from prometheus_client import CollectorRegistry

from shoal.config.settings import LogSettings
from shoal.protocol.events import ClusterEventMessage
from shoal.protocol.topics import ensure_topics
from shoal.server_node.outputs.web import page_server
from shoal.server_node.report.status import StatusBoard
from shoal.transports import open_log
from tests.asyncapi import document
from tests.server_node.web_statuses import a_contract, a_snapshot, a_status, some_nodes

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_http_client_lists_clusters_and_predicts() -> None:
    contract = a_contract()
    web = page_server(
        StatusBoard(a_status(contract, [a_snapshot(contract, some_nodes(2, 3, 30))])),
        CollectorRegistry(),
    )
    url = f"http://127.0.0.1:{web.start()}"
    try:
        words = [sys.executable, "-W", "error", str(EXAMPLES / "http_client.py"), url]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=900, check=False)
    finally:
        web.stop()
    assert ended.stdout.count("cluster ") == 3, ended.stderr
    assert "their centres fall to [" in ended.stdout
    assert "this server reads no log" in ended.stderr, "this server has no log for events"


@pytest.fixture(scope="module")
def npm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages that readers in JavaScript need, and the schemas of AsyncAPI."""
    if shutil.which("npm") is None:
        pytest.skip("no npm on the PATH")
    folder = tmp_path_factory.mktemp("npm")
    shutil.copytree(EXAMPLES / "readers", folder, dirs_exist_ok=True)
    subprocess.run(
        ["npm", "install", "--silent", "--no-audit", "@asyncapi/specs@6.11.1"],
        cwd=folder,
        check=True,
    )
    return folder


@pytest.mark.integration
def test_readers_without_shoal_read_what_a_broker_has(
    kafka_bootstrap: str, npm_folder: Path
) -> None:
    contract = a_contract(name="readers-of-the-protocol")
    snapshot = a_snapshot(contract, some_nodes(2, 3, 30), version=7)
    event = ClusterEventMessage(
        id="fcac/7/0",
        kind="birth",
        federation=contract.federation,
        model="fcac",
        version=7,
        readings=10,
        at=1.0,
        cluster=0,
        share=0.5,
        known=1,
        active=1,
        text="cluster 0 is new",
    )
    with closing(open_log(LogSettings(address=f"kafka://{kafka_bootstrap}"))) as log:
        ensure_topics(log, contract)
        log.publish(contract.events_topic, event.encode(), b"fcac", event.headers())
        log.publish(contract.snapshots_topic, snapshot.encode(), b"fcac", snapshot.headers())
        log.flush()
    shapes = {name: list(values.shape) for name, values in snapshot.arrays.items()}
    expected = {"cluster 0 is new", f"fcac version 7 {json.dumps(shapes, sort_keys=True)}"}
    for program in ([sys.executable, "reader.py"], ["node", "reader.js"]):
        words = [*program, kafka_bootstrap, contract.federation]
        ended = subprocess.run(
            words, cwd=npm_folder, capture_output=True, text=True, timeout=900, check=False
        )
        assert set(ended.stdout.splitlines()) == expected, ended.stdout + ended.stderr


@pytest.mark.integration
def test_the_asyncapi_document_has_the_form_that_the_specification_gives(npm_folder: Path) -> None:
    schema = json.loads(
        (npm_folder / "node_modules/@asyncapi/specs/schemas/3.0.0-without-$id.json").read_text()
    )
    jsonschema.Draft7Validator(schema).validate(document())


def shown(program: str, folder: Path, *words: str) -> str:
    """What an example prints, run in a folder."""
    command = [sys.executable, str(EXAMPLES / program), *words]
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=800, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.integration
def test_a_new_state_of_the_house_raises_an_alert(tmp_path: Path, mosquitto_port: int) -> None:
    printed = shown("house_mqtt.py", tmp_path, f"127.0.0.1:{mosquitto_port}")
    assert "is new" in printed or "has parted from" in printed, printed


@pytest.mark.integration
def test_the_model_of_a_factory_knows_the_states_of_both_halls(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    assert shown("factory_regions.py", tmp_path, kafka_bootstrap).count("cluster ") >= 3


@pytest.mark.integration
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="pip install '.[docs]'")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(EXAMPLES / "states.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not committed"
    done = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    pictures = [
        out
        for cell in done.cells
        for out in cell.get("outputs", [])
        if "image/png" in out.get("data", {})
    ]
    assert len(pictures) >= 2
