"""What the attacks on the page share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate for 127.0.0.1 that vouches for itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += [
        "-keyout",
        "key.pem",
        "-out",
        "certificate.pem",
        "-days",
        "2",
        "-subj",
        "/CN=127.0.0.1",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder
