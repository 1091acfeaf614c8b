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


@pytest.mark.parametrize(
    ("seed", "public", "message", "signature"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            b"",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
            "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            b"\x72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            b"\xaf\x82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
            "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
        ),
        (
            "833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42",
            "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
            hashlib.sha512(b"abc").digest(),
            "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b589"
            "09351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704",
        ),
    ],
)
def test_examples_of_the_standard_are_valid(
    seed: str, public: str, message: bytes, signature: str
) -> None:
    own = PrivateKey(bytes.fromhex(seed))
    assert own.public.hex() == public
    assert own.sign(message).hex() == signature
    assert both(own.public, message, bytes.fromhex(signature))


VECTORS = Path(__file__).parent.parent / "vectors" / "ed25519" / "wycheproof.txt"


def test_both_forms_answer_as_the_vectors_of_wycheproof_say() -> None:
    """Signatures that are malleable, cut off, or hold numbers beyond their range among them."""
    lines = VECTORS.read_text(encoding="utf-8").splitlines()[1:]
    assert len(lines) == 151
    for line in lines:
        number, result, *hexadecimal = line.split()
        key, signature, message = (bytes.fromhex(text.strip("-")) for text in hexadecimal)
        assert both(key, message, signature) is (result == "valid"), f"vector {number}"


ORDER_8 = bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")
"""a point of the order 8"""


def encoded(number: int, sign: int) -> bytes:
    return (number | sign << 255).to_bytes(32, "little")


def test_points_of_small_order_and_other_encodings_of_them_are_no_keys_for_either_form(
    tmp_path: Path,
) -> None:
    prime = 2**255 - 19
    order_8 = int.from_bytes(ORDER_8, "little")
    numbers = (0, 1, order_8, prime - order_8, prime - 1, prime, prime + 1)
    points = [encoded(number, sign) for number in numbers for sign in (0, 1)]
    file = tmp_path / "public"
    genuine = PrivateKey(bytes(32)).public
    for key in points:
        for start in points:
            for scalar in (0, 1, ORDER - 1, ORDER):
                assert not both(key, b"0", start + scalar.to_bytes(32, "little"))
        file.write_text(f"public {genuine.hex()}\npublic {key.hex()}\n", encoding="ascii")
        with pytest.raises(SettingsError, match="line 2 is no public key"):
            read_public_keys(file)


def test_both_forms_agree_on_keys_and_signatures_with_a_part_of_small_order() -> None:
    small = ed25519._decoded(ORDER_8)
    base = ed25519._decoded(encoded(4 * pow(5, -1, 2**255 - 19) % (2**255 - 19), 0))
    assert small is not None
    assert base is not None

    def times(number: int, point: ed25519.Point) -> ed25519.Point:
        found = ed25519._ZERO
        for bit in f"{number:b}":
            found = ed25519._doubled(found)
            found = ed25519._sum(found, point) if bit == "1" else found
        return found

    private = 7**80 % ORDER
    nonce = 11**70 % ORDER
    key = ed25519._encoded(ed25519._sum(times(private, base), small))
    answers = []
    for number in range(16):
        for more in (0, 1):
            start = ed25519._encoded(
                ed25519._sum(times(nonce, base), times(more * number % 8, small))
            )
            digest = (
                int.from_bytes(hashlib.sha512(start + key + b"%d" % number).digest(), "little")
                % ORDER
            )
            scalar = (nonce + digest * private) % ORDER
            answers.append(both(key, b"%d" % number, start + scalar.to_bytes(32, "little")))
    assert set(answers) == {True, False}, (
        "valid only where the parts of small order cancel each other"
    )


@pytest.mark.parametrize("number", range(12))
def test_both_forms_agree_on_signatures_that_were_changed_anywhere(number: int) -> None:
    random = hashlib.shake_128(b"%d" % number).digest(3000)
    own = PrivateKey(random[:32])
    message = random[32 : 32 + 200 * number]
    signature = own.sign(message)
    assert both(own.public, message, signature)
    assert not both(own.public, message + b"\0", signature)
    assert not both(PrivateKey(random[-32:]).public, message, signature)
    for place in {0, 31, 32, 63, random[40] % 64}:
        changed = bytearray(signature)
        changed[place] ^= 1 << random[50 + place] % 8
        assert not both(own.public, message, bytes(changed))
    again = int.from_bytes(signature[32:], "little") + ORDER
    assert not both(own.public, message, signature[:32] + again.to_bytes(32, "little")), (
        "the same once more round"
    )


@pytest.mark.parametrize("size", [0, 1, 32, 63, 65, 128])
def test_a_signature_of_another_length_is_none(size: int) -> None:
    own = PrivateKey(bytes(32))
    assert not both(own.public, b"x", (own.sign(b"x") * 2)[:size])


@pytest.mark.parametrize(
    "key", [b"\xff" * 32, (2**255 - 19).to_bytes(32, "little"), (2).to_bytes(32, "little")]
)
def test_bytes_that_are_no_point_have_signed_nothing(key: bytes) -> None:
    assert not is_signed_by(key, b"x", bytes(64))


def test_keys_are_written_and_read_and_never_in_the_place_of_each_other(tmp_path: Path) -> None:
    private = tmp_path / "a" / "server.key"
    public = tmp_path / "b" / "server.pub"
    write_private_key(private, bytes(32))
    assert private.stat().st_mode & 0o777 == 0o600
    own = read_private_key(private)
    others = [PrivateKey(bytes([number]) * 32).public for number in range(1, KEYS_MAX + 1)]
    write_public_keys(public, [own.public, *others[1:]])
    assert read_public_keys(public) == [own.public, *others[1:]]
    with pytest.raises(SettingsError, match=f"holds {KEYS_MAX} keys already"):
        write_public_keys(public, [own.public, *others])
    assert len(read_public_keys(public)) == KEYS_MAX, "none is left out without a word"
    with pytest.raises(
        SettingsError, match="holds a private key where public ones belong"
    ) as shown:
        read_public_keys(private)
    assert bytes(32).hex() not in str(shown.value)
    write_private_key(private, bytes(32))
    private.write_text(public.read_text(encoding="ascii"), encoding="ascii")
    with pytest.raises(SettingsError, match="must hold one line of `private "):
        read_private_key(private)
    private.write_text(f"private {'0' * 64}\n", encoding="ascii")
    private.chmod(0o644)
    with pytest.raises(SettingsError, match="open to others"):
        read_private_key(private)
    for content in (
        "",
        "\n",
        "public 00\n",
        f"public {own.public.hex()} x\n",
        f"public {own.public.hex()}\n" * 60,
    ):
        for file, read in ((private, read_private_key), (public, read_public_keys)):
            file.write_text(content, encoding="ascii")
            file.chmod(0o600)
            with pytest.raises(
                SettingsError, match=r"must hold (one line|1 to 16 lines) of .*`shoal keys`"
            ):
                read(file)
    for read in (read_private_key, read_public_keys):
        for name in ("none", "a"):
            with pytest.raises(SettingsError, match=r"cannot be read.*`shoal keys`"):
                read(tmp_path / name)
