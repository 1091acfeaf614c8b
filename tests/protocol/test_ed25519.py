"""Ed25519: the check in Python's own integers agrees with `cryptography` and with RFC 8032."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from shoal.errors import SettingsError
from shoal.protocol import ed25519
from shoal.protocol.ed25519 import (
    KEYS_MAX,
    PrivateKey,
    is_signed_by,
    read_private_key,
    read_public_keys,
    write_private_key,
    write_public_keys,
)

ORDER = 2**252 + 27742317777372353535851937790883648493


def both(key: bytes, message: bytes, signature: bytes) -> bool:
    """What both forms say, which must be the same."""
    found = is_signed_by(key, message, signature)
    assert ed25519._checked_by_package(key, message, signature) is found
    return found


def test_the_first_example_of_the_standard_is_valid() -> None:
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    signature = bytes.fromhex(
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24"
        "655141438e7a100b"
    )
    assert PrivateKey(seed).sign(b"") == signature
    assert both(PrivateKey(seed).public, b"", signature)


@pytest.mark.parametrize("number", range(12))
def test_both_forms_agree_on_signatures_that_were_changed_anywhere(number: int) -> None:
    random = hashlib.shake_128(b"%d" % number).digest(3000)
    own, message = PrivateKey(random[:32]), random[32 : 32 + 200 * number]
    signature = own.sign(message)
    assert both(own.public, message, signature)
    assert not both(own.public, message + b"\0", signature)
    assert not both(PrivateKey(random[-32:]).public, message, signature)
    for place in {0, 31, 32, 63, random[40] % 64}:
        changed = bytearray(signature)
        changed[place] ^= 1 << random[50 + place] % 8
        assert not both(own.public, message, bytes(changed))
    again = int.from_bytes(signature[32:], "little") + ORDER
    assert not both(own.public, message, signature[:32] + again.to_bytes(32, "little")), "the same once more round"


@pytest.mark.parametrize("size", [0, 1, 32, 63, 65, 128])
def test_a_signature_of_another_length_is_none(size: int) -> None:
    own = PrivateKey(bytes(32))
    assert not both(own.public, b"x", (own.sign(b"x") * 2)[:size])


@pytest.mark.parametrize("key", [b"\xff" * 32, (2**255 - 19).to_bytes(32, "little"), (2).to_bytes(32, "little")])
def test_bytes_that_are_no_point_have_signed_nothing(key: bytes) -> None:
    assert not is_signed_by(key, b"x", bytes(64))


def test_keys_are_written_and_read_and_never_in_the_place_of_each_other(tmp_path: Path) -> None:
    private, public = tmp_path / "a" / "server.key", tmp_path / "b" / "server.pub"
    write_private_key(private, bytes(32))
    assert private.stat().st_mode & 0o777 == 0o600
    own = read_private_key(private)
    write_public_keys(public, [own.public, *(bytes([number]) * 32 for number in range(1, KEYS_MAX + 5))])
    assert read_public_keys(public)[0] == own.public
    assert len(read_public_keys(public)) == KEYS_MAX, "the oldest are left out"
    with pytest.raises(SettingsError, match="holds a private key where public ones belong") as shown:
        read_public_keys(private)
    assert bytes(32).hex() not in str(shown.value)
    write_private_key(private, bytes(32))
    private.write_text(public.read_text(encoding="ascii"), encoding="ascii")
    with pytest.raises(SettingsError, match="must hold 1 to 1 lines `private "):
        read_private_key(private)
    private.write_text(f"private {'0' * 64}\n", encoding="ascii")
    private.chmod(0o644)
    with pytest.raises(SettingsError, match="open to others"):
        read_private_key(private)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_public_keys(tmp_path / "none")
