"""Stand-ins for the images of docker-compose.yml and deploy/Dockerfile, built without a registry of
images.

debootstrap installs a Debian with all programs; each stand-in adds the paths, the user and the
command of the official image, so that the compose file runs unchanged. Grafana has no stand-in, as
Debian has no package of it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from datetime import date
from pathlib import Path

from deploy.kafka import broker
from tests.deploy.docker_engine import Engine, run

TOP = Path(__file__).parent.parent.parent
HERE = Path(__file__).parent
SUITE = "bookworm"
PACKAGES = (
    "python3",
    "python3-venv",
    "python3-pip",
    "ca-certificates",
    "wget",
    "openjdk-17-jre-headless",
    "prometheus",
    "prometheus-alertmanager",
    "mosquitto",
    "mosquitto-clients",
    "systemd",
    "dbus",  # for systemd_machine.py
)
LEFT_OUT = (
    "--exclude=./usr/share/javascript",
    "--exclude=./usr/share/locale",
    "--exclude=./usr/share/doc",
)
"""a third of the files, which no program of the stand-ins reads"""
DEBIAN = "stand-in/debian"
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
WITHOUT = ("grafana",)
"""services of the compose file that have no stand-in"""


def make_all(engine: Engine) -> None:
    """Build every image that the compose file would pull, except those of `WITHOUT`. Raises
    `EngineError`."""
    make_debian(engine)
    for stand_in in sorted((HERE / "images").iterdir()):
        names = names_of(stand_in.name)
        build(engine, stand_in, names)


def names_of(image: str) -> set[str]:
    """The names and tags of an image in this repository's files: `kafka` ->
    {`apache/kafka:4.3.1`}."""
    texts = "".join(
        (TOP / name).read_text(encoding="utf-8")
        for name in ("docker-compose.yml", "deploy/Dockerfile")
    )
    found = set(
        re.findall(
            rf"^\s*(?:image:|FROM) ((?:[\w-]+/)?(?:[\w]+-)?{image}:\S+)", texts, re.MULTILINE
        )
    )
    assert found, f"{image} is not used"
    return found


def make_debian(engine: Engine) -> None:
    """A Debian with Python and the programs of the stand-ins."""
    with debian().open("rb") as archive:
        engine.docker("import", "-", DEBIAN, stdin=archive.fileno())


def debian() -> Path:
    """The archive of its files, which is made once a month and kept beside the jars of Kafka: it
    takes a minute."""
    made_of = [
        SUITE,
        *PACKAGES,
        *LEFT_OUT,
        AUTHORITIES.read_text(encoding="utf-8") if AUTHORITIES.exists() else "",
    ]
    name = hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]
    cache = broker.jars().parent
    kept = cache / f"debian-{name}-{date.today():%Y-%m}.tar"
    if kept.exists():
        return kept
    for old in cache.glob("debian-*.tar"):
        old.unlink()
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        root = Path(folder, "root")
        # No fsync, which would take half of the time: the image need not survive a power cut.
        (root / "etc/dpkg/dpkg.cfg.d").mkdir(parents=True)
        (root / "etc/dpkg/dpkg.cfg.d/no-fsync").write_text("force-unsafe-io\n", encoding="utf-8")
        run(
            [
                "debootstrap",
                "--variant=minbase",
                f"--include={','.join(PACKAGES)}",
                SUITE,
                str(root),
            ],
            os.environ,
        )
        shutil.rmtree(root / "var/cache/apt")
        if AUTHORITIES.exists():  # the authorities that this machine trusts
            shutil.copy(AUTHORITIES, root / "etc/ssl/certs/ca-certificates.crt")
        (root / "usr/bin/python").symlink_to("python3")
        run(["tar", "-C", str(root), *LEFT_OUT, "-cf", f"{folder}/debian.tar", "."], os.environ)
        return Path(folder, "debian.tar").rename(kept)


def build(engine: Engine, folder: Path, names: set[str]) -> None:
    """Build the image of a folder with a Dockerfile; Kafka's gets the jars."""
    with tempfile.TemporaryDirectory(dir=engine.folder) as context:
        shutil.copytree(folder, context, dirs_exist_ok=True)
        if folder.name == "kafka":
            shutil.copytree(broker.jars(), Path(context, "libs"))
        tags = [option for name in sorted(names) for option in ("--tag", name)]
        engine.docker("build", "--quiet", *tags, context)
