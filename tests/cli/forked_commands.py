"""Commands of shoal, each in a process forked from one Python that has loaded what most of them share.

A command takes half a second to load NumPy, pydantic and the contract; a fork has them. What a command imports besides,
it imports in its own process, as when a user starts it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

PROGRAM = """
import json, os, sys
import shoal.config.settings
from shoal.cli.main import main

__package__ = "shoal"  # the usage of a command begins as with `python -m shoal`
for line in sys.stdin:
    asked = json.loads(line)
    if (child := os.fork()) == 0:
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        for number, file in enumerate((os.devnull, *asked["files"])):
            os.dup2(os.open(file, os.O_WRONLY if number else os.O_RDONLY), number)
        sys.argv[:] = [shoal.__path__[0] + "/__main__.py", *asked["words"]]
        main()
        sys.exit("main() returned")
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class ForkedCommands:
    """Runs one command after the other, each in a process of its own."""

    def __init__(self, folder: Path, python: Path = Path(sys.executable)) -> None:
        self._files = [folder / "out", folder / "err"]
        self._parent = subprocess.Popen(
            [python, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._parent.communicate()

    def run(
        self, *words: object, cwd: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """`shoal WORDS`: its exit code, and what it wrote."""
        for file in self._files:
            file.write_bytes(b"")
        command = [str(word) for word in words]
        asked = {
            "words": command,
            "cwd": str(cwd or Path.cwd()),
            "environment": dict(os.environ if environment is None else environment),
            "files": [str(file) for file in self._files],
        }
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(asked) + "\n")
        code = int(self._parent.stdout.readline())
        out, err = (file.read_bytes() for file in self._files)
        return subprocess.CompletedProcess(command, code, out, err)

    def run_text(
        self, *words: object, cwd: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`shoal WORDS`, with what it wrote as text."""
        ended = self.run(*words, cwd=cwd, environment=environment)
        return subprocess.CompletedProcess(ended.args, ended.returncode, ended.stdout.decode(), ended.stderr.decode())
