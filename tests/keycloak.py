"""Keycloak on this machine: a real provider of OpenID Connect, whose tokens are signed and whose
keys a broker asks for. It comes from Maven Central, as Kafka does."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from deploy.kafka.broker import BrokerError
from tests.kafka_broker import free_ports

VERSION: Final = "26.0.8"
"""runs on Java 17, as the brokers do"""
REALM: Final = "plant"
OTHER_REALM: Final = "master"
"""is there in any case, and has keys of its own"""
ADMIN: Final = "admin"
"""a client of the other realm"""
SECRET: Final = "battery staple"
"""of every client"""
START_S: Final = 240.0
JAVA: Final = ("java", "-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
FACTORY: Final = "io.quarkus.bootstrap.forkjoin.QuarkusForkJoinWorkerThreadFactory"
OPTIONS: Final = (
    "--optimized",
    "--import-realm",
    "--cache=local",
    "--http-enabled=true",
    "--http-host=127.0.0.1",
    # So that its log tells who was given a token.
    "--log-level=info,org.keycloak.events:debug",
)


def installed() -> Path:
    """The folder of Keycloak, fetched and built at the first use. Raises `BrokerError`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal"
    folder = cache / f"keycloak-{VERSION}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "keycloak.lock").open("w") as lock:
        # Of several workers one fetches it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            artefact = f"org.keycloak:keycloak-quarkus-dist:{VERSION}:tar.gz"
            copy = f"-Dartifact={artefact} -DoutputDirectory={scratch}".split()
            _run(["mvn", "--quiet", "--batch-mode", "dependency:copy", *copy])
            (archive,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(archive) as files:
                files.extractall(scratch, filter="data")
            unpacked = Path(scratch, f"keycloak-{VERSION}")
            # What `start` would do each time otherwise.
            _run([str(unpacked / "bin" / "kc.sh"), "build", "--db=dev-mem"])
            unpacked.rename(folder)
    return folder


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BrokerError(f"{command[0]}: {(done.stdout + done.stderr)[-2000:]}")


class Keycloak:
    """A provider with one realm and clients that get tokens by their secret.

    Its state is in memory.
    """

    def __init__(self, folder: Path, lifetime_s: int, audiences: dict[str, str]) -> None:
        """`lifetime_s`: of each token; `audiences`: client -> the audience of its tokens. Returns
        once it answers."""
        self.port = free_ports()
        self._log = folder / "keycloak.log"
        home = installed()
        (folder / "data" / "import").mkdir(parents=True)
        for part in ("lib", "conf", "providers", "themes"):
            (folder / part).symlink_to(home / part)
        realm = json.dumps(_realm(lifetime_s, audiences))
        (folder / "data" / "import" / f"{REALM}.json").write_text(realm, encoding="utf-8")
        command = [
            *JAVA,
            f"-Djava.util.concurrent.ForkJoinPool.common.threadFactory={FACTORY}",
            f"-Dkc.home.dir={folder}",
            f"-Djboss.server.config.dir={folder / 'conf'}",
            f"-Dkeycloak.theme.dir={folder / 'themes'}",
            "-cp",
            str(folder / "lib" / "quarkus-run.jar"),
            "io.quarkus.bootstrap.runner.QuarkusEntryPoint",
            "start",
            *OPTIONS,
            f"--http-port={self.port}",
            f"--hostname=http://127.0.0.1:{self.port}",
        ]
        # A client of the other realm, which it makes at its first start.
        admin = {
            "KC_BOOTSTRAP_ADMIN_CLIENT_ID": "admin",
            "KC_BOOTSTRAP_ADMIN_CLIENT_SECRET": SECRET,
        }
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | admin
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def issuer(self, realm: str = REALM) -> str:
        """The issuer that its tokens name."""
        return f"http://127.0.0.1:{self.port}/realms/{realm}"

    def token_url(self, realm: str = REALM) -> str:
        """Where clients get their tokens."""
        return f"{self.issuer(realm)}/protocol/openid-connect/token"

    @property
    def keys_url(self) -> str:
        """Where a broker gets the keys with which tokens are signed."""
        return f"{self.issuer()}/protocol/openid-connect/certs"

    def tokens(self, client: str) -> int:
        """How many tokens the client was given."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return sum('"CLIENT_LOGIN"' in line and f'clientId="{client}"' in line for line in lines)

    def stop(self) -> None:
        """Kill it: what it has is in memory."""
        self._process.kill()
        self._process.wait()

    def _wait(self) -> None:
        until = time.monotonic() + START_S
        while b"Listening on:" not in self._log.read_bytes():
            if self._process.poll() is not None or time.monotonic() > until:
                text = self._log.read_text(encoding="utf-8", errors="replace")
                raise BrokerError(f"Keycloak did not start: {text[-2000:]}")
            time.sleep(0.2)


def _realm(lifetime_s: int, audiences: dict[str, str]) -> dict[str, Any]:
    clients = []
    for client, audience in audiences.items():
        mapper = {
            "name": "audience",
            "protocol": "openid-connect",
            "protocolMapper": "oidc-audience-mapper",
            "config": {"included.custom.audience": audience, "access.token.claim": "true"},
        }
        clients.append(
            {
                "clientId": client,
                "secret": SECRET,
                "publicClient": False,
                "serviceAccountsEnabled": True,
                "standardFlowEnabled": False,
                "protocolMappers": [mapper],
            }
        )
    return {
        "realm": REALM,
        "enabled": True,
        "accessTokenLifespan": lifetime_s,
        "clients": clients,
    }
