"""Secrets: each is in a file of its own and nowhere else, whatever processes print, log, serve,
store or fail with."""

from __future__ import annotations

import logging
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from prometheus_client import generate_latest

from shoal.cli.main import shoal
from shoal.cli.settings_table import declared_sections
from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import load_config
from shoal.errors import LogUnavailable
from shoal.protocol.events import ClusterEventMessage
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.outputs.sinks.base import Sinks
from shoal.server_node.outputs.web import create_app, predict
from shoal.server_node.outputs.web.access import make_access
from shoal.server_node.report.status import StatusBoard
from tests.house.small_federation import clock, create_federation
from tests.server_node.web_client import WebClient

ROOT = Path(__file__).parent.parent.parent
SECRET = re.compile(r"(^|_)(token|secret|password|key|keys)(_|$)")
MORE = """
[events.webhook]
url = "http://127.0.0.1:{port}/T0/{token}"
token_file = "webhook.token"
[events.mqtt]
host = "127.0.0.1"
port = {port}
user = "shoal"
secret_file = "mqtt.secret"
"""
EVENT = ClusterEventMessage("m/1/0", "birth", "plant", "m", 1, 100, 1e9, cluster=1, share=0.5)
URL_TOKEN = "a5c0d2e7b9f14c66ad21e8f0937b54ce"
"""as the URLs of many webhooks have one"""
SETTINGS = {
    "SHOAL_SERVER_TOKEN_FILE": "page.token",
    "SHOAL_SERVER_SIGNING_KEY_FILE": "server.key",
    "SHOAL_LOG_SERVER_KEYS": "server.pub",
    "SHOAL_SERVER_OPERATOR_KEY_FILE": "operator.key",
    "SHOAL_SERVER_OPERATOR_KEYS": "operator.pub",
    "SHOAL_SERVER_CLIENT_KEYS": "client_keys",
    "SHOAL_CLIENT_SIGNING_KEY_FILE": "clients/{client}.key",
}


def commands(group: click.Command) -> Iterator[click.Command]:
    yield group
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            assert found is not None
            yield from commands(found)


def test_no_option_and_no_setting_takes_a_secret_itself() -> None:
    """The list of processes shows options, and /proc the environment: both name files only."""
    options = [
        parameter
        for command in commands(shoal)
        for parameter in command.params
        if SECRET.search(parameter.name or "")
    ]
    taken = [
        name.name
        for name in options
        if not isinstance(name.type, click.Path) and not getattr(name, "is_flag", False)
    ]
    assert taken == []
    settings = [
        (section, name, field.annotation)
        for section, declared in declared_sections()
        for name, field in declared.model_fields.items()
        if SECRET.search(name)
    ]
    assert len(settings) > 10
    assert [name for name in settings if "Path" not in str(name[2])] == []


def test_no_process_leaves_a_dump_of_its_memory() -> None:
    program = (
        "from shoal.cli.main import main; import atexit, resource, sys\n"
        "sys.argv = ['shoal', 'check', '--example']\n"
        "atexit.register(lambda: print(resource.getrlimit(resource.RLIMIT_CORE)[0]))\n"
        "main()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=_allow_dumps,
        timeout=900,
    )
    assert run.stdout.splitlines()[-1] == "0", run.stderr


def _allow_dumps() -> None:
    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))


