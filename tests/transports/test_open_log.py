"""One address in, one log out."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import SettingsError
from shoal.transports import open_log
from shoal.transports.base import Log


@pytest.mark.parametrize(
    "address", ["sqlite:{}/log.db", "SQLite:{}/log.db", "{}/log.db", "sqlite:{}/no-ending"]
)
def test_an_address_opens_a_log_and_the_same_address_opens_it_again(
    tmp_path: Path, address: str
) -> None:
    log = open_log(address.format(tmp_path))
    assert isinstance(log, Log)
    log.ensure("readings")
    identity = log.identity("readings")
    log.close()
    again = open_log(address.format(tmp_path))
    assert again.identity("readings") == identity
    again.close()


def test_a_path_may_be_relative_and_may_start_with_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for address in ("one.db", "sqlite:two.db", "~/three.db"):
        open_log(address).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.db", "three.db", "two.db"]


@pytest.mark.parametrize("address", ["", "log.txt", "carrier-pigeon:loft.db", "://", ":memory:"])
def test_an_address_of_no_known_kind_is_refused_and_the_known_ones_are_listed(address: str) -> None:
    with pytest.raises(SettingsError, match=r"sqlite:.*\.db"):
        open_log(address)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"{tmp_path}/none/log.db.*folder"):
        open_log(f"sqlite:{tmp_path}/none/log.db")
    for folder in (str(tmp_path), ""):
        with pytest.raises(SettingsError, match="is a folder; name a file in it"):
            open_log(f"sqlite:{folder}")
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="holds a NUL character; give another path"):
        open_log(f"sqlite:{tmp_path}/a\0b")
