"""Masks of counts: numbers that a client adds to its counts, and that only helpers can take away,
from sums alone.

A client and a helper agree on a secret (X25519, HKDF-SHA-256). From it follows a key for each
message, and AES in counter mode with that key gives the mask. The key of a message depends on
everything that names it: its round, its window, the plan it was counted under, and a nonce that
depends on the counts themselves. So two different vectors never share a mask, a message that is
made again after a kill has the same bytes, and one under another name is not unmasked.

A helper has one secret of 32 bytes. Two keys follow from it: one to agree with clients on, and one
(Ed25519) to sign its sums with, so that everybody can see who has published them. This module needs
the extra `masked`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

import numpy as np

from shoal.errors import MissingExtra, SettingsError
from shoal.kernels.arrays import Words32

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ModuleNotFoundError:
    raise MissingExtra("Masked counts", "masked") from None

SECRET_BYTES: Final = 32
PUBLIC_BYTES: Final = 32
"""bytes of a public key: a client's, and of each of the two of a helper"""
NONCE_BYTES: Final = 16
SIGNATURE_BYTES: Final = 64
_ZERO: Final = bytes(16)


def client_secret(noise_key: bytes, names: Iterable[str]) -> bytes:
    """The secret of a client's masks, which follows from its noise key.

    `names` are what it is for: federation, contract and model. Each has a secret of its own, so
    that neither public keys nor nonces show whether the same counts were published elsewhere.
    """
    # `person` keeps it apart from whatever else follows from the noise key.
    return hashlib.blake2b(
        _digests(names), key=noise_key, digest_size=SECRET_BYTES, person=b"shoal masks 1"
    ).digest()


def client_public(secret: bytes) -> bytes:
    """The public key (32 bytes) of a client's secret."""
    return bytes(_exchange_key(secret).public_key().public_bytes_raw())


def helper_public(secret: bytes) -> bytes:
    """The public key (64 bytes) of a helper: the part to agree on masks with, then the part that
    checks signatures."""
    agree = _exchange_key(secret)
    sign = _signing_key(secret)
    return bytes(agree.public_key().public_bytes_raw() + sign.public_key().public_bytes_raw())


def pair_key(secret: bytes, public: bytes, names: Iterable[str]) -> bytes:
    """The 32 bytes that a client and a helper share: the same from either's secret and the other's
    public key.

    `names` are all that they are for: federation, contract, model, helper, client, and the identity
    of the federation's log. So what was published in a log that was lost is never unmasked from
    another one. The two public keys count as well: several encodings of a point agree on the same
    secret (RFC 7748, section 7). Raises `SettingsError` for a point of low order, which agrees with
    every secret on zeros.
    """
    own = _exchange_key(secret)
    other = public[:PUBLIC_BYTES]
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise SettingsError(
            "a public key for masks is a point of low order, which protects nothing"
        ) from None
    # Sorted: both sides must derive the same secret, whichever of the two keys is their own.
    both = b"".join(sorted((own.public_key().public_bytes_raw(), other)))
    info = b"shoal mask 1" + both + _digests(names)
    return bytes(HKDF(hashes.SHA256(), SECRET_BYTES, b"shoal", info).derive(shared))


def mask(pair: bytes, name: bytes, cells: int) -> Words32:
    """The mask (cells,), modulo 2^32, of the message of this name between the two that share
    `pair`."""
    # HMAC-SHA-256, which every language has: helpers are also written by others.
    key = hmac.digest(pair, name, "sha256")
    # A counter from 0 is safe, as the key is of this one message: no stream is used twice.
    stream = Cipher(algorithms.AES(key), modes.CTR(_ZERO)).encryptor().update(bytes(4 * cells))
    # Little-endian on every machine: client and helper must compute the same words.
    return np.frombuffer(bytes(stream), dtype="<u4")


def noise_seed(secret: bytes, batch: bytes) -> bytes:
    """The seed (32 bytes) of a helper's noise for the batch with this digest.

    A secret function of the batch, so that the same question gets the same noise even without the
    checkpoint, and any other one independent noise.
    """
    return hmac.digest(secret, b"shoal noise 1" + batch, "sha256")


def synthetic_nonce(secret: bytes, name: bytes, counts: bytes) -> bytes:
    """The nonce (16 bytes) of a message: another one for other counts, the same for the same."""
    return hashlib.blake2b(name + counts, key=secret, digest_size=NONCE_BYTES).digest()


def sign(secret: bytes, content: bytes) -> bytes:
    """A helper's signature (64 bytes)."""
    return bytes(_signing_key(secret).sign(content))


def is_signed(public: bytes, signature: bytes, content: bytes) -> bool:
    """Whether the helper with this public key (64 bytes) has signed this content."""
    try:
        Ed25519PublicKey.from_public_bytes(public[PUBLIC_BYTES:]).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


def _digests(names: Iterable[str]) -> bytes:
    """Names of any length, so that no two lists of them are the same bytes."""
    return b"".join(hashlib.sha256(name.encode()).digest() for name in names)


def _exchange_key(secret: bytes) -> X25519PrivateKey:
    # A label for each of the two keys of one secret: neither tells anything of the other.
    return X25519PrivateKey.from_private_bytes(hashlib.sha256(b"shoal agree 1" + secret).digest())


def _signing_key(secret: bytes) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"shoal sign 1" + secret).digest())
