"""Settings in the environment: they win over the file and mean the same, and an error names the
variable."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from shoal.cli.main import shoal
from shoal.config.contract import Contract
from shoal.config.extension_settings import source_sections
from shoal.config.sections import (
    ClientSettings,
    EventSettings,
    ReplicaSettings,
    ServerSettings,
    UpstreamSettings,
)
from shoal.config.settings import (
    CONTRACT_TABLES,
    OPTIONS,
    SECTIONS,
    Config,
    HostSettings,
    LogSettings,
    ReadingsSettings,
    load_config,
)
from shoal.errors import SettingsError
from shoal.producers.files.source import FilesSettings
from shoal.producers.influx.settings import InfluxSettings
from shoal.producers.kafka.settings import KafkaSourceSettings
from shoal.producers.mqtt.settings import MqttSettings
from tests.federation_text import federation_text

FORMS = {
    "log": LogSettings,
    "client": ClientSettings,
    "readings": ReadingsSettings,
    "host": HostSettings,
    "server": ServerSettings,
    "files": FilesSettings,
    "influx": InfluxSettings,
    "kafka": KafkaSourceSettings,
    "mqtt": MqttSettings,
    "replica": ReplicaSettings,
    "upstream": UpstreamSettings,
    "events": EventSettings,
}
CONTRACT = federation_text(features=[{"name": "a", "low": 0, "high": 1}])


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("SHOAL_")]:
        monkeypatch.delenv(variable)


def loaded(folder: Path, settings: str = "") -> Config:
    path = folder / "federation.toml"
    path.write_text(CONTRACT + settings, encoding="utf-8")
    return load_config(path)


@pytest.mark.parametrize(
    ("variable", "text", "section", "setting", "meant"),
    [
        ("SHOAL_LOG_ADDRESS", "kafka://broker:9092", "log", "address", "kafka://broker:9092"),
        ("SHOAL_LOG_TLS", "true", "log", "tls", True),
        ("SHOAL_LOG_REPLICATION", "3", "log", "replication", 3),
        ("SHOAL_CLIENT_PUBLISH_S", "2.5", "client", "publish_s", 2.5),
        ("SHOAL_CLIENT_FOLDER", "/var/lib/shoal", "client", "folder", Path("/var/lib/shoal")),
        ("SHOAL_SERVER_PORT", "0", "server", "port", 0),
        ("SHOAL_SERVER_HOST", "0.0.0.0", "server", "host", "0.0.0.0"),
    ],
)
def test_a_variable_wins_over_the_file_and_over_the_default(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    text: str,
    section: str,
    setting: str,
    meant: object,
) -> None:
    if section == "log" and setting != "address":
        # these are keys of its transport
        monkeypatch.setenv("SHOAL_LOG_ADDRESS", "kafka://broker:9092")
    before = getattr(loaded(tmp_path), section)
    written = {
        "log": '[log]\naddress = "kafka://other:9092"\nreplication = 2',
        "client": '[client]\npublish_s = 9.0\nfolder = "elsewhere"',
        "server": '[server]\nport = 7\nhost = "::1"',
    }[section]
    monkeypatch.setenv(variable, text)
    for file in ("", written):
        after = getattr(loaded(tmp_path, file), section)
        assert getattr(after, setting) == meant != getattr(before, setting)


def test_settings_without_a_variable_come_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_CLIENT_PUBLISH_S", "2.5")
    client = loaded(tmp_path, "[client]\npublish_readings = 7").client
    assert (client.publish_readings, client.publish_s) == (7, 2.5)
    assert client.folder == tmp_path / "data/clients"


def test_a_relative_path_in_a_variable_is_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_SERVER_FOLDER", "there")
    monkeypatch.setenv("SHOAL_LOG_ADDRESS", "sqlite:there.db")
    config = loaded(tmp_path)
    assert config.server.folder == tmp_path / "there"
    assert config.log.address == f"sqlite:{tmp_path}/there.db"


def test_an_empty_variable_counts_as_unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = loaded(tmp_path)
    for section, form in FORMS.items():
        for name in form.model_fields:
            monkeypatch.setenv(f"SHOAL_{section}_{name}".upper(), "")
    assert loaded(tmp_path) == before


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("SHOAL_CLIENT_METRICS_PORT", "99999", "should be less than or equal to 65535"),
        (
            "SHOAL_CLIENT_METRICS_PORT",
            "many",
            "should be a valid integer, unable to parse string as an integer",
        ),
        ("SHOAL_CLIENT_LABEL", "perhaps", "should be a valid boolean, unable to interpret input"),
        ("SHOAL_CLIENT_PUBLISH_S", "0", "should be greater than 0"),
        ("SHOAL_CLIENT_PUBLISH_S", "nan", "should be"),
        (
            "SHOAL_LOG_SASL",
            "kerberos",
            "should be 'none', 'plain', 'scram-sha-256', 'scram-sha-512' or 'oauthbearer'",
        ),
        ("SHOAL_LOG_TLS", "true", "no setting of [log]; unset it or correct its spelling"),
        ("SHOAL_LOG_ADRESS", "x", "no setting of [log]; unset it or correct its spelling"),
        ("SHOAL_CLIENT_publish_s", "1", "no setting of [client]; unset it or correct its spelling"),
        ("SHOAL_SERVER_PORT", "tcp://10.0.0.1:8765", "should be a valid integer"),
        ("SHOAL_SERVER_NAME", "x", "no setting of [server]; unset it or correct its spelling"),
        ("SHOAL_PRIVACY_MODE", "off", "the contract is set in the federation file only"),
    ],
)
def test_an_error_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, text: str, expected: str
) -> None:
    if variable == "SHOAL_LOG_SASL":
        monkeypatch.setenv("SHOAL_LOG_ADDRESS", "kafka://broker:9092")
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path)
    assert str(caught.value).startswith(f"{variable}: {expected}")
    assert "\n" not in str(caught.value)


def test_an_error_about_several_settings_names_file_and_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_LOG_ADDRESS", "kafka://broker:9092")
    monkeypatch.setenv("SHOAL_LOG_SASL", "scram-sha-512")
    with pytest.raises(
        SettingsError,
        match=r"federation\.toml: \[log\] and SHOAL_LOG_\.\.\.: .* needs a secret_file",
    ):
        loaded(tmp_path)
    monkeypatch.setenv("SHOAL_LOG_USER", "server")
    assert (
        loaded(tmp_path, '[log]\nsecret_file = "password"').log.secret_file == tmp_path / "password"
    )


def test_no_variable_is_both_an_option_and_a_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options are given as SHOAL_<COMMAND>_<OPTION>, and some sections have the names of
    commands."""
    context = click.Context(shoal)
    for name in shoal.list_commands(context):
        command = shoal.get_command(context, name)
        assert command is not None
        inner = command.commands.values() if isinstance(command, click.Group) else ()
        params = [param for own_params in (command, *inner) for param in own_params.params]
        options = {option.envvar for option in params if isinstance(option, click.Option)}
        if name in SECTIONS:
            assert {f"SHOAL_{name}_{option}".upper() for option in OPTIONS[name]} == options, name
            settings = FORMS[name].model_fields if name in FORMS else ()
            assert not {f"SHOAL_{name}_{setting}".upper() for setting in settings} & options
        for variable in filter(None, options):
            monkeypatch.setenv(str(variable), "x")
    loaded(tmp_path)


def test_no_part_of_the_contract_can_be_set_in_the_environment() -> None:
    assert {*CONTRACT_TABLES, "revision"} == set(Contract.model_fields)
    assert set(CONTRACT_TABLES) | set(FORMS) == set(SECTIONS) | set(source_sections())
