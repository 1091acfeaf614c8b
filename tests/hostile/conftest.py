"""What the attacks on the page share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.certificates import self_signed


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate for 127.0.0.1 that vouches for itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    self_signed(folder, "127.0.0.1", "-addext subjectAltName=IP:127.0.0.1")
    return folder
