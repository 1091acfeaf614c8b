"""Processes of shoal, each forked from one Python that has loaded what most of them share.

A process takes half a second to load NumPy, pydantic, the contract and the nodes, and a server
another third for its page; a fork has them. What a command imports besides, it imports in its own
process, as when a user starts it.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from shoal.cli.main import THREADS

SETTINGS = ("shoal.config.settings",)
"""all that can be loaded where no extra is installed"""
NODES = (
    *SETTINGS,
    "shoal.client_nodes.client_command",
    "shoal.server_node.server_command",
    "shoal.transports.kafka.log",
    # What a process imports itself at its start, as nearly all of them do.
    "shoal.client_nodes.labelling.labeller",
    "shoal.producers.producer_command",
    "shoal.producers.files.source",
    "shoal.producers.files.csv_table",
    "shoal.producers.mqtt.source",
    "shoal.producers.kafka.source",
    "shoal.producers.synthetic",
    "shoal.server_node.outputs.web.app",
    "shoal.server_node.outputs.web.server",
    "shoal.algorithms.density_tree",
    "shoal.algorithms.cluster_tree",
    "shoal.algorithms.fcac",
)
PROGRAM = """
import gc, importlib, json, os, select, signal, sys, time
from shoal.cli.main import main
for module in sys.argv[1:]:
    importlib.import_module(module)

__package__ = "shoal"  # the usage of a command begins as with `python -m shoal`
gc.freeze()
woken, waking = os.pipe()
os.set_blocking(waking, False)
signal.set_wakeup_fd(waking)
signal.signal(signal.SIGCHLD, lambda number, frame: None)
children = set()
while True:
    ready, _, _ = select.select([sys.stdin, woken], [], [])
    if sys.stdin in ready:
        line = sys.stdin.readline()
        if not line:
            break
        asked = json.loads(line)
        if (child := os.fork()) == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            os.close(woken)
            os.close(waking)
            os.chdir(asked["cwd"])
            os.environ.clear()
            os.environ.update(asked["environment"])
            time.tzset()
            for number, file in enumerate((os.devnull, *asked["files"])):
                opened = os.open(file, os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY)
                os.dup2(opened, number)
                os.close(opened)
            if asked["program"] is not None:
                sys.argv[:] = ["-c", *asked["words"]]
                exec(compile(asked["program"], "<string>", "exec"), {"__name__": "__main__"})
                sys.exit()
            program = importlib.import_module("shoal").__path__[0] + "/__main__.py"
            sys.argv[:] = [program, *asked["words"]]
            main()
            sys.exit("main() returned")
        children.add(child)
        print("started", child, flush=True)
    if woken in ready:
        os.read(woken, 4096)
        for child in list(children):
            if (ended := os.waitpid(child, os.WNOHANG))[0]:
                children.remove(child)
                print("ended", child, os.waitstatus_to_exitcode(ended[1]), flush=True)
"""
"""reads a line of JSON for each process to start; answers with its id, and later that it has ended
and how"""


class ForkedProcess:
    """One process, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, parent: ForkedPython, pid: int) -> None:
        self._parent = parent
        self.pid = pid

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._parent.code_of(self.pid, 0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended. Raises `subprocess.TimeoutExpired`."""
        code = self._parent.code_of(self.pid, timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Does nothing once the process has ended: another one may have its id."""
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkedPython:
    """The Python from which processes are forked."""

    def __init__(
        self, modules: Sequence[str] = SETTINGS, python: Path = Path(sys.executable)
    ) -> None:
        self._python = subprocess.Popen(
            [python, "-c", PROGRAM, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**THREADS, **os.environ},
            bufsize=0,
        )
        self._unread = b""
        self._codes: dict[int, int] = {}
        """process -> exit code, of those that have ended"""

    def close(self) -> None:
        """Start nothing more. Processes that still run go on."""
        self._python.communicate()

    def start(
        self,
        words: Sequence[str],
        out: Path,
        errors: Path,
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        program: str | None = None,
    ) -> ForkedProcess:
        """`shoal WORDS`, or the text of a Python program with these arguments; it appends to the
        files `out` and `errors`."""
        asked = {
            "program": program,
            "words": list(words),
            "cwd": str(cwd),
            "environment": dict(os.environ if environment is None else environment),
            "files": [str(out.absolute()), str(errors.absolute())],
        }
        assert self._python.stdin is not None
        self._python.stdin.write(json.dumps(asked).encode() + b"\n")
        while True:
            what, *numbers = self._line(None)
            if what == "started":
                # Ids are given again: what is known of an earlier process with this one is not its
                # code.
                self._codes.pop(int(numbers[0]), None)
                return ForkedProcess(self, int(numbers[0]))
            self._note(numbers)

    def code_of(self, pid: int, timeout: float | None) -> int | None:
        """The exit code of a process; None where it has not ended after `timeout` seconds, None:
        wait."""
        until = None if timeout is None else time.monotonic() + timeout
        while pid not in self._codes:
            line = self._line(None if until is None else max(0.0, until - time.monotonic()))
            if not line:
                return None
            self._note(line[1:])
        return self._codes[pid]

    def _note(self, ended: Sequence[str]) -> None:
        self._codes[int(ended[0])] = int(ended[1])

    def _line(self, timeout: float | None) -> list[str]:
        """The words of the next answer; none where there is none after `timeout` seconds."""
        assert self._python.stdout is not None
        while b"\n" not in self._unread:
            if not select.select([self._python.stdout], [], [], timeout)[0]:
                return []
            found = os.read(self._python.stdout.fileno(), 4096)
            assert found, "the Python from which processes are forked has ended"
            self._unread += found
        line, self._unread = self._unread.split(b"\n", 1)
        return line.decode().split()

    def run(
        self,
        *words: object,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        program: str | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """`shoal WORDS`, or a program with these arguments: its exit code, and what it wrote."""
        command = [str(word) for word in words]
        with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as errors:
            files = Path(out.name), Path(errors.name)
            code = self.start(command, *files, cwd or Path.cwd(), environment, program).wait()
            return subprocess.CompletedProcess(
                command, code, *(file.read_bytes() for file in files)
            )

    def run_text(
        self,
        *words: object,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        program: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """`shoal WORDS`, or a program with these arguments, with what it wrote as text."""
        ended = self.run(*words, cwd=cwd, environment=environment, program=program)
        return subprocess.CompletedProcess(
            ended.args, ended.returncode, ended.stdout.decode(), ended.stderr.decode()
        )


@cache
def nodes() -> ForkedPython:
    """The one for the nodes of all federations of this process."""
    python = ForkedPython(NODES)
    atexit.register(python.close)
    return python
