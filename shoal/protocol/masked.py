"""Messages of masked counts, and the batch of them that helpers unmask together.

A round is one question about one plan to all clients. Each answers with the counts of a window,
masked; the server closes the round and names the messages that belong to its batch; each helper
publishes the sum of their masks, less its own noise; and what is left of the sum of the messages is
the sum of the counts with all helpers' noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import ClassVar, Final, NamedTuple

import numpy as np

from shoal.errors import MessageRejected
from shoal.kernels.arrays import Ints, Words32
from shoal.protocol.checks import is_count, is_name, require
from shoal.protocol.lease import ROUND_KEY
from shoal.protocol.messages import CLOSE_ROUND, MASKED_COUNTS, ROUND_PLAN, Envelope, ModelMessage

PLAN_BYTES: Final = 16
"""bytes of the digest of a plan that travel"""
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 16
BATCH_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
CELLS_MAX: Final = 1_000_000
WINDOW_MAX: Final = 2**32 - 1
"""number of a client's last window"""
CLIENTS_MAX: Final = 100_000
"""most messages of a batch"""
_CELL: Final = 4
_OFFSET: Final = np.dtype("<u8")
# Five bytes as two numbers: NumPy takes trailing zeros of bytes for padding, so that a digest that
# ends in 0 would not be found.
_ANSWERED: Final = np.dtype([("low", "<u4"), ("high", "u1"), ("window", "<u4")])
"""the first 5 bytes of a client's digest, and a window: all clients of a batch fit into one record
"""
ANSWERED_MAX: Final = CLIENTS_MAX
"""most clients of an open round; others learn that a window was taken by sending it again"""


def _is_bytes(value: object, size: int) -> bool:
    return isinstance(value, bytes) and len(value) == size


def _are_cells(value: object) -> bool:
    """Whether these are the bytes of one number a cell."""
    if not isinstance(value, bytes):
        return False
    return 0 < len(value) <= _CELL * CELLS_MAX and len(value) % _CELL == 0


@dataclass(frozen=True)
class MaskedCounts(ModelMessage):
    """The masked counts of one window of one client. It is a record of the topic of updates."""

    TYPE: ClassVar[str] = MASKED_COUNTS

    client: str
    key: bytes
    """public key of the client for masks"""
    round: int
    window: int
    """number of the client's window, from 0. It is unmasked once, whatever rounds it was sent for
    """
    places: int
    """readings of the window, those that are not counted included"""
    plan: bytes
    """digest of the plan it was counted under"""
    nonce: bytes
    """a secret function of the counts and all else that names the mask, so that no two vectors have
    one mask"""
    counts: bytes
    """4 bytes a cell, little-endian: the counts and the masks of all helpers, added up modulo 2^32
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        require(is_name(self.client), "malformed", "client")
        require(_is_bytes(self.key, KEY_BYTES), "malformed", "key")
        require(is_count(self.round, 1), "malformed", "round")
        require(is_count(self.window) and self.window <= WINDOW_MAX, "malformed", "window")
        require(is_count(self.places, 1), "malformed", "places")
        require(_is_bytes(self.plan, PLAN_BYTES), "malformed", "plan")
        require(_is_bytes(self.nonce, NONCE_BYTES), "malformed", "nonce")
        require(_are_cells(self.counts), "malformed", "counts")

    @property
    def cells(self) -> int:
        """How many counts it has."""
        return len(self.counts) // _CELL

    @property
    def entry(self) -> BatchEntry:
        """All that a helper needs of it."""
        return BatchEntry(self.client, self.window, self.places, self.key, self.nonce)


class BatchEntry(NamedTuple):
    """One message of a batch, without its counts."""

    client: str
    window: int
    places: int
    key: bytes
    nonce: bytes

    def name(self, round_: int, plan: bytes) -> bytes:
        """The name of its mask."""
        return message_name(round_, self.window, plan, self.nonce)


def log_name(identity: bytes) -> str:
    """The identity of the log of updates, as it is among the names of masks."""
    return f"log {identity.hex()}"


def message_name(round_: int, window: int, plan: bytes, nonce: bytes = b"") -> bytes:
    """The name of a message of masked counts, under which its mask and its nonce are made."""
    return (
        # Every part before the last has a fixed length, so that no two names read alike.
        b"shoal masked 1"
        + round_.to_bytes(8, "little")
        + window.to_bytes(8, "little")
        + plan
        + nonce
    )


@dataclass(frozen=True)
class CloseRound(ModelMessage):
    """The end of a round, by the server: which messages are its batch. It is a record of the topic
    of updates."""

    TYPE: ClassVar[str] = CLOSE_ROUND

    round: int
    plan: bytes
    """digest of the plan of the batch"""
    cells: int
    """counts of each message"""
    partition: int
    """partition of the messages"""
    offsets: bytes
    """8 bytes for each message, little-endian: its offset in this partition, ascending"""
    batch: bytes
    """digest of the batch, see `batch_digest`"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(is_count(self.round, 1), "malformed", "round")
        require(
            _is_bytes(self.plan, PLAN_BYTES) and _is_bytes(self.batch, BATCH_BYTES),
            "malformed",
            "batch",
        )
        require(is_count(self.cells, 1) and self.cells <= CELLS_MAX, "malformed", "cells")
        require(is_count(self.partition), "malformed", "partition")
        require(isinstance(self.offsets, bytes), "malformed", "offsets")
        size = len(self.offsets)
        fits = 0 < size <= _OFFSET.itemsize * CLIENTS_MAX
        require(fits and size % _OFFSET.itemsize == 0, "malformed", "offsets")
        # Ascending, so that no message is in a batch twice.
        places = self.places
        require(all(before < after for before, after in pairwise(places)), "malformed", "offsets")

    @property
    def places(self) -> list[int]:
        """The offsets of its messages."""
        offsets: list[int] = np.frombuffer(self.offsets, dtype=_OFFSET).tolist()
        return offsets


