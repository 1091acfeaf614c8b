"""The key file: created once and whole, readable by its owner only."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.errors import SettingsError
from shoal.privacy import load_or_create_key


def test_a_key_is_made_once_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "noise.key"
    key = load_or_create_key(path)
    assert len(key) == 32
    assert load_or_create_key(path) == key
    assert [p.name for p in tmp_path.iterdir()] == ["noise.key"], "nothing is left beside it"


def test_two_clients_have_two_keys(tmp_path: Path) -> None:
    assert load_or_create_key(tmp_path / "a") != load_or_create_key(tmp_path / "b")


def test_only_its_owner_may_read_a_new_key_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        load_or_create_key(tmp_path / "noise.key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "noise.key").stat().st_mode) == 0o600


def test_starting_many_times_at_once_gives_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: load_or_create_key(tmp_path / "noise.key"), range(32)))
    assert len(keys) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o660])
def test_a_key_that_others_may_use_is_an_error(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "noise.key"
    load_or_create_key(path)
    path.chmod(mode)
    with pytest.raises(SettingsError, match="chmod 600"):
        load_or_create_key(path)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_another_size_is_an_error_and_is_kept(tmp_path: Path, size: int) -> None:
    path = tmp_path / "noise.key"
    path.write_bytes(b"k" * size)
    path.chmod(0o600)
    with pytest.raises(SettingsError, match="32 bytes") as rejected:
        load_or_create_key(path)
    assert path.read_bytes() == b"k" * size
    assert "kkk" not in str(rejected.value)


def test_a_missing_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing.*noise\.key"):
        load_or_create_key(tmp_path / "missing" / "noise.key")
