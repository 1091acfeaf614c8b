"""Ed25519 signatures (RFC 8032): made with `cryptography`, an extra, and checked with or without
it.

A client checks what a server has signed, and needs no package for it: where `cryptography` is
missing, the check is made with Python's own integers, in milliseconds instead of a tenth of one. It
takes public values only, so the time that it takes tells nothing. Who signs needs the package,
which protects the private key.

A point of small order is no public key: anybody can make signatures that belong to it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from shoal.errors import MissingExtra, SettingsError
from shoal.files import atomic_file, read_secret, write_secret

KEY_BYTES: Final = 32
KEYS_MAX: Final = 16
"""public keys in one file: the newest first, then those that earlier records were signed with"""
# A path may name any file by mistake; a large one is refused before it is read.
_FILE_BYTES_MAX: Final = 4096
SIGNATURE_BYTES: Final = 64
_LINE: Final = re.compile(r"(public|private) ([0-9a-f]{64})")

Point = tuple[int, int, int, int]
"""a point of the curve in extended coordinates: x / z, y / z, and x y / z"""
_P: Final = 2**255 - 19
_ORDER: Final = 2**252 + 27742317777372353535851937790883648493
_D: Final = -121665 * pow(121666, -1, _P) % _P
_ROOT_OF_MINUS_1: Final = pow(2, (_P - 1) // 4, _P)
_ZERO: Final[Point] = (0, 1, 1, 0)
_DIGIT_BITS: Final = 4


def _decoded(key: bytes) -> Point | None:
    """The point that 32 bytes stand for; None for none. Source: RFC 8032, section 5.1.3."""
    whole = int.from_bytes(key, "little")
    y = whole & (2**255 - 1)
    sign = whole >> 255
    if y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT_OF_MINUS_1 % _P
    if (x * x - square) % _P or (not x and sign):
        return None
    if x & 1 != sign:
        x = _P - x
    return x, y, 1, x * y % _P


def _encoded(point: Point) -> bytes:
    x, y, z, _ = point
    inverse = pow(z, -1, _P)
    x = x * inverse % _P
    y = y * inverse % _P
    return (y | (x & 1) << 255).to_bytes(KEY_BYTES, "little")


def _sum(a: Point, b: Point) -> Point:
    """The sum of two points (RFC 8032, section 5.1.4)."""
    p = (a[1] - a[0]) * (b[1] - b[0]) % _P
    q = (a[1] + a[0]) * (b[1] + b[0]) % _P
    r = 2 * a[3] * b[3] * _D % _P
    s = 2 * a[2] * b[2] % _P
    e = q - p
    f = s - r
    g = s + r
    h = q + p
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _doubled(a: Point) -> Point:
    p = a[0] * a[0] % _P
    q = a[1] * a[1] % _P
    h = p + q
    e = h - (a[0] + a[1]) * (a[0] + a[1]) % _P
    g = p - q
    f = 2 * a[2] * a[2] % _P + g
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _multiples(point: Point) -> list[Point]:
    """0, 1, 2, ... times the point, one for each digit."""
    multiples = [_ZERO]
    for _ in range(2**_DIGIT_BITS - 1):
        multiples.append(_sum(multiples[-1], point))
    return multiples


@lru_cache(maxsize=KEYS_MAX)
def _multiples_of_key(key: bytes) -> list[Point] | None:
    """Multiples of the negative of a public key; None for no key, or one of small order."""
    point = _decoded(key)
    # Eight times a point of small order is 0: under such a key one signature is of many messages.
    if point is None or not _doubled(_doubled(_doubled(point)))[0]:
        return None
    return _multiples((_P - point[0], point[1], 1, _P - point[3]))


_base: Final = _decoded((4 * pow(5, -1, _P) % _P).to_bytes(KEY_BYTES, "little"))
assert _base is not None, "the base point is on the curve"
_BASE: Final = _multiples(_base)


def is_signed_by(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature`, 64 bytes, is one of `message` with the private key that belongs to this
    public key.

    With Python's integers alone. RFC 8032, section 5.1.7, without the cofactor, as OpenSSL checks
    it too.
    """
    scalar = int.from_bytes(signature[KEY_BYTES:], "little")
    of_key = _multiples_of_key(key)
    # A scalar plus the order gives the same point: with it, a message would have a second signature
    # (RFC 8032, section 5.1.7).
    if len(signature) != 2 * KEY_BYTES or scalar >= _ORDER or of_key is None:
        return False
    nonce = signature[:KEY_BYTES]
    digest = int.from_bytes(hashlib.sha512(nonce + key + message).digest(), "little") % _ORDER
    # The scalar times the base point minus the digest times the key, digit by digit from the
    # highest.
    # Nothing in a check is secret, so it need not take the same time for all digits.
    found = _ZERO
    mask = 2**_DIGIT_BITS - 1
    for shift in range(256 - _DIGIT_BITS, -1, -_DIGIT_BITS):
        for _ in range(_DIGIT_BITS):
            found = _doubled(found)
        if digit := scalar >> shift & mask:
            found = _sum(found, _BASE[digit])
        if digit := digest >> shift & mask:
            found = _sum(found, of_key[digit])
    return _encoded(found) == nonce


