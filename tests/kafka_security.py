"""A broker with TLS, passwords (SCRAM) and access rules, and a test authority that signs its
certificate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.certificates import authority, signed
from tests.kafka_broker import Broker

ADMIN = "admin"
ADMIN_PASSWORD = "correct horse"

PROPERTIES = """
listener.security.protocol.map=CLIENTS:SASL_SSL,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=SCRAM-SHA-512
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
listener.name.clients.scram-sha-512.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required \
username="{admin}" password="{password}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:{admin};User:ANONYMOUS
allow.everyone.if.no.acl.found=false
ssl.keystore.type=PEM
ssl.keystore.location={folder}/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/authority.crt
"""


def secure_broker(folder: Path, further: str = "", java_options: Sequence[str] = ()) -> Broker:
    """Start one; `authority.crt` in `folder` vouches for it. `further`: lines that win over those
    above."""
    authority(folder, "authority")
    signed(folder, "broker", "subjectAltName=IP:127.0.0.1")
    pem = (folder / "broker.key").read_text() + (folder / "broker.crt").read_text()
    (folder / "broker.pem").write_text(pem)
    more = PROPERTIES.format(admin=ADMIN, password=ADMIN_PASSWORD, folder=folder) + further
    scram = f"SCRAM-SHA-512=[name={ADMIN},password={ADMIN_PASSWORD}]"
    return Broker(folder, more, ["--add-scram", scram], java_options)
