"""What `import shoal` offers: every public name, and nothing loaded before it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import shoal


def printed_by(program: str) -> list[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()


def test_importing_shoal_loads_no_other_module_of_it_and_no_numpy() -> None:
    program = (
        "import sys; before = set(sys.modules); import shoal; print(*sorted(set(sys.modules) -"
        " before))"
    )
    loaded = [
        name for name in printed_by(program) if name.split(".")[0] not in sys.stdlib_module_names
    ]
    assert loaded == ["shoal"]


def test_every_public_name_is_there_in_a_fresh_process() -> None:
    program = (
        "import shoal; from shoal import *; print(*(name for name in shoal.__all__ if name in"
        " globals()))"
    )
    assert printed_by(program) == shoal.__all__
    assert set(dir(shoal)) == set(shoal.__all__)


WITHOUT_POSIX = """
import os, signal, socket, sys, tempfile, time
for module in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[module] = None
for owner, names in {
    os: "fork register_at_fork sched_getaffinity sysconf getuid geteuid getpgid killpg fchmod"
        " mkfifo statvfs",
    time: "clock_gettime CLOCK_BOOTTIME CLOCK_MONOTONIC",
    signal: "SIGKILL SIGHUP SIGUSR1 SIGALRM",
    socket: "AF_UNIX",
}.items():
    for name in names.split():
        vars(owner).pop(name, None)
from contextlib import closing
import numpy as np, shoal
from shoal import *
import shoal.client_nodes.client_command, shoal.onebox.demo, shoal.producers
import shoal.server_node.server_command, shoal.server_node.outputs.web.server
from shoal.transports import open_log
from shoal.transports.base import TopicSettings, beginning
rows = np.random.default_rng(0).normal(size=(200, 2)) * .02
rows += np.repeat([[.2, .2], [.8, .8]], 100, axis=0)
for estimator in (FCAC(), ClusterTree(), FederatedKMeans(2)):
    print(len(estimator.fit_predict(rows)))
with tempfile.TemporaryDirectory() as folder, closing(open_log(f"sqlite:{folder}/log.db")) as log:
    log.ensure("t", TopicSettings())
    log.publish("t", b"value", b"key", [])
    log.flush()
    print(log.read("t", beginning(log, "t"))[0][0].value.decode())
print(shoal.server_node.outputs.web.server.bounded_by_descriptors(7))
"""


def test_estimators_and_the_embedded_log_work_without_what_windows_lacks() -> None:
    assert printed_by(WITHOUT_POSIX) == ["200", "200", "200", "value", "7"]


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'shoal' has no attribute 'FCAK'"):
        _ = shoal.FCAK  # type: ignore[attr-defined]  # that is the point


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(str(shoal.__file__)).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported | {"__version__"} == set(shoal.__all__)