def _checked_by_package(key: bytes, message: bytes, signature: bytes) -> bool | None:
    """The answer of `is_signed_by`, by `cryptography`, which accepts further keys; None where it is
    not installed."""
    try:
        # An extra, which is faster where it is installed.
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra

        # An extra, which is faster where it is installed.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - an extra
            Ed25519PublicKey,
        )
    except ImportError:
        return None
    if _multiples_of_key(key) is None:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


class PublicKeys:
    """The public keys whose owners are believed."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = tuple(dict.fromkeys(keys))

    def have_signed(self, message: bytes, signature: bytes) -> bool:
        """Whether the owner of one of these keys has signed the message."""
        # Junk costs no checks: each takes 100 µs.
        if len(signature) != SIGNATURE_BYTES:
            return False
        for key in self._keys:
            checked = _checked_by_package(key, message, signature)
            if is_signed_by(key, message, signature) if checked is None else checked:
                return True
        return False


class PrivateKey:
    """One private key. Raises `MissingExtra` where `cryptography` is not installed."""

    def __init__(self, seed: bytes) -> None:
        """`seed` is the private key, 32 bytes."""
        try:
            # By the module and not from its package: only so is a missing one noticed in tests.
            from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - extra
                Ed25519PrivateKey,
            )
        except ImportError:
            raise MissingExtra("Signing with a private key", "sign") from None
        self._key: Any = Ed25519PrivateKey.from_private_bytes(seed)

    def sign(self, message: bytes) -> bytes:
        """The signature of a message, 64 bytes."""
        signature: bytes = self._key.sign(message)
        return signature

    @property
    def public(self) -> bytes:
        """The public key that belongs to it, 32 bytes."""
        key: bytes = self._key.public_key().public_bytes_raw()
        return key


def read_private_key(file: Path) -> PrivateKey:
    """The private key in a file that only its owner may read. Raises `SettingsError`, without any
    of it."""
    try:
        content = read_secret(
            file,
            _FILE_BYTES_MAX,
            kind="private key",
            risk="sign as its owner",
            remedy="make a new one (`shoal keys`, --rotate)",
        )
    except OSError as error:
        raise SettingsError(
            f"private key {file} cannot be read: {error.strerror}; make it with `shoal keys`"
        ) from None
    ((_, key),) = _keys_in(file, content, "private", 1)
    return PrivateKey(bytes.fromhex(key))


def read_public_keys(file: Path) -> list[bytes]:
    """The public keys in a file, the newest first. Raises `SettingsError`."""
    try:
        with file.open("rb") as opened:
            content = opened.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(
            f"public keys {file} cannot be read: {error.strerror}; make them with `shoal keys`, "
            "or copy the file here"
        ) from None
    keys = [bytes.fromhex(key) for _, key in _keys_in(file, content, "public", KEYS_MAX)]
    if wrong := [number for number, key in enumerate(keys, 1) if _multiples_of_key(key) is None]:
        raise SettingsError(
            f"{file}: line {wrong[0]} is no public key; copy the file again from where it was made"
        )
    return keys


def _keys_in(file: Path, content: bytes, kind: str, most: int) -> list[tuple[str, str]]:
    found = [_LINE.fullmatch(line) for line in content.decode("ascii", "replace").splitlines()]
    keys = [(line[1], line[2]) for line in found if line is not None]
    if any(is_kind == "private" for is_kind, _ in keys) and kind == "public":
        raise SettingsError(
            f"{file} holds a private key where public ones belong: make a new one (`shoal keys`, "
            "--rotate), and copy the file with the public keys only"
        )
    if (
        not 1 <= len(keys) <= most
        or len(keys) < len(found)
        or any(is_kind != kind for is_kind, _ in keys)
    ):
        lines = "one line" if most == 1 else f"1 to {most} lines"
        raise SettingsError(
            f"{file} must hold {lines} of `{kind} ` and {2 * KEY_BYTES} hexadecimal digits; copy "
            "it again from where it was made, or remove it and make new keys with `shoal keys`"
        )
    return keys


def write_private_key(file: Path, seed: bytes) -> None:
    """Write a private key to a file that only its owner may read. Raises `OSError`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_secret(file, f"private {seed.hex()}\n".encode("ascii"), replace=True)


def write_public_keys(file: Path, keys: Iterable[bytes]) -> None:
    """Write public keys, the newest first. Raises `SettingsError` for more than `KEYS_MAX`, and
    `OSError`."""
    lines = [f"public {key.hex()}\n" for key in keys]
    if len(lines) > KEYS_MAX:
        raise SettingsError(
            f"{file} holds {KEYS_MAX} keys already; remove lines of keys that nobody signs with"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(lines)
    with atomic_file(file, replace=True) as temporary:
        temporary.write_text(text, encoding="ascii")