def test_compose_passes_no_secret_as_an_argument_or_a_variable() -> None:
    """Arguments are in the list of processes, and both are in `docker inspect`."""
    lines = [
        line.strip()
        for line in (ROOT / "docker-compose.yml").read_text(encoding="utf-8").splitlines()
    ]
    lines += (ROOT / "deploy" / "mosquitto" / "start.sh").read_text(encoding="utf-8").splitlines()
    reads = [line for line in lines if "$(cat" in line and not line.startswith("#")]
    # A shell's own printf is no process.
    assert [
        line for line in reads if not re.search(r"(^|&& )printf [^;&|]*\$\(cat [^)]*\)", line)
    ] == []
    variables = [
        found
        for line in lines
        for found in re.findall(r"\b([A-Z_]*(?:PASSWORD|TOKEN|SECRET|KEY)[A-Z_]*): *(\S*)", line)
    ]
    assert variables
    assert [
        variable for variable in variables if not variable[0].endswith(("_FILE", "__FILE"))
    ] == []


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A federation file with every kind of secret that it can name."""
    file = create_federation(tmp_path, readings=150)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        more = MORE.format(port=closed.getsockname()[1], token=URL_TOKEN)
    file.write_text(file.read_text(encoding="utf-8") + more, encoding="utf-8")
    for name, place in SETTINGS.items():
        monkeypatch.setenv(name, str(tmp_path / place))
    run = CliRunner()
    for name in ("webhook.token", "mqtt.secret", "page.token"):
        assert run.invoke(shoal, ["keys", "token", str(tmp_path / name)]).exit_code == 0
    for words in (["server"], ["operator"], ["new", "--name", "attic"]):
        made = run.invoke(shoal, ["keys", *words, "--config", str(file)])
        assert made.exit_code == 0, made.output
    return file


def needles(folder: Path) -> dict[str, bytes]:
    """What must be found nowhere else: the text of each secret, and the bytes that it stands
    for."""
    found: dict[str, bytes] = {}
    secret_files = [
        path for path in folder.rglob("*") if path.suffix in {".token", ".secret", ".key"}
    ]
    for path in secret_files:
        content = path.read_bytes()
        # beside "private" and the like
        words = [word for word in content.split() if len(word) >= 32]
        lines = [content] if path.name == "noise.key" else words
        assert lines, path
        for number, line in enumerate(lines):
            found[f"{path.name} {number}"] = line
            if re.fullmatch(rb"[0-9a-f]{64}", line):
                found[f"{path.name} {number} as bytes"] = bytes.fromhex(line.decode())
    assert {path.name for path in secret_files} > {
        "webhook.token",
        "mqtt.secret",
        "page.token",
        "server.key",
    }
    assert any(path.name == "noise.key" for path in secret_files)
    return found


def test_no_secret_is_printed_logged_served_or_stored(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    config = load_config(file)
    run = CliRunner()
    shown = list[str]()
    with resumed(open_client(config, "attic", clock=clock)) as node:
        while node.step():
            pass
    with resumed(open_server(config, clock=clock)) as server:
        while server.step():
            pass
        shown.append(repr(server.status()))
        shown.append(generate_latest(server.metrics.registry).decode())
        access = make_access("127.0.0.1", [], config.server.token_file)
        web = WebClient(
            create_app(
                StatusBoard(server.status()), server.metrics.registry, predict, access=access
            )
        )
        headers = {
            "authorization": (
                f"Bearer {(file.parent / 'page.token').read_text(encoding='ascii').strip()}"
            )
        }
        answers = [
            web.get(path, headers=headers)
            for path in (
                "/",
                "/v1/status",
                "/metrics",
                "/v1/snapshot",
                "/v1/privacy",
                "/v1/clusters",
            )
        ]
        assert [answer.status_code for answer in answers].count(200) >= 5
        shown += [answer.text for answer in answers]
    for words in (
        ["check", str(file), "--all"],
        ["check", str(file), "--log"],
        ["events", "list", "--config", str(file)],
    ):
        shown.append(run.invoke(shoal, words).output)
    with Sinks(config.sinks, config.contract.federation) as sinks:
        # nobody listens there: what the failure says is logged and printed
        for _, sink in sinks.items():
            with pytest.raises(LogUnavailable) as failed:
                sink.deliver({"alert": "new", "event": asdict(EVENT)}, "birth", "clusters")
            shown.append(str(failed.value))
    shown += [
        repr(config),
        str(config.sinks),
        caplog.text,
        *(str(record.__dict__) for record in caplog.records),
    ]
    text = "\n".join(shown).encode()
    stored = {
        path: path.read_bytes()
        for path in file.parent.rglob("*")
        if path.is_file() and path.suffix not in {".token", ".secret", ".key"}
    }
    assert len(stored) > 5
    assert URL_TOKEN not in "\n".join(shown)
    for name, needle in needles(file.parent).items():
        assert needle not in text, name
        assert [path.name for path, content in stored.items() if needle in content] == [], name
