"""What masked counts cost a client and a helper: processor time of their own code, bytes of a
message, memory."""

from __future__ import annotations

import secrets
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from shoal.client_nodes.masked_windows import MaskedModel, PendingWindow
from shoal.config.settings import Config, load_config
from shoal.helper_node.node import HelperNode
from shoal.privacy.masks import client_public, helper_public
from shoal.protocol.masked import PLAN_BYTES, BatchEntry, CloseRound, MaskedCounts, OpenRound
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.logs import open_federation_log
from shoal.simulation.masked import MaskedFederation, SumBudget
from shoal.transports.base import Record

FEATURES: Final = 8
LEAVES: Final = 6
WINDOW: Final = 400
HELPERS: Final = 2
MANY_CLIENTS: Final = 100_000
FILE: Final = """
[federation]
name = "cost"
{features}
[privacy]
mode = "masked"
unit = "client"
epsilon = 1
{helpers}
[[models]]
name = "clusters"
algorithm = "density_tree"
[log]
address = "sqlite:federation.db"
"""


def costs(clients: int, cells: int, turns: int) -> list[dict[str, Any]]:
    """Each cost: what, the figure, its unit and the goal; None for no goal."""
    with tempfile.TemporaryDirectory(prefix="shoal-cost-") as folder:
        keys = [secrets.token_bytes(32) for _ in range(HELPERS)]
        config = _config(Path(folder), keys)
        message, client_ms = _client(config, turns)
        with (
            Checkpoint(Path(folder) / "helper.db", "helper") as checkpoint,
            closing(open_federation_log(config)) as log,
        ):
            helper = HelperNode(config.resolved, keys[0], log, checkpoint)
            first_ms, helper_ms = _helper(helper, config, clients, cells, turns)
            bytes_kept = _memory(helper, config, MANY_CLIENTS * clients // 1000)
    allowed = 4 * message.cells + 300
    size = len(message.encode()) + sum(len(name) + len(value) for name, value in message.headers())
    return [
        {
            "what": f"message of {message.cells} counts",
            "figure": size,
            "goal": allowed,
            "unit": "bytes",
        },
        {
            "what": "client: count, cut off and mask a window",
            "figure": client_ms,
            "goal": 1.0,
            "unit": "ms",
        },
        {
            "what": f"helper: a round of {clients} clients and {cells} counts",
            "figure": helper_ms,
            "goal": 100.0,
            "unit": "ms",
        },
        {
            "what": "helper: its first round, with the agreement on keys",
            "figure": first_ms,
            "goal": None,
            "unit": "ms",
        },
        {
            "what": f"helper: memory for {MANY_CLIENTS * clients // 1000} clients",
            "figure": bytes_kept / 1e6,
            "goal": None,
            "unit": "MB",
        },
    ]


def _config(folder: Path, keys: list[bytes]) -> Config:
    features = "\n".join(f'[[features]]\nname = "f{i}"\nlow = 0\nhigh = 1' for i in range(FEATURES))
    helpers = "\n".join(
        f'[[privacy.helpers]]\nname = "h{i}"\nkey = "{helper_public(key).hex()}"'
        for i, key in enumerate(keys)
    )
    file = folder / "cost.toml"
    file.write_text(FILE.format(features=features, helpers=helpers), encoding="utf-8")
    return load_config(file)


def _processor_ms(do: Callable[[], object]) -> float:
    began = time.process_time()
    do()
    return 1000.0 * (time.process_time() - began)


def _client(config: Config, turns: int) -> tuple[MaskedCounts, float]:
    """A message of a window under a tree with several leaves, and milliseconds to make it."""
    generator = np.random.default_rng(0)
    centres = generator.uniform(0.1, 0.9, (LEAVES, FEATURES))
    options = {"grow_readings": 1, "leaves_max": LEAVES}
    federation = MaskedFederation(options, FEATURES, 50, None, SumBudget(None), WINDOW)
    kinds = generator.integers(LEAVES, size=50 * WINDOW * 4)
    rows = np.clip(centres[kinds] + generator.normal(0.0, 0.03, (len(kinds), FEATURES)), 0.0, 1.0)
    federation.learn(rows, None, is_last=True)
    contract = config.resolved
    model = MaskedModel(contract, contract.counted[0], "c0", secrets.token_bytes(32), bytes(16))
    model._counter.adopt(federation.server.snapshot())
    plan = model._counter.plan_digest[:PLAN_BYTES]
    window = PendingWindow(rows[:WINDOW], np.ones(WINDOW, dtype=np.bool_), 0)
    opened = [
        OpenRound(contract.federation, contract.digest, model.name, 1 + turn, plan, b"")
        for turn in range(200)
    ]
    message = model.make_message(window, opened[0])
    took = [
        _processor_ms(lambda: [model.make_message(window, entry) for entry in opened]) / len(opened)
        for _ in range(turns)
    ]
    return message, median(took)


def _entries(clients: int) -> list[BatchEntry]:
    return [
        BatchEntry(
            f"client-{number}",
            0,
            WINDOW,
            client_public(secrets.token_bytes(32)),
            secrets.token_bytes(16),
        )
        for number in range(clients)
    ]


def _helper(
    helper: HelperNode, config: Config, clients: int, cells: int, turns: int
) -> tuple[float, float]:
    """Milliseconds of a helper's sum, with the agreement on keys and without."""
    entries = _entries(clients)
    contract = config.resolved
    close = CloseRound(
        contract.federation,
        contract.digest,
        "clusters",
        1,
        bytes(PLAN_BYTES),
        cells,
        0,
        bytes(8),
        bytes(32),
    )
    first = _processor_ms(lambda: helper._sum(close, entries))
    later = [replace(close, round=2 + turn) for turn in range(turns)]
    return first, median(_processor_ms(partial(helper._sum, closed, entries)) for closed in later)


def _memory(helper: HelperNode, config: Config, clients: int) -> int:
    """Bytes that a helper keeps of this many clients: their messages of a round, what it has
    unmasked, their keys."""
    contract = config.resolved
    public = client_public(secrets.token_bytes(32))
    tracemalloc.start()
    for number in range(clients):
        message = MaskedCounts(
            contract.federation,
            contract.digest,
            "clusters",
            client=f"client-{number}",
            key=public[:28] + number.to_bytes(4, "little"),
            round=1,
            window=0,
            places=WINDOW,
            plan=bytes(PLAN_BYTES),
            nonce=secrets.token_bytes(16),
            counts=bytes(4),
        )
        key = contract.contract.update_key("clusters")
        record = Record("cost", 0, number, 0, key, message.encode(), message.headers())
        helper._process(record)
    model = helper._models["clusters"]
    assert len(model.sent) == clients
    entries = [message.entry for message in model.sent.values()]
    close = CloseRound(
        contract.federation,
        contract.digest,
        "clusters",
        1,
        bytes(PLAN_BYTES),
        1,
        0,
        bytes(8),
        bytes(32),
    )
    helper._sum(close, entries)
    model.unmasked |= {entry.client: entry.window for entry in entries}
    del entries
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept
