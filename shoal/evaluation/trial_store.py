"""A file that keeps the measures of every trial that is done, so that a run that was stopped is resumed.

One line of JSON for each trial, appended when it is done; a line that was cut while it was written is ignored. The
file knows nothing of data and code: begin another one when either has changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from shoal.errors import SettingsError
from shoal.evaluation.experiment import Setting

Measures = dict[str, float]
FORMAT: Final = 1


class TrialStore:
    """The trials in one file, and in memory alone if there is no file. Raises `SettingsError`."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._done: dict[str, Measures] = {}
        if path is None:
            return
        if not path.parent.is_dir():
            raise SettingsError(f"{path}: no such folder to keep trials in")
        if path.exists():
            self._done = dict(_lines(path))

    def __len__(self) -> int:
        return len(self._done)

    def get(self, setting: Setting, trial: int) -> Measures | None:
        """The measures of a trial, or None if it is not done."""
        return self._done.get(_key(setting, trial))

    def add(self, setting: Setting, trial: int, measures: Measures) -> None:
        """Keep the measures of a trial that is done."""
        key = _key(setting, trial)
        self._done[key] = measures
        if self._path is None:
            return
        with self._path.open("a+b") as file:
            # A line that was cut has no end; what follows must not be joined to it.
            at_end = file.seek(0, 2)
            if at_end:
                file.seek(at_end - 1)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(json.dumps([FORMAT, json.loads(key), measures]).encode() + b"\n")


def _key(setting: Setting, trial: int) -> str:
    """What the measures of a trial depend on, beside the data and the code."""
    keys = [[name, value] for name, value in setting.keys]
    what: list[Any] = [setting.experiment, setting.dataset, setting.split, setting.clients, setting.epsilon]
    return json.dumps([*what, setting.fill, keys, trial])


def _lines(path: Path) -> Iterable[tuple[str, Measures]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as unreadable:
        raise SettingsError(f"{path}: cannot be read as trials: {unreadable}") from None
    for line in text.splitlines():
        try:
            version, key, measures = json.loads(line)
        except ValueError:
            continue
        if version != FORMAT or not isinstance(measures, dict):
            raise SettingsError(f"{path}: written by another version of shoal; name another file")
        yield json.dumps(key), measures
