"""A federation of which parts are lost, or restored from an older copy."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

STATES = ("kept", "copy", "lost")
"""what becomes of a part: nothing, restored from an older copy, deleted"""


def lose(
    folder: Path, early: Path, late: Path, parts: Mapping[str, str], states: Iterable[str]
) -> None:
    """Make `folder` the copy `late`, but for the parts that are lost or as they were in `early`.

    `parts`: the pattern of the files of each, relative to the folder, in the order of `states`.
    """
    shutil.rmtree(folder)
    shutil.copytree(late, folder)
    for pattern, state in zip(parts.values(), states, strict=True):
        if state == "kept":
            continue
        for file in folder.glob(pattern):
            file.unlink()
        if state == "copy":
            for file in early.glob(pattern):
                shutil.copy(file, folder / file.relative_to(early))