@dataclass(frozen=True)
class RoundPlan(ModelMessage):
    """The plan that a region counts its next round under, by its server. It is a record of the
    topic of updates.

    So what the region's clients have counted, and what it passes on, follows from its log alone.
    """

    TYPE: ClassVar[str] = ROUND_PLAN

    round: int
    snapshot: bytes
    """the upstream federation's snapshot that has the plan, as it was published; empty for the plan
    of the round before"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(is_count(self.round, 1), "malformed", "round")
        require(isinstance(self.snapshot, bytes), "malformed", "snapshot")


def packed_offsets(offsets: Iterable[int]) -> bytes:
    """Offsets as `CloseRound` has them."""
    return np.array(sorted(offsets), dtype=_OFFSET).tobytes()


def batch_digest(
    names: tuple[str, str, str], round_: int, plan: bytes, cells: int, entries: Iterable[BatchEntry]
) -> bytes:
    """32 bytes that name a batch exactly.

    `names` are those of federation, contract and model. A helper signs this digest, and the server
    takes sums of one digest alone: helpers that were shown other batches cannot be mixed.
    """
    digest = hashlib.sha256(b"shoal batch 1")
    # Digests of names, which have one length: joined as text, two lists of names could read alike.
    for part in names:
        digest.update(hashlib.sha256(part.encode()).digest())
    digest.update(round_.to_bytes(8, "little") + plan + cells.to_bytes(8, "little"))
    for entry in sorted(entries):
        numbers = entry.window.to_bytes(8, "little") + entry.places.to_bytes(8, "little")
        digest.update(
            hashlib.sha256(entry.client.encode()).digest() + numbers + entry.key + entry.nonce
        )
    return digest.digest()


@dataclass(frozen=True)
class HelperSum(ModelMessage):
    """What a helper publishes for one round, once. It is a record of the topic of updates."""

    TYPE: ClassVar[str] = "helper_sum"

    helper: str
    """name of the helper in the contract"""
    round: int
    batch: bytes
    """digest of the batch that it is for"""
    total: bytes
    """4 bytes a cell, little-endian: the sum of the masks of the batch, less the helper's noise,
    modulo 2^32"""
    signature: bytes
    """Ed25519, over all other fields (see `signed_content`)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(is_name(self.helper), "malformed", "helper")
        require(is_count(self.round, 1), "malformed", "round")
        require(_is_bytes(self.batch, BATCH_BYTES), "malformed", "batch")
        require(_are_cells(self.total), "malformed", "total")
        require(_is_bytes(self.signature, SIGNATURE_BYTES), "malformed", "signature")

    @property
    def signed_content(self) -> bytes:
        """What the signature is over: all other fields.

        So a sum cannot be passed off as one of another round or federation.
        """
        names = (self.federation, self.contract, self.model, self.helper)
        named = b"".join(hashlib.sha256(name.encode()).digest() for name in names)
        return (
            b"shoal helper sum 1"
            + named
            + self.round.to_bytes(8, "little")
            + self.batch
            + self.total
        )


