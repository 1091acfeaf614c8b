"""Images under the names that docker-compose.yml and deploy/Dockerfile ask for, made without a registry of images.

One Debian is set up by debootstrap with the programs in it, and each stand-in is that with the paths, the user and the
first command of the official image. So the compose file is run as it is. Grafana is not to be had: it has none.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from deploy.kafka import broker
from tests.deploy.docker_engine import Engine, run

TOP = Path(__file__).parent.parent.parent
HERE = Path(__file__).parent
SUITE = "bookworm"
PACKAGES = (
    *("python3", "python3-venv", "python3-pip", "ca-certificates", "wget"),
    *("openjdk-17-jre-headless", "prometheus", "mosquitto", "mosquitto-clients"),
    *("systemd", "dbus"),  # for machine.py
)
DEBIAN = "stand-in/debian"
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
WITHOUT = ("grafana",)
"""services of the compose file that have no stand-in"""


def make_all(engine: Engine) -> None:
    """Every image that the compose file would pull, but for those of `WITHOUT`. Raises `Trouble`."""
    make_debian(engine)
    for stand_in in sorted((HERE / "images").iterdir()):
        names = named_in_the_project(stand_in.name)
        build(engine, stand_in, names)


def named_in_the_project(image: str) -> set[str]:
    """The names with tags under which this repository's files ask for an image: `kafka` -> {`apache/kafka:4.3.1`}."""
    texts = "".join((TOP / name).read_text(encoding="utf-8") for name in ("docker-compose.yml", "deploy/Dockerfile"))
    found = set(re.findall(rf"^\s*(?:image:|FROM) ((?:[\w-]+/)?(?:[\w]+-)?{image}:\S+)", texts, re.MULTILINE))
    assert found, f"nobody asks for {image}"
    return found


def make_debian(engine: Engine) -> None:
    """A Debian with Python and the programs of the stand-ins."""
    with tempfile.TemporaryDirectory(dir=engine.folder) as folder:
        root = Path(folder, "root")
        # Nothing of it need outlive a power cut: half of the time would go into waiting for the disk.
        (root / "etc/dpkg/dpkg.cfg.d").mkdir(parents=True)
        (root / "etc/dpkg/dpkg.cfg.d/in-a-hurry").write_text("force-unsafe-io\n", encoding="utf-8")
        run(["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root)], os.environ)
        shutil.rmtree(root / "var/cache/apt")
        if AUTHORITIES.exists():  # whomever this machine trusts
            shutil.copy(AUTHORITIES, root / "etc/ssl/certs/ca-certificates.crt")
        (root / "usr/bin/python").symlink_to("python3")
        packed = subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE)
        assert packed.stdout is not None
        engine.docker("import", "-", DEBIAN, stdin=packed.stdout.fileno())
        packed.stdout.close()
        assert packed.wait() == 0


def build(engine: Engine, folder: Path, names: set[str]) -> None:
    """The image of a folder with a Dockerfile. Kafka's is given the jars."""
    with tempfile.TemporaryDirectory(dir=engine.folder) as context:
        shutil.copytree(folder, context, dirs_exist_ok=True)
        if folder.name == "kafka":
            shutil.copytree(broker.jars(), Path(context, "libs"))
        tags = [word for name in sorted(names) for word in ("--tag", name)]
        engine.docker("build", "--quiet", *tags, context)
