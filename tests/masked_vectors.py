"""The test vectors of masked counts, for implementers in any language: `python -m
tests.masked_vectors` writes them into tests/vectors/masked.

Each group has a function that makes its cases and one that checks a case: what a case states
follows from its inputs. Bytes are in hexadecimal digits.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from shoal.config.resolved import ResolvedContract
from shoal.config.settings import load_config
from shoal.errors import MessageRejected, SettingsError
from shoal.helper_node.bootstrap import open_helper
from shoal.helper_node.model_sums import ModelSums, Refused
from shoal.helper_node.terms import helper_terms
from shoal.privacy.gaussian import gaussian_noise
from shoal.privacy.masks import (
    client_public,
    client_secret,
    helper_public,
    is_signed,
    mask,
    noise_seed,
    pair_key,
    sign,
    synthetic_nonce,
)
from shoal.protocol.masked import (
    MASKED_MESSAGES,
    BatchEntry,
    CloseRound,
    HelperSum,
    MaskedCounts,
    OpenRound,
    batch_digest,
    bytes_of,
    log_name,
    message_name,
    packed_answered,
    packed_offsets,
)
from shoal.protocol.topics import ensure_topics
from shoal.runtime.helper_state import make_helper_state
from shoal.runtime.service import resumed
from shoal.server_node.ingest.model_round import unmasked
from shoal.transports.base import Record, beginning, partition_of
from shoal.transports.sqlite.log import SqliteLog
from tests.house.masked_federation import FILE

FOLDER: Final = Path(__file__).parent / "vectors" / "masked"
Case = dict[str, Any]
TYPES: Final = {kind.TYPE: kind for kind in MASKED_MESSAGES}
LOG: Final = bytes(range(16))
"""identity of the log of all cases"""
NAMES: Final = ("plant", "0123456789abcdef0123456789abcdef", "clusters")
PLAN: Final = bytes.fromhex("00112233445566778899aabbccddeeff")
LOW_ORDER: Final = (
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    2**255 - 20,
    2**255 - 19,
    2**255 - 18,
)
"""the points of low order on Curve25519 (RFC 7748, section 6.1)"""


def secret_of(name: str) -> bytes:
    """A secret that anybody can compute: of the vectors alone."""
    return hashlib.sha256(f"shoal test vector {name}".encode()).digest()


def named(names: tuple[str, ...]) -> Case:
    """Names of a case by what they name."""
    titles = ("federation", "contract", "model", "helper", "client")
    return dict(zip(titles, names, strict=False))


def make_helpers() -> list[Case]:
    cases = []
    for number in range(3):
        secret = secret_of(f"helper {number}")
        cases.append({"secret": secret.hex(), "key": helper_public(secret).hex()})
    return cases


def check_helper(case: Case) -> bool:
    return helper_public(bytes.fromhex(case["secret"])).hex() == str(case["key"])


def make_clients() -> list[Case]:
    cases = []
    for names in (NAMES, ("plant", NAMES[1], "other")):
        noise_key = secret_of("noise key")
        secret = client_secret(noise_key, names)
        values = {"secret": secret.hex(), "key": client_public(secret).hex()}
        cases.append({"noise_key": noise_key.hex(), **named(names), **values})
    return cases


def check_client(case: Case) -> bool:
    names = (case["federation"], case["contract"], case["model"])
    secret = client_secret(bytes.fromhex(case["noise_key"]), names)
    return (secret.hex(), client_public(secret).hex()) == (case["secret"], case["key"])


def make_pairs() -> list[Case]:
    cases = []
    for number, log in ((0, LOG), (1, LOG), (1, bytes(16))):
        helper = secret_of(f"helper {number}")
        client = secret_of("client")
        names = (*NAMES, f"h{number}", "c0")
        case = {
            **named(names),
            "log": log.hex(),
            "helper_secret": helper.hex(),
            "helper_key": helper_public(helper).hex(),
            "client_secret": client.hex(),
            "client_key": client_public(client).hex(),
            "pair": pair_key(client, helper_public(helper), (*names, log_name(log))).hex(),
        }
        cases.append(case)
    return cases


def check_pair(case: Case) -> bool:
    titles = ("federation", "contract", "model", "helper", "client")
    names = [case[title] for title in titles]
    names.append(log_name(bytes.fromhex(case["log"])))
    client = bytes.fromhex(case["client_secret"])
    helper = bytes.fromhex(case["helper_secret"])
    by_client = pair_key(client, bytes.fromhex(case["helper_key"]), names)
    by_helper = pair_key(helper, bytes.fromhex(case["client_key"]), names)
    keys = (helper_public(helper).hex(), client_public(client).hex())
    are_theirs = keys == (case["helper_key"], case["client_key"])
    return are_theirs and by_client.hex() == by_helper.hex() == case["pair"]


def make_low_order() -> list[Case]:
    return [{"client_key": point.to_bytes(32, "little").hex()} for point in LOW_ORDER]


def check_low_order(case: Case) -> bool:
    """Such a key agrees on nothing; a helper takes 32 zeros for its pair."""
    try:
        pair_key(secret_of("helper 0"), bytes.fromhex(case["client_key"]), NAMES)
    except SettingsError:
        return True
    return False


def make_names() -> list[Case]:
    cases = []
    for round_, window, nonce in ((1, 0, bytes(range(16))), (2**40, 2**32 - 1, b"n" * 16)):
        name = message_name(round_, window, PLAN, nonce)
        numbers = {"round": round_, "window": window}
        cases.append({**numbers, "plan": PLAN.hex(), "nonce": nonce.hex(), "name": name.hex()})
    return cases


def check_name(case: Case) -> bool:
    plan = bytes.fromhex(case["plan"])
    nonce = bytes.fromhex(case["nonce"])
    return message_name(case["round"], case["window"], plan, nonce).hex() == str(case["name"])


def make_nonces() -> list[Case]:
    cases = []
    for counts in ([0, 1, 2, 3], [0, 1, 2, 4]):
        secret = secret_of("client")
        name = message_name(1, 0, PLAN)
        nonce = synthetic_nonce(secret, name, np.array(counts, dtype="<i8").tobytes())
        inputs = {"client_secret": secret.hex(), "name": name.hex(), "counts": counts}
        cases.append({**inputs, "nonce": nonce.hex()})
    return cases


def check_nonce(case: Case) -> bool:
    counts = np.array(case["counts"], dtype="<i8").tobytes()
    secret = bytes.fromhex(case["client_secret"])
    return synthetic_nonce(secret, bytes.fromhex(case["name"]), counts).hex() == str(case["nonce"])


def make_masks() -> list[Case]:
    cases = []
    for cells in (1, 5, 33):
        pair = secret_of("pair")
        name = message_name(1, cells, PLAN, bytes(16))
        words = mask(pair, name, cells)
        inputs = {"pair": pair.hex(), "name": name.hex(), "cells": cells}
        cases.append({**inputs, "mask": bytes_of(words).hex()})
    return cases


def check_mask(case: Case) -> bool:
    words = mask(bytes.fromhex(case["pair"]), bytes.fromhex(case["name"]), case["cells"])
    return bytes_of(words).hex() == str(case["mask"])


def some_entries() -> list[BatchEntry]:
    """Entries in an order that is not that of the digest."""
    entries = []
    for number, client in enumerate(("c2", "a-client", "c10", "c2-b")):
        key = client_public(secret_of(client))
        entries.append(BatchEntry(client, number, 40 + number, key, secret_of(client)[:16]))
    return entries


def make_batches() -> list[Case]:
    cases = []
    for size in (1, 4):
        entries = some_entries()[:size]
        table = [
            {
                "client": entry.client,
                "window": entry.window,
                "places": entry.places,
                "key": entry.key.hex(),
                "nonce": entry.nonce.hex(),
            }
            for entry in entries
        ]
        digest = batch_digest(NAMES, 3, PLAN, 8, entries)
        inputs = {**named(NAMES), "round": 3, "plan": PLAN.hex(), "cells": 8, "entries": table}
        cases.append({**inputs, "batch": digest.hex()})
    return cases


def check_batch(case: Case) -> bool:
    names = (case["federation"], case["contract"], case["model"])
    entries = [
        BatchEntry(
            entry["client"],
            entry["window"],
            entry["places"],
            bytes.fromhex(entry["key"]),
            bytes.fromhex(entry["nonce"]),
        )
        for entry in case["entries"]
    ]
    plan = bytes.fromhex(case["plan"])
    return batch_digest(names, case["round"], plan, case["cells"], entries).hex() == case["batch"]


def make_signatures() -> list[Case]:
    cases = []
    for total in (bytes(4), bytes(range(40))):
        secret = secret_of("helper 0")
        batch = secret_of("batch")
        message = HelperSum(*NAMES, "h0", 3, batch, total, bytes(64))
        inputs = {**named((*NAMES, "h0")), "round": 3, "batch": batch.hex(), "total": total.hex()}
        outputs = {
            "content": message.signed_content.hex(),
            "signature": sign(secret, message.signed_content).hex(),
        }
        keys = {"secret": secret.hex(), "key": helper_public(secret)[32:].hex()}
        cases.append({**inputs, **keys, **outputs})
    return cases


def check_signature(case: Case) -> bool:
    names = (case["federation"], case["contract"], case["model"], case["helper"])
    batch = bytes.fromhex(case["batch"])
    signature = bytes.fromhex(case["signature"])
    message = HelperSum(*names, case["round"], batch, bytes.fromhex(case["total"]), signature)
    content = message.signed_content
    key = bytes(32) + bytes.fromhex(case["key"])
    is_made = sign(bytes.fromhex(case["secret"]), content) == signature
    return is_made and content.hex() == case["content"] and is_signed(key, signature, content)


def plain(message: Any) -> Case:
    """The fields of a message; bytes as {"hex": digits}."""
    values = {}
    for field in fields(message):
        value = getattr(message, field.name)
        values[field.name] = {"hex": value.hex()} if isinstance(value, bytes) else value
    return values


def some_messages() -> list[Any]:
    entry = some_entries()[0]
    counts = bytes(range(32))
    batch = secret_of("batch")
    return [
        MaskedCounts(
            *NAMES, entry.client, entry.key, 3, entry.window, 40, PLAN, entry.nonce, counts
        ),
        CloseRound(*NAMES, 300, PLAN, 8, 0, packed_offsets([7, 8, 70_000]), batch),
        HelperSum(*NAMES, "h0", 3, batch, bytes(range(200)) * 2, bytes(64)),
        OpenRound(*NAMES, 3, PLAN, packed_answered({"c0": 4, "c1": 2**32 - 1})),
    ]


def make_messages() -> list[Case]:
    cases = []
    for message in some_messages():
        headers = {name: value.decode() for name, value in message.headers()}
        values = {"fields": plain(message), "value": message.encode().hex()}
        cases.append({"type": message.TYPE, "headers": headers, **values})
    return cases


def check_message(case: Case) -> bool:
    kind = TYPES[case["type"]]
    headers = tuple((name, value.encode()) for name, value in case["headers"].items())
    message = kind.decode(bytes.fromhex(case["value"]), headers)
    return plain(message) == case["fields"] and message.encode().hex() == case["value"]


def make_partitions() -> list[Case]:
    cases = []
    for partitions in (1, 4, 1000):
        key = f"{NAMES[0]}/{NAMES[2]}"
        partition = partition_of(key.encode(), partitions)
        cases.append({"key": key, "partitions": partitions, "partition": partition})
    return cases


def check_partition(case: Case) -> bool:
    return partition_of(case["key"].encode(), case["partitions"]) == case["partition"]


def make_malformed() -> list[Case]:
    """Messages that no receiver takes, each but for one field as one that is taken."""
    counts, close, total, opened = some_messages()
    changes: list[tuple[Any, Case]] = [
        (counts, {"key": counts.key[:-1]}),
        (counts, {"nonce": counts.nonce + b"\0"}),
        (counts, {"plan": b""}),
        (counts, {"counts": counts.counts[:-1]}),
        (counts, {"counts": b""}),
        (counts, {"window": 2**32}),
        (counts, {"window": -1}),
        (counts, {"round": 0}),
        (counts, {"places": 0}),
        (counts, {"client": "Client"}),
        (close, {"offsets": close.offsets[:-1]}),
        (close, {"offsets": close.offsets[8:] + close.offsets[:8]}),
        (close, {"offsets": close.offsets[:8] * 2}),
        (close, {"cells": 0}),
        (close, {"batch": bytes(31)}),
        (total, {"signature": bytes(63)}),
        (total, {"total": bytes(3)}),
        (opened, {"answered": bytes(8)}),
    ]
    cases = []
    for message, change in changes:
        table = plain(message) | plain_of(change)
        (name,) = change
        cases.append({"type": message.TYPE, "field": name, "value": packed(table).hex()})
    return cases


def plain_of(change: Case) -> Case:
    """Changed fields as `plain` has them."""
    values = {}
    for name, value in change.items():
        values[name] = {"hex": value.hex()} if isinstance(value, bytes) else value
    return values


def packed(table: Mapping[str, Any]) -> bytes:
    """The bytes of a message with these fields, whatever they are."""
    from shoal.protocol.codec import pack  # noqa: PLC0415 - beside what it is for

    values = {}
    for name, value in table.items():
        values[name] = bytes.fromhex(value["hex"]) if isinstance(value, dict) else value
    return pack(values)


def check_malformed(case: Case) -> bool:
    kind = TYPES[case["type"]]
    try:
        kind.decode(bytes.fromhex(case["value"]), kind.headers())
    except MessageRejected as why:
        return (why.reason, why.detail) == ("malformed", case["field"])
    return False


def make_seeds() -> list[Case]:
    secret = secret_of("helper 0")
    cases = []
    for title in ("batch", "another"):
        batch = secret_of(title)
        seed = noise_seed(secret, batch)
        cases.append({"secret": secret.hex(), "batch": batch.hex(), "seed": seed.hex()})
    return cases


def check_seed(case: Case) -> bool:
    seed = noise_seed(bytes.fromhex(case["secret"]), bytes.fromhex(case["batch"]))
    return seed.hex() == str(case["seed"])


VARIANCES: Final = (1, 5, 10_000, 490_000)


def table_of(variance: int) -> Case:
    """The table of the distribution function: its size, its first entries and a digest of all."""
    below = gaussian_noise(variance).below
    first = [int(entry) for entry in below[:12]]
    digest = hashlib.sha256(below.astype("<u8").tobytes()).hexdigest()
    # As text: a number above 2^53 is rounded by many readers of JSON.
    texts = [str(entry) for entry in first]
    return {"variance": variance, "entries": len(below), "first": texts, "sha256": digest}


def make_tables() -> list[Case]:
    return [table_of(variance) for variance in VARIANCES]


def check_table(case: Case) -> bool:
    return table_of(case["variance"]) == case


def make_draws() -> list[Case]:
    cases = []
    for variance in VARIANCES:
        seed = secret_of(f"seed {variance}")
        noise = gaussian_noise(variance).draw(seed, 40)
        cases.append({"variance": variance, "seed": seed.hex(), "noise": noise.tolist()})
    return cases


def check_draw(case: Case) -> bool:
    noise = gaussian_noise(case["variance"])
    drawn = noise.draw(bytes.fromhex(case["seed"]), len(case["noise"]))
    return bool(drawn.tolist() == case["noise"])


def make_words() -> list[Case]:
    """Words on an entry of the table, which further bits decide, and beside one."""
    cases = []
    for variance in (5, 10_000):
        noise = gaussian_noise(variance)
        for place, entry in ((0, 0), (3, 2), (1, 5), (2, len(noise.below) - 1)):
            for aside in (-1, 0, 1):
                word = min(int(noise.below[entry]) + aside, 2**63 - 1) * 2 + place % 2
                seed = secret_of(f"word {variance} {entry}")
                words = np.zeros(place + 1, dtype=np.uint64)
                words[place] = word
                value = int(noise.of_words(words, seed)[place])
                inputs = {"variance": variance, "word": str(word), "cell": place}
                cases.append({**inputs, "seed": seed.hex(), "noise": value})
    return cases


def check_word(case: Case) -> bool:
    words = np.zeros(case["cell"] + 1, dtype=np.uint64)
    words[case["cell"]] = int(case["word"])
    noise = gaussian_noise(case["variance"])
    return int(noise.of_words(words, bytes.fromhex(case["seed"]))[-1]) == case["noise"]


def make_refusals() -> list[Case]:
    """Questions to a helper that has unmasked window 4 of client c0 in round 2, and its answers."""
    messages = {}
    for offset, (client, window) in enumerate((("c0", 5), ("c1", 0), ("c2", 7), ("c3", 1))):
        messages[offset] = masked_message(client, window)
    messages[4] = masked_message("c1", 1)
    messages[5] = masked_message("c0", 4)
    messages[6] = replace(masked_message("c4", 0), plan=bytes(16))
    messages[7] = replace(masked_message("c5", 0), round=4)
    messages[8] = replace(masked_message("c6", 0), counts=bytes(16))
    questions: list[tuple[str, list[int], Case]] = [
        ("", [0, 1, 2], {}),
        ("", [0, 1, 2, 3], {}),
        ("its batch has fewer than 3 clients", [0, 1], {}),
        ("its batch has two messages of one client", [0, 1, 2, 4], {}),
        ("its batch has a window that was unmasked before", [1, 2, 5], {}),
        (NOT_THERE, [0, 1, 6], {}),
        (NOT_THERE, [0, 1, 7], {}),
        (NOT_THERE, [0, 1, 8], {}),
        (NOT_THERE, [0, 1, 9], {}),
        (NOT_THERE, [0, 1, 2], {"partition": 1}),
        (NOT_THERE, [0, 1, 2], {"round": 4}),
        ("another batch of this round was answered before", [0, 1, 2], {"round": 2}),
        ("old", [0, 1, 2], {"round": 1}),
        ("its digest is not that of its batch", [0, 1, 2], {"batch": bytes(32)}),
        ("its digest is not that of its batch", [0, 1, 2], {"model": "other"}),
    ]
    asked = []
    for reason, offsets, change in questions:
        entries = [messages[offset].entry for offset in offsets if offset in messages]
        digest = batch_digest(NAMES, 3, PLAN, 8, entries)
        close = CloseRound(*NAMES, 3, PLAN, 8, 0, packed_offsets(offsets), digest)
        asked.append({"close": replace(close, **change).encode().hex(), "reason": reason})
    values = [message.encode().hex() for message in messages.values()]
    state = {"batch_min": 3, "round": 2, "unmasked": {"c0": 4}}
    return [{**state, "messages": values, "questions": asked}]


NOT_THERE: Final = "its batch has messages that are not in the log, or not of this round and plan"


def masked_message(client: str, window: int) -> MaskedCounts:
    """A message of round 3."""
    key = client_public(secret_of(client))
    nonce = secret_of(f"{client} {window}")[:16]
    return MaskedCounts(*NAMES, client, key, 3, window, 40, PLAN, nonce, bytes(32))


def check_refusals(case: Case) -> bool:
    """The messages have the offsets 0, 1, 2, ... in partition 0."""
    sums = ModelSums(unmasked=dict(case["unmasked"]), round=case["round"])
    for offset, value in enumerate(case["messages"]):
        headers = MaskedCounts.headers()
        message = MaskedCounts.decode(bytes.fromhex(value), headers)
        sums.keep(message, Record("updates", 0, offset, 0, None, b"", headers))
    return all(
        answer_to(sums, question["close"], case["batch_min"]) == question["reason"]
        for question in case["questions"]
    )


def answer_to(sums: ModelSums, value: str, batch_min: int) -> str:
    """Why a question is refused; empty where it is answered."""
    close = CloseRound.decode(bytes.fromhex(value), CloseRound.headers())
    try:
        sums.checked_batch(close, batch_min)
    except Refused as why:
        return str(why)
    return ""


def round_file(folder: Path) -> ResolvedContract:
    """The file of the federation of a whole round, in a folder."""
    helpers = []
    for number in range(2):
        key = helper_public(secret_of(f"helper {number}")).hex()
        helpers.append(f'[[privacy.helpers]]\nname = "h{number}"\nkey = "{key}"')
    text = FILE.format(
        name="plant",
        epsilon=4.0,
        window=40,
        batch_min=3,
        privacy="",
        helpers="\n".join(helpers),
        address="sqlite:federation.db",
    )
    file = folder / "federation.toml"
    file.write_text(text, encoding="utf-8")
    return load_config(file).resolved


def make_rounds() -> list[Case]:
    """Two helpers and three clients: what each publishes, and what is left."""
    terms = round_terms()
    names = (terms["federation"], terms["contract"], "clusters")
    cells = 12
    clients = []
    entries = []
    counted = ((1, 0, 0, 3, 0, 0, 7, 0, 0, 0, 2, 1), (0,) * cells, tuple(range(cells)))
    for number, counts in enumerate(counted):
        client = {"client": f"c{number}", "noise_key": secret_of(f"noise key {number}").hex()}
        case = {**client, "window": number, "places": 40, "counts": list(counts)}
        message = client_message(names, 1, case)
        clients.append({**case, "value": message.encode().hex()})
        entries.append(message.entry)
    digest = batch_digest(names, 1, PLAN, cells, entries)
    close = CloseRound(*names, 1, PLAN, cells, 0, packed_offsets(range(len(clients))), digest)
    case = {
        "terms": terms,
        "log": LOG.hex(),
        "plan": PLAN.hex(),
        "clients": clients,
        "close": close.encode().hex(),
        "helpers": [],
        "unmasked": [],
    }
    for number in range(2):
        secret = secret_of(f"helper {number}")
        case["helpers"].append({"name": f"h{number}", "secret": secret.hex(), "value": ""})
    for helper, answer in zip(case["helpers"], answers_of(asked_in(case)), strict=True):
        helper["value"] = answer
    case["unmasked"] = left_of(case)
    return [case]


def client_message(names: tuple[str, str, str], round_: int, case: Case) -> MaskedCounts:
    """The message of a client of a round, for the helpers h0 and h1."""
    secret = client_secret(bytes.fromhex(case["noise_key"]), names)
    counts = np.array(case["counts"], dtype=np.int64)
    name = message_name(round_, case["window"], PLAN)
    nonce = synthetic_nonce(secret, name, counts.astype("<i8").tobytes())
    total = counts.astype(np.uint32)
    for number in range(2):
        own = (*names, f"h{number}", case["client"], log_name(LOG))
        pair = pair_key(secret, helper_public(secret_of(f"helper {number}")), own)
        total += mask(pair, message_name(round_, case["window"], PLAN, nonce), len(counts))
    key = client_public(secret)
    places = case["places"]
    window = case["window"]
    return MaskedCounts(
        *names, case["client"], key, round_, window, places, PLAN, nonce, bytes_of(total)
    )


class Asked(NamedTuple):
    """What the helpers of a round are given, as hexadecimal digits."""

    log: str
    messages: tuple[str, ...]
    close: str
    helpers: tuple[tuple[str, str], ...]
    """name and secret of each"""


def asked_in(case: Case) -> Asked:
    messages = tuple(client["value"] for client in case["clients"])
    helpers = tuple((helper["name"], helper["secret"]) for helper in case["helpers"])
    return Asked(case["log"], messages, case["close"], helpers)


@cache
def answers_of(asked: Asked) -> list[str]:
    """What the helpers of a round publish: real ones, on a log with its records."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        contract = round_file(folder).contract
        config = load_config(folder / "federation.toml")
        topic = contract.updates_topic
        records = [(value, MaskedCounts.headers()) for value in asked.messages]
        records.append((asked.close, CloseRound.headers()))
        file = folder / "federation.db"
        with closing(SqliteLog(file, new_identity=lambda: bytes.fromhex(asked.log))) as log:
            ensure_topics(log, contract, config.log)
            for value, headers in records:
                log.publish(topic, bytes.fromhex(value), contract.update_key("clusters"), headers)
            log.flush()
            for helper, digits in asked.helpers:
                secret = bytes.fromhex(digits)
                make_helper_state(folder / helper, helper_public(secret))
                with resumed(open_helper(config, secret, folder / helper)) as node:
                    while node.step():
                        pass
            found, _ = log.read(topic, beginning(log, topic))
    sums = [record for record in found if HelperSum.headers()[0] in record.headers]
    return [(record.value or b"").hex() for record in sums]


