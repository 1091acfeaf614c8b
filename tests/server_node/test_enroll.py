"""`shoal enroll`: a site gets a folder that works there, and is refused once it has been
revoked."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal.config.settings import load_config
from shoal.errors import SettingsError
from shoal.protocol.signatures import read_keys
from shoal.server_node.ingest.request_publishing import quarantined_clients
from shoal.server_node.outputs.enroll_command import enroll
from shoal.transports import open_log

FILE = """
[federation]
name = "plant"

[log]
address = "sqlite:{folder}/log.db"
server_keys = "public"

[[features]]
name = "warm"
low = -10
high = 50

[privacy]
mode = "formal"
counts_epsilon = 4

[[models]]
name = "states"
algorithm = "density_tree"
options = {{ grow_readings = 1000 }}

[server]
client_keys = "keys"
port = 0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "keys").mkdir(mode=0o700)
    (tmp_path / "public").write_text("ed25519 " + "11" * 32 + "\n")
    path = tmp_path / "plant.toml"
    path.write_text(FILE.format(folder=tmp_path), encoding="utf-8")
    return path


def enrolled(file: Path, *words: str) -> Result:
    return CliRunner().invoke(enroll, ["--config", str(file), *words])


def test_a_site_gets_the_contract_its_key_and_what_to_do(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hall"
    done = enrolled(file, "hall", "--out", str(folder))
    assert done.exit_code == 0, done.exception
    there = load_config(folder / "federation.toml")
    here = load_config(file)
    assert there.contract.digest == here.contract.digest
    assert there.log.address == here.log.address
    assert there.server.client_keys is None
    assert there.client.signing_key_file == folder / "hall.key"
    assert read_keys(folder / "hall.key") == read_keys(tmp_path / "keys" / "hall.key")
    assert (folder / "public").read_text() == (tmp_path / "public").read_text()
    assert folder.stat().st_mode & 0o077 == 0
    assert "--name hall" in (folder / "README.txt").read_text()
    assert here.contract.digest in (folder / "README.txt").read_text()
    again = enrolled(file, "hall", "--out", str(tmp_path / "other"))
    assert "enrolled already" in str(again.exception)
    assert not (tmp_path / "other").exists()
    taken = enrolled(file, "roof", "--out", str(folder))
    assert "exists already" in str(taken.exception)
    assert not (tmp_path / "keys" / "roof.key").exists()


def test_a_password_of_another_site_does_not_come_along(file: Path, tmp_path: Path) -> None:
    text = file.read_text().replace(
        f'"sqlite:{tmp_path}/log.db"', '"kafka://127.0.0.1:9"\ntls = true\nca_file = "ca.pem"'
    )
    file.write_text(
        text.replace(
            'server_keys = "public"', 'sasl = "plain"\nuser = "me"\nsecret_file = "secret"'
        )
    )
    (tmp_path / "ca.pem").write_text("the authorities")
    (tmp_path / "secret").write_text("a password")
    (tmp_path / "secret").chmod(0o600)
    folder = tmp_path / "hall"
    done = enrolled(file, "hall", "--out", str(folder))
    assert done.exit_code == 0, done.exception
    assert "[log] secret_file, which the site" in done.output
    assert (folder / "ca.pem").read_text() == "the authorities"
    assert not any("a password" in path.read_text() for path in folder.iterdir())


def test_a_revoked_site_has_no_key_and_is_in_quarantine(file: Path, tmp_path: Path) -> None:
    assert "is not enrolled" in str(enrolled(file, "hall", "--revoke").exception)
    enrolled(file, "hall", "--out", str(tmp_path / "hall"))
    done = enrolled(file, "hall", "--revoke")
    assert done.exit_code == 0, done.exception
    assert not (tmp_path / "keys" / "hall.key").exists()
    config = load_config(file)
    with closing(open_log(config.log)) as log:
        records, _ = log.read(config.contract.updates_topic, {0: 0})
        assert [dict(record.headers)["type"] for record in records] == [b"quarantine"]
        assert quarantined_clients(config, log) == [], "the server has not read it yet"


def test_the_first_site_makes_the_folder_of_keys(file: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    folder = tmp_path / "hall"
    keys.rmdir()
    done = enrolled(file, "hall", "--out", str(folder))
    assert done.exit_code == 0, done.exception
    assert (keys / "hall.key").stat().st_mode & 0o077 == 0
    assert read_keys(keys / "hall.key") == read_keys(folder / "hall.key")


def test_a_site_whose_key_cannot_be_kept_is_not_made(file: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").rmdir()
    (tmp_path / "keys").write_text("no folder")
    failed = enrolled(file, "hall", "--out", str(tmp_path / "hall"))
    assert isinstance(failed.exception, SettingsError)
    assert not (tmp_path / "hall").exists(), "or the command could not be given again"


def test_a_site_is_revoked_by_the_same_command_once_the_log_is_there(
    file: Path, tmp_path: Path
) -> None:
    enrolled(file, "hall", "--out", str(tmp_path / "hall"))
    text = file.read_text()
    file.write_text(text.replace(f"{tmp_path}/log.db", f"{tmp_path}/away/log.db"))
    assert isinstance(enrolled(file, "hall", "--revoke").exception, SettingsError)
    assert (tmp_path / "keys" / "hall.key").exists()
    file.write_text(text)
    assert enrolled(file, "hall", "--revoke").exit_code == 0
    assert not (tmp_path / "keys" / "hall.key").exists()


def test_without_signatures_nobody_can_be_enrolled(file: Path, tmp_path: Path) -> None:
    file.write_text(file.read_text().replace('client_keys = "keys"\n', ""))
    failed = enrolled(file, "hall", "--out", str(tmp_path / "hall"))
    assert isinstance(failed.exception, SettingsError)
    assert 'set client_keys = "keys" in [server]' in str(failed.exception)
    assert not (tmp_path / "hall").exists()
