"""What the compiled kernels were made from, so that a kernel of another version is never taken from Numba's cache."""

from __future__ import annotations

import hashlib
from pathlib import Path

from shoal.kernels import bandwidth, distance, valleys, workspace


def digest_of_sources() -> str:
    """SHA-256 of all files that the compiled kernels consist of.

    Numba compares only the file that a kernel is in with what it has in its cache, not the files that this one imports.
    The digest is a variable in the closure of each kernel, which is a part of the cache's key.
    """
    imported = [Path(str(module.__file__)) for module in (bandwidth, distance, valleys, workspace)]
    files = [*sorted(Path(__file__).parent.glob("*.py")), *imported]
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()
