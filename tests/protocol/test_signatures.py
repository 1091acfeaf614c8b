"""Signatures and the files of their keys: whatever is changed is noticed, and no key is ever
shown."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import MessageRejected, SettingsError
from shoal.protocol.signatures import (
    HEADER,
    KEYS_MAX,
    ClientKeys,
    client_file,
    read_keys,
    server_file,
    signature,
    write_keys,
)

KEY = bytes(range(32))
OTHER = bytes(range(1, 33))
TOPIC = "plant.updates"


def test_a_signature_is_the_one_that_the_protocol_page_describes() -> None:
    """RFC 2104 by hand: other implementations need nothing but this line of text and the value."""
    inner = bytes(byte ^ 0x36 for byte in KEY.ljust(64, b"\0"))
    outer = bytes(byte ^ 0x5C for byte in KEY.ljust(64, b"\0"))
    text = b"shoal signature 1\nplant.updates\nupdate\n1\n" + b"a value"
    by_hand = hashlib.sha256(outer + hashlib.sha256(inner + text).digest()).digest()
    assert signature(KEY, TOPIC, b"a value") == by_hand


@given(value=st.binary(max_size=200), place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_one_bit_changed_anywhere_is_another_signature(value: bytes, place: int, bit: int) -> None:
    def changed(content: bytes) -> bytes:
        position = place % len(content)
        return content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :]

    made = signature(KEY, TOPIC, value)
    assert signature(changed(KEY), TOPIC, value) != made
    assert signature(KEY, "other.updates", value) != made
    assert signature(KEY, TOPIC, value + b"\0") != made
    assert not value or signature(KEY, TOPIC, changed(value)) != made


# Files.


def test_keys_are_read_as_they_were_written_and_by_their_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "keys" / "attic.key"
    write_keys(file, [KEY, OTHER])
    assert read_keys(file) == [KEY, OTHER]
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["attic.key"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"ab" * 31,
        b"ab" * 33,
        b"g" * 64,
        b"AB" * 32,
        KEY,
        b"\xff" * 64,
        (b"ab" * 32 + b"\n") * (KEYS_MAX + 1),
    ],
    ids=["empty", "blank", "short", "long", "letters", "capitals", "raw", "bytes", "many"],
)
def test_a_file_that_holds_anything_but_keys_is_refused_without_showing_it(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "attic.key"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(
        SettingsError, match=r"attic\.key must hold 1 to 16 lines of 64 hexadecimal digits"
    ) as caught:
        read_keys(file)
    shown = content.decode("ascii", "replace").strip()[:20]
    assert not shown or shown not in str(caught.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "attic.key"
    write_keys(file, [KEY])
    file.chmod(mode)
    with pytest.raises(
        SettingsError, match=f"open to others \\(mode {mode:o}\\).*chmod 600"
    ) as caught:
        read_keys(file)
    assert KEY.hex() not in str(caught.value)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"gone\.key cannot be read.*shoal keys new"):
        read_keys(tmp_path / "gone.key")
    with pytest.raises(SettingsError, match="is not a folder"):
        ClientKeys(tmp_path / "gone")


def test_more_keys_than_a_file_takes_are_not_written(tmp_path: Path) -> None:
    file = tmp_path / "attic.key"
    write_keys(file, [KEY])
    with pytest.raises(SettingsError, match="remove the last lines"):
        write_keys(file, [OTHER] * (KEYS_MAX + 1))
    assert read_keys(file) == [KEY]


def test_a_folder_without_write_permission_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a file", encoding="utf-8")
    with pytest.raises(SettingsError, match="cannot be made"):
        write_keys(tmp_path / "keys" / "attic.key", [KEY])


def test_the_template_names_a_file_for_each_client() -> None:
    assert client_file(Path("/etc/shoal/{client}.key"), "attic") == Path("/etc/shoal/attic.key")
    assert client_file(Path("/run/secrets/key"), "attic") == Path("/run/secrets/key")


# The server's side.


def reason(keys: ClientKeys, client: str, value: bytes, given: bytes | None) -> str | None:
    headers = (("type", b"update"), *(() if given is None else ((HEADER, given),)))
    try:
        keys.check(client, TOPIC, value, headers)
    except MessageRejected as rejected:
        return f"{rejected.reason}: {rejected.detail}"
    return None


def test_only_the_holder_of_a_clients_key_can_publish_as_that_client(tmp_path: Path) -> None:
    write_keys(server_file(tmp_path, "attic"), [KEY])
    write_keys(server_file(tmp_path, "cellar"), [OTHER])
    keys = ClientKeys(tmp_path)
    assert reason(keys, "attic", b"v", signature(KEY, TOPIC, b"v")) is None
    assert reason(keys, "cellar", b"v", signature(OTHER, TOPIC, b"v")) is None
    not_its = "signature: it is not signed with a key of the client it names"
    assert reason(keys, "cellar", b"v", signature(KEY, TOPIC, b"v")) == not_its
    assert reason(keys, "attic", b"w", signature(KEY, TOPIC, b"v")) == not_its
    assert reason(keys, "attic", b"v", signature(KEY, "other.updates", b"v")) == not_its
    assert reason(keys, "attic", b"v", b"") == not_its
    assert reason(keys, "attic", b"v", None) == "signature: it is not signed"
    assert (
        reason(keys, "garden", b"v", signature(KEY, TOPIC, b"v"))
        == "signature: there is no key for the client it names"
    )


def test_an_older_key_of_a_client_is_good_too_until_it_is_taken_out(tmp_path: Path) -> None:
    file = server_file(tmp_path, "attic")
    write_keys(file, [KEY, OTHER])
    keys = ClientKeys(tmp_path)
    assert reason(keys, "attic", b"v", signature(OTHER, TOPIC, b"v")) is None
    write_keys(file, [KEY])
    assert reason(keys, "attic", b"v", signature(OTHER, TOPIC, b"v")) is not None
    assert reason(keys, "attic", b"v", signature(KEY, TOPIC, b"v")) is None


def test_a_key_that_comes_or_goes_while_the_server_runs_is_seen_at_once(tmp_path: Path) -> None:
    keys = ClientKeys(tmp_path)
    assert reason(keys, "attic", b"v", signature(KEY, TOPIC, b"v")) is not None
    write_keys(server_file(tmp_path, "attic"), [KEY])
    assert reason(keys, "attic", b"v", signature(KEY, TOPIC, b"v")) is None
    server_file(tmp_path, "attic").unlink()
    assert reason(keys, "attic", b"v", signature(KEY, TOPIC, b"v")) is not None


def test_a_key_that_is_damaged_while_the_server_runs_stops_its_client_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for client, key in (("attic", KEY), ("cellar", OTHER)):
        write_keys(server_file(tmp_path, client), [key])
    keys = ClientKeys(tmp_path)
    server_file(tmp_path, "attic").write_text("half a k", encoding="utf-8")
    message = reason(keys, "attic", b"v", signature(KEY, TOPIC, b"v"))
    assert message == "signature: the key for the client it names cannot be used"
    assert "client_key_unusable" in caplog.text
    assert reason(keys, "cellar", b"v", signature(OTHER, TOPIC, b"v")) is None


def test_a_server_does_not_start_over_a_key_that_cannot_be_used(tmp_path: Path) -> None:
    write_keys(server_file(tmp_path, "attic"), [KEY])
    os.chmod(server_file(tmp_path, "attic"), 0o644)
    with pytest.raises(SettingsError, match="open to others"):
        ClientKeys(tmp_path)
