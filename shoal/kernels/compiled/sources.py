"""What the compiled kernels were made from, so that a kernel of another version is never taken from Numba's cache."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from shoal.kernels import art_workspace, constants

CONSTANTS: Final = (art_workspace, constants)
"""the modules outside this folder from which compiled functions take constants"""


def source_files() -> list[Path]:
    """All files that the compiled kernels consist of: those of this folder, and those of `CONSTANTS`."""
    return [*sorted(Path(__file__).parent.glob("*.py")), *(Path(str(module.__file__)) for module in CONSTANTS)]


def digest_of_sources() -> str:
    """SHA-256 of `source_files`.

    Numba compares only the file that a kernel is in with what it has in its cache, not the files that this one imports.
    The digest is a variable in the closure of each kernel, which is a part of the cache's key.
    """
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in source_files())).hexdigest()