def left_of(case: Case) -> list[int]:
    """The sum of the counts with the noise of all helpers."""
    messages = []
    for client in case["clients"]:
        value = bytes.fromhex(client["value"])
        message = MaskedCounts.decode(value, MaskedCounts.headers())
        messages.append(np.frombuffer(message.counts, dtype="<u4"))
    sums = []
    for helper in case["helpers"]:
        answer = HelperSum.decode(bytes.fromhex(helper["value"]), HelperSum.headers())
        sums.append(np.frombuffer(answer.total, dtype="<u4"))
    left: list[int] = unmasked(messages, sums).tolist()
    return left


@cache
def round_terms() -> Case:
    """What the command for other programs prints of the contract of a whole round."""
    with tempfile.TemporaryDirectory() as name:
        return helper_terms(round_file(Path(name)))


def check_round(case: Case) -> bool:
    terms = round_terms()
    if terms != case["terms"] or case["plan"] != PLAN.hex():
        return False
    names = (terms["federation"], terms["contract"], terms["models"][0])
    for client in case["clients"]:
        if client_message(names, 1, client).encode().hex() != client["value"]:
            return False
    helpers = {}
    for helper in case["helpers"]:
        helpers[helper["name"]] = helper_public(bytes.fromhex(helper["secret"])).hex()
    if helpers != terms["helpers"] or left_of(case) != case["unmasked"]:
        return False
    return answers_of(asked_in(case)) == [helper["value"] for helper in case["helpers"]]


