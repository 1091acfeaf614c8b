"""The broker that `make kafka-start` runs, by the commands that people give."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.kafka import broker
from deploy.kafka.broker import BrokerError, cluster_of, pid_of, what_is_missing
from tests.kafka_broker import free_ports

COMMAND = Path(__file__).parents[2] / "deploy" / "kafka" / "broker.py"


def broker_py(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(COMMAND), *words], capture_output=True, text=True, check=False
    )


def test_a_broker_that_never_ran_is_stopped_already(tmp_path: Path) -> None:
    assert broker_py("stop", "--dir", str(tmp_path)).returncode == 0


def test_a_process_id_that_another_process_has_now_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        (tmp_path / "pid").write_text(str(bystander.pid), encoding="utf-8")
        assert pid_of(tmp_path) is None
        assert broker_py("stop", "--dir", str(tmp_path)).returncode == 0
        assert bystander.poll() is None
        bystander.communicate(b"\n")
        assert bystander.returncode == 0


def test_a_broker_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignores = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True);"
        " signal.pause()"
    )
    command = [sys.executable, "-c", ignores, str(tmp_path.resolve() / "server.properties")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as stuck:
        assert stuck.stdout is not None
        stuck.stdout.readline()
        (tmp_path / "pid").write_text(str(stuck.pid), encoding="utf-8")
        monkeypatch.setattr(broker, "STOP_S", 0.1)
        # one that waits for its child to be reaped, as init does for a service
        with ThreadPoolExecutor(1) as pool:
            pool.submit(stuck.wait)
            broker.stop(tmp_path)
    assert stuck.returncode == -signal.SIGKILL


def test_a_port_in_use_is_one_line_that_names_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BrokerError, match=f"^port {port} cannot be used .*--port"):
            broker.start(cluster_of(tmp_path, port))
    assert not any(tmp_path.iterdir())


def test_without_java_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "apt install" in (what_is_missing() or "")


@pytest.mark.parametrize("nodes", [1, 3])
def test_it_starts_once_and_stops(nodes: int, can_run_kafka: None, tmp_path: Path) -> None:
    homes = [node.folder for node in cluster_of(tmp_path, 0, nodes)]
    words = ("--dir", str(tmp_path), "--port", str(free_ports(2 * nodes)), "--nodes", str(nodes))
    started = broker_py("start", *words)
    try:
        assert started.returncode == 0, started.stderr
        assert all(str(pid_of(home)) in started.stdout for home in homes)
        again = broker_py("start", *words)
        assert again.returncode == 1
        assert "already" in again.stderr
    finally:
        assert broker_py("stop", *words[:2]).returncode == 0
    assert [pid_of(home) for home in homes] == [None] * nodes


def test_an_archive_of_classes_that_was_cut_off_is_not_kept(
    can_run_kafka: None, tmp_path: Path
) -> None:
    jars = broker.jars()
    whole = broker._archive(jars)
    if not whole.exists():  # jars of before there was one
        broker._archive_classes(jars, tmp_path)
    assert broker._is_read(whole, jars, tmp_path)
    cut = tmp_path / "cut.jsa"
    cut.write_bytes(whole.read_bytes()[:-4096])
    assert not broker._is_read(cut, jars, tmp_path)
