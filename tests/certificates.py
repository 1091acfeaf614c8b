"""Certificates for tests, made by openssl: self-signed ones, and those of an authority of their
own."""

from __future__ import annotations

import subprocess
from pathlib import Path


def self_signed(folder: Path, name: str, *options: str) -> None:
    """`certificate.pem`, which vouches for itself, and `key.pem` in `folder`."""
    words = [
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2",
        f"-subj /CN={name} -keyout key.pem -out certificate.pem",
    ]
    openssl(folder, " ".join([*words, *options]))


def authority(folder: Path, name: str) -> Path:
    """A certificate authority: NAME.crt and NAME.key in `folder`; the certificate's path."""
    openssl(
        folder,
        f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout {name}.key -out"
        f" {name}.crt",
    )
    return folder / f"{name}.crt"


def signed(folder: Path, name: str, names: str) -> None:
    """NAME.crt and NAME.key in `folder`, vouched for by the `authority` there; `names` is an
    openssl extension."""
    openssl(
        folder, f"req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
    )
    (folder / "names").write_text(names, encoding="utf-8")
    signing = "-CA authority.crt -CAkey authority.key -CAcreateserial -days 2 -extfile names"
    openssl(folder, f"x509 -req -in {name}.csr {signing} -out {name}.crt")


def openssl(folder: Path, words: str) -> None:
    """Run openssl with these words in `folder`."""
    subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)
