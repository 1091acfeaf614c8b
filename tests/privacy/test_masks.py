"""Masks of counts: what a pair agrees on, what its key is bound to, and that no two vectors share a
mask."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chisquare

from shoal.errors import SettingsError
from shoal.privacy.masks import (
    client_public,
    client_secret,
    helper_public,
    is_signed,
    mask,
    pair_key,
    sign,
    synthetic_nonce,
)
from shoal.protocol.masked import HelperSum, message_name

NOISE_KEY = b"n" * 32
HELPER = b"h" * 32
NAMES = ("plant", "contract", "clusters", "h0", "c0")
SECRET = client_secret(NOISE_KEY, NAMES[:3])
PLAN = bytes(16)


def test_client_and_helper_agree_on_a_key_that_is_bound_to_every_name_and_to_both_keys() -> None:
    pair = pair_key(SECRET, helper_public(HELPER), NAMES)
    assert pair_key(HELPER, client_public(SECRET), NAMES) == pair
    others = [
        pair_key(SECRET, helper_public(HELPER), (*NAMES[:i], "x", *NAMES[i + 1 :]))
        for i in range(5)
    ]
    others.append(pair_key(SECRET, helper_public(HELPER), ("plantc", "ontract", *NAMES[2:])))
    others.append(pair_key(SECRET, helper_public(b"i" * 32), NAMES))
    # The highest bit of a key does not count in X25519: it agrees on the same secret, but is
    # another key.
    public = client_public(SECRET)
    others.append(pair_key(HELPER, public[:-1] + bytes([public[-1] ^ 128]), NAMES))
    assert len({pair, *others}) == 1 + len(others)


@pytest.mark.parametrize(
    "point",
    [
        0,
        1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
        2**255 - 20,
        2**255 - 19,
        2**255 - 18,
    ],
)
def test_points_of_low_order_are_refused(point: int) -> None:
    with pytest.raises(SettingsError, match="low order"):
        pair_key(HELPER, point.to_bytes(32, "little"), NAMES)


def test_federations_contracts_and_models_have_secrets_of_their_own() -> None:
    names = [
        NAMES[:3],
        ("other", *NAMES[1:3]),
        ("plant", "another", "clusters"),
        ("plant", "contract", "more"),
    ]
    secrets = [client_secret(NOISE_KEY, name) for name in names]
    counts = np.arange(8).tobytes()
    assert len({client_public(name) for name in secrets}) == len(names), (
        "public keys do not show whose they are"
    )
    nonces = {synthetic_nonce(name, message_name(1, 0, PLAN), counts) for name in secrets}
    assert len(nonces) == len(names), "nonces do not show that counts are the same elsewhere"


def test_other_counts_rounds_windows_or_plans_have_other_masks_and_a_repeat_the_same() -> None:
    pair = pair_key(SECRET, helper_public(HELPER), NAMES)

    def mask_of(round_: int, window: int, plan: bytes, counts: bytes) -> bytes:
        nonce = synthetic_nonce(SECRET, message_name(round_, window, plan), counts)
        return mask(pair, message_name(round_, window, plan, nonce), 8).tobytes()

    named = [
        (1, 0, PLAN, b"a"),
        (1, 0, PLAN, b"b"),
        (2, 0, PLAN, b"a"),
        (1, 1, PLAN, b"a"),
        (1, 0, b"p" * 16, b"a"),
    ]
    masks = [mask_of(*name) for name in named]
    assert len(set(masks)) == len(masks)
    assert [mask_of(*name) for name in named] == masks


def test_masks_of_many_messages_are_uniform_and_what_two_share_is_nothing() -> None:
    pair = pair_key(SECRET, helper_public(HELPER), NAMES)
    masks = np.array([mask(pair, message_name(1, window, PLAN), 500) for window in range(40)])
    assert chisquare(np.bincount(masks.view(np.uint8).ravel(), minlength=256)).pvalue > 1e-6
    differences = (masks[1:] - masks[:-1]).view(np.uint8).ravel()
    assert chisquare(np.bincount(differences, minlength=256)).pvalue > 1e-6


def test_a_signature_covers_every_field_of_a_sum() -> None:
    own = HelperSum("plant", "contract", "clusters", "h0", 3, bytes(32), bytes(8), bytes(64))
    other = HelperSum("site", "renewed", "more", "h1", 4, b"b" * 32, b"t" * 8, bytes(64))
    signature = sign(HELPER, own.signed_content)
    assert is_signed(helper_public(HELPER), signature, own.signed_content)
    parts = ("federation", "contract", "model", "helper", "round", "batch", "total")
    for part in parts:
        changed = replace(own, **{part: getattr(other, part)})
        assert not is_signed(helper_public(HELPER), signature, changed.signed_content), part
