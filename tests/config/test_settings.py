"""Settings of single processes: defaults, ranges, and paths that mean the same wherever a process
starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from shoal.config.sections import (
    ClientSettings,
    EventSettings,
    ReplicaSettings,
    ServerSettings,
    UpstreamSettings,
)
from shoal.config.settings import (
    SECTIONS,
    Config,
    HostSettings,
    LogSettings,
    ReadingsSettings,
    load_config,
)
from shoal.errors import SettingsError
from shoal.producers.mqtt.settings import MqttSettings, mqtt_settings
from shoal.transports.kafka.settings import KafkaSettings
from tests.federation_text import federation_text

CONTRACT = federation_text(features=[{"name": "a", "low": 0, "high": 1}])


def config_of(folder: Path, settings: str = "") -> Config:
    path = folder / "federation.toml"
    path.write_text(CONTRACT + settings, encoding="utf-8")
    return load_config(path)


def rejected(folder: Path, settings: str) -> str:
    with pytest.raises(SettingsError) as caught:
        config_of(folder, settings)
    line = str(caught.value)
    assert "\n" not in line
    return line.removeprefix(f"{folder / 'federation.toml'}: ")


def test_a_file_without_settings_has_the_defaults(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    assert config.log.address == f"sqlite:{tmp_path}/data/federation.db"
    assert config.client == ClientSettings(folder=tmp_path / "data/clients")
    assert config.server == ServerSettings(folder=tmp_path / "data/server")


def test_empty_sections_change_nothing(tmp_path: Path) -> None:
    assert config_of(tmp_path, "[log]\n[client]\n[server]") == config_of(tmp_path)


def test_settings_are_not_part_of_the_contract(tmp_path: Path) -> None:
    other = config_of(tmp_path, "[client]\npublish_readings = 7\n[server]\npool_clients = 9")
    assert other.client.publish_readings == 7
    assert other.contract.digest == config_of(tmp_path).contract.digest


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            "[clients]",
            f"unknown section [clients]; there are {', '.join(SECTIONS)}, files, influx, kafka,"
            " mqtt",
        ),
        ("[[client]]", "[client] is not a table"),
        (
            "[client]\npublish = 3",
            "[client]: publish: unknown name; remove it or correct its spelling",
        ),
        (
            "[client]\npublish_readings = 0",
            "[client]: publish_readings: should be greater than or equal to 1",
        ),
        (
            "[client]\npublish_readings = 1.5",
            "[client]: publish_readings: should be a valid integer",
        ),
        (
            '[client]\npublish_readings = "5"',
            "[client]: publish_readings: should be a valid integer",
        ),
        (
            "[client]\npublish_readings = true",
            "[client]: publish_readings: should be a valid integer",
        ),
        ("[client]\npublish_s = 0", "[client]: publish_s: should be greater than 0"),
        ("[client]\npublish_s = nan", "[client]: publish_s: should be a finite number"),
        ("[client]\npublish_s = inf", "[client]: publish_s: should be a finite number"),
        (
            "[client]\npublish_s = 86401",
            "[client]: publish_s: should be less than or equal to 86400",
        ),
        (
            "[client]\nbatch_readings_max = 100001",
            "[client]: batch_readings_max: should be less than or equal to",
        ),
        ("[client]\nlabel = 1", "[client]: label: should be a valid boolean"),
        (
            "[client]\nmetrics_port = 65536",
            "[client]: metrics_port: should be less than or equal to 65535",
        ),
        ("[client]\nfolder = 3", "[client]: folder: is not a valid path"),
        (
            "[server]\npool_clients = 0",
            "[server]: pool_clients: should be greater than or equal to 1",
        ),
        ("[server]\npool_s = -1", "[server]: pool_s: should be greater than 0"),
        (
            "[server]\nsnapshot_updates = 0",
            "[server]: snapshot_updates: should be greater than or equal to 1",
        ),
        ("[server]\nport = -1", "[server]: port: should be greater than or equal to 0"),
        ("[server]\nhost = 3", "[server]: host: should be a valid string"),
        ("[log]\naddress = 3", "[log]: address: should be a valid string"),
        (
            '[log]\naddress = "pigeon:loft"',
            "[log]: log address 'pigeon:loft': must begin with one of kafka:",
        ),
        ('[log]\naddress = "kafka:a:1"', "[log]: log address kafka:a:1: must be kafka://host:port"),
        (
            '[server.client_names]\nroof = "D\\u0007ach"',
            "[server]: client_names: the name of roof is 1 to 64 printable characters",
        ),
        (
            '[server.client_names]\n"Büro" = "Büro"',
            "[server]: client_names: 'Büro' is no name of a client or region",
        ),
        ("[log]\ntls = true", "[log]: tls: unknown name; remove it or correct its spelling"),
        ('[log]\naddress = "kafka://a:1"\ntls = 1', "[log]: tls: should be a valid boolean"),
        (
            '[readings]\naddress = "sqlite:x.db"',
            "[readings]: address must be kafka://host:port; leave it out",
        ),
        ("[mqtt]\nport = 65536", "[mqtt]: port: should be less than or equal to 65535"),
        ('[mqtt]\nversion = "3"', "[mqtt]: version: should be '5' or '3.1.1'"),
        (
            '[mqtt]\nca_file = "a"',
            "[mqtt]: ca_file, certificate_file and key_file are for TLS: set tls = true",
        ),
        ('[mqtt]\ntls = true\nkey_file = "a"', "[mqtt]: certificate_file and key_file go together"),
        ('[mqtt]\nuser = "u"', "[mqtt]: user and secret_file go together"),
        (
            '[mqtt]\nuser_id = "who"\n[mqtt.topics]\nwarm = "one#a"\ndamp = "two#b"',
            "[mqtt]: user_id needs all features",
        ),
        (
            '[mqtt]\nuser_id = "who"\n[mqtt.topics]\nwarm = "one"\ndamp = "one"',
            "[mqtt]: user_id needs all features",
        ),
        (
            '[mqtt]\nuser_id = "who"\nmissing = "hold"',
            '[mqtt]: user_id and missing = "hold" exclude each other',
        ),
        (
            '[mqtt.topics]\na = "x+"',
            "[mqtt]: topics.a: write topic or topic#field; the wildcards + and #",
        ),
        (
            '[mqtt.topics]\na = "x/+y"',
            "[mqtt]: topics.a: write topic or topic#field; the wildcards + and #",
        ),
        (
            '[mqtt.topics]\na = "#field"',
            "[mqtt]: topics.a: write topic or topic#field; the wildcards + and #",
        ),
        (
            '[mqtt]\ntime = "t"\n[mqtt.topics]\na = "x"',
            "[mqtt]: topics.a: a plain number has no time",
        ),
        (
            '[mqtt.topics]\nb = "x"',
            "[mqtt.topics]: 'a' has no topic; there is one line for each feature: a",
        ),
        (
            '[mqtt.topics]\na = "x"\nb = "y"',
            "[mqtt.topics]: 'b' is no feature of this federation; there is one line",
        ),
    ],
)
def test_every_error_names_section_setting_and_range(
    tmp_path: Path, settings: str, expected: str
) -> None:
    assert rejected(tmp_path, settings).startswith(expected)


def test_a_section_that_is_a_value_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text("client = 3\n" + CONTRACT)
    with pytest.raises(SettingsError, match=r"\[client\] is not a table"):
        load_config(path)


def test_an_error_in_the_contract_comes_first(tmp_path: Path) -> None:
    assert rejected(tmp_path, '[[models]]\nname = "m"\n[client]\nlabel = 1').startswith(
        "models[2].algorithm: is missing"
    )


@pytest.mark.parametrize(
    "form",
    [
        LogSettings,
        ClientSettings,
        ReadingsSettings,
        HostSettings,
        ServerSettings,
        ReplicaSettings,
        UpstreamSettings,
        EventSettings,
        MqttSettings,
        KafkaSettings,
    ],
)
def test_every_setting_has_a_description_and_a_default_in_its_range(form: type[BaseModel]) -> None:
    for name, field in form.model_fields.items():
        assert not field.is_required(), name
        assert field.description, name
    form.model_validate(form().model_dump())
    # A section that a file leaves out is made without a check.
    assert form.model_construct() == form()


def test_whole_seconds_may_be_written_as_integers(tmp_path: Path) -> None:
    assert config_of(tmp_path, "[client]\npublish_s = 5").client.publish_s == 5.0


# Paths.


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("sqlite:log.db", "sqlite:{here}/log.db"),
        ("sqlite:deep/log.db", "sqlite:{here}/deep/log.db"),
        ("SQLite:log.db", "sqlite:{here}/log.db"),
        ("sqlite:/abs/log.db", "sqlite:/abs/log.db"),
        ("sqlite:~/log.db", "sqlite:{home}/log.db"),
        ("log.db", "{here}/log.db"),
        ("/abs/log.db", "/abs/log.db"),
        ("kafka://broker:9092", "kafka://broker:9092"),
    ],
)
def test_a_relative_log_is_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, meant: str
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    config = config_of(tmp_path, f'[log]\naddress = "{written}"')
    assert config.log.address == meant.format(here=tmp_path, home="/home/somebody")


def test_relative_folders_are_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    config = config_of(tmp_path, '[client]\nfolder = "c"\n[server]\nfolder = "~/s"')
    assert (config.client.folder, config.server.folder) == (
        tmp_path / "c",
        Path("/home/somebody/s"),
    )
    config = config_of(tmp_path, '[client]\nfolder = "/abs"')
    assert config.client.folder == Path("/abs")


def test_files_of_secrets_and_certificates_are_relative_to_the_file(tmp_path: Path) -> None:
    mqtt = 'user = "u"\nsecret_file = "s"\ntls = true\nca_file = "/abs/ca"'
    config = config_of(tmp_path, f"[mqtt]\n{mqtt}")
    settings = mqtt_settings(config)
    assert (settings.secret_file, settings.ca_file) == (tmp_path / "s", Path("/abs/ca"))
    assert settings.address == "mqtts://localhost:8883"
    assert mqtt_settings(config_of(tmp_path)).address == "mqtt://localhost:1883"


def test_a_file_name_without_a_folder_is_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_of(tmp_path)
    monkeypatch.chdir(tmp_path)
    config = load_config(Path("federation.toml"))
    assert config.client.folder.resolve() == tmp_path / "data/clients"


def test_an_unknown_home_folder_is_an_error(tmp_path: Path) -> None:
    assert "write the whole path" in rejected(
        tmp_path, '[client]\nfolder = "~nobody-of-this-name/x"'
    )


def test_settings_never_change(tmp_path: Path) -> None:
    settings: Any = config_of(tmp_path).client
    with pytest.raises(ValueError, match="frozen"):
        settings.label = True