class Group(NamedTuple):
    """A group of cases."""

    make: Callable[[], list[Case]]
    holds: Callable[[Case], bool]
    outputs: tuple[str, ...] = ()
    """fields whose change must be noticed; empty: all of them"""


GROUPS: Final[dict[str, dict[str, Group]]] = {
    "keys": {
        "helpers": Group(make_helpers, check_helper),
        "clients": Group(make_clients, check_client),
        "pairs": Group(make_pairs, check_pair),
        "low_order": Group(make_low_order, check_low_order),
    },
    "masks": {
        "names": Group(make_names, check_name),
        "nonces": Group(make_nonces, check_nonce),
        "masks": Group(make_masks, check_mask),
    },
    "digests": {
        "batches": Group(make_batches, check_batch),
        "signatures": Group(make_signatures, check_signature),
    },
    "messages": {
        "messages": Group(make_messages, check_message),
        "partitions": Group(make_partitions, check_partition, ("partition",)),
        "malformed": Group(make_malformed, check_malformed, ("type", "field")),
    },
    "noise": {
        "seeds": Group(make_seeds, check_seed),
        "tables": Group(make_tables, check_table),
        "draws": Group(make_draws, check_draw, ("seed", "noise")),
        "words": Group(make_words, check_word, ("noise",)),
    },
    "refusals": {"refusals": Group(make_refusals, check_refusals, ("reason",))},
    "rounds": {"rounds": Group(make_rounds, check_round)},
}
"""file -> name of a group -> the group"""


def text_of(file: str) -> str:
    """The text of a file of vectors."""
    cases = {name: group.make() for name, group in GROUPS[file].items()}
    return json.dumps(cases, indent=1) + "\n"


def read(file: str) -> dict[str, list[Case]]:
    """The cases of a file by group."""
    groups: dict[str, list[Case]] = json.loads((FOLDER / f"{file}.json").read_text())
    return groups


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for title in GROUPS:
        (FOLDER / f"{title}.json").write_text(text_of(title), encoding="utf-8")