@dataclass(frozen=True)
class OpenRound(ModelMessage):
    """The round that is open. It is a record of the topic of snapshots, whose newest one counts."""

    TYPE: ClassVar[str] = "open_round"

    round: int
    plan: bytes
    """digest of the plan of the snapshot that clients count under; of the one without readings
    before the first"""
    answered: bytes
    """9 bytes a client: the first 5 of the SHA-256 digest of its name, and 4 for its newest window
    that a batch has had, little-endian. Of the 100000 clients that are new or have sent such a
    window again last"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(is_count(self.round, 1), "malformed", "round")
        require(_is_bytes(self.plan, PLAN_BYTES), "malformed", "plan")
        whole = isinstance(self.answered, bytes) and len(self.answered) % _ANSWERED.itemsize == 0
        require(whole, "malformed", "answered")

    @property
    def record_key(self) -> bytes:
        """The key of the record."""
        return f"{ROUND_KEY}{self.model}".encode()

    def answered_window(self, client: str) -> int:
        """Number of the client's newest window that a batch has had; -1 for none."""
        table = np.frombuffer(self.answered, dtype=_ANSWERED)
        low, high = _short(client)
        own = table["window"][(table["low"] == low) & (table["high"] == high)]
        # The newest are first: of two clients whose digests begin alike the newer one counts, and
        # the other sends again.
        if not len(own):
            return -1
        return int(own[0])


def packed_answered(answered: Mapping[str, int]) -> bytes:
    """client -> number of its newest window that a batch has had, the newest last, as `OpenRound`
    has it."""
    newest = list(islice(reversed(list(answered)), ANSWERED_MAX))
    table = np.zeros(len(newest), dtype=_ANSWERED)
    for row, client in enumerate(newest):
        table[row] = *_short(client), min(answered[client], WINDOW_MAX)
    return table.tobytes()


def _short(client: str) -> tuple[int, int]:
    digest = hashlib.sha256(client.encode()).digest()
    return int.from_bytes(digest[:4], "little"), digest[4]


def words_of(value: bytes) -> Words32:
    """The numbers (cells,) modulo 2^32 in a message."""
    # In the order of bytes of this machine, and as a copy: a message cannot be added to.
    return np.frombuffer(value, dtype="<u4").astype(np.uint32)


def bytes_of(words: Words32) -> bytes:
    """The same as a message has them."""
    return words.astype("<u4").tobytes()


def signed_counts(words: Words32) -> Ints:
    """Numbers (cells,) modulo 2^32 -> those from -2^31 to 2^31 - 1 that they stand for."""
    # Two's complement: with noise a sum of counts can be below 0.
    return words.astype(np.uint32).view(np.int32).astype(np.int64)


def check_envelope(message: ModelMessage, federation: str, contract: str) -> None:
    """Raises `MessageRejected` unless the message is of this federation and contract."""
    if message.federation != federation:
        raise MessageRejected("federation", f"its federation is not {federation}")
    if message.contract != contract:
        raise MessageRejected("contract", f"its contract is not {contract}")


MASKED_MESSAGES: Final[tuple[type[Envelope], ...]] = (
    MaskedCounts,
    CloseRound,
    HelperSum,
    RoundPlan,
    OpenRound,
)
