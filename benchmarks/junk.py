"""How long junk in the topic of updates delays the honest update behind it: a server that keeps a
copy of each rejected record beside one with the default of `rejected_kept_per_s`; and a helper of
masked counts that is sent messages under made-up names.

Both servers read the same log in one process, so that their ratio does not depend on the machine.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, quick_option, table, write
from shoal.config.settings import load_config
from shoal.helper_node.bootstrap import open_helper
from shoal.privacy.masks import helper_public
from shoal.protocol.masked import NONCE_BYTES, PLAN_BYTES, MaskedCounts
from shoal.protocol.messages import ClusterName
from shoal.protocol.topics import ensure_topics
from shoal.runtime.helper_state import make_helper_state
from shoal.runtime.service import resumed
from shoal.telemetry.events import start_logging
from shoal.transports import open_log
from tests.federation_text import federation_text
from tests.server_node.server_fixture import ServerFixture, updates_of

HELPER_CELLS: Final = 250
"""counts of a message of masked counts"""

Junk = Callable[[ServerFixture, int], bytes]


def garbage(_: ServerFixture, __: int) -> bytes:
    """No MessagePack at all."""
    return b"\xc1" * 200


def unknown(site: ServerFixture, number: int) -> bytes:
    """A name for a cluster that there is not."""
    return named(site, 10**6 + number, number)


def valid(site: ServerFixture, number: int) -> bytes:
    """A name for a known cluster, by any writer of the topic: such requests are not signed."""
    return named(site, 0, number)


def named(site: ServerFixture, cluster: int, number: int) -> bytes:
    """A request to name a cluster."""
    contract = site.contract
    request = ClusterName(
        contract.federation, contract.digest, "clusters", cluster, "x", made_at=1e9 + number
    )
    return request.encode()


KINDS: Final[dict[str, Junk]] = {
    "bytes that are no message": garbage,
    "names for clusters that there are not": unknown,
    "names for a cluster that there is": valid,
}


def delay_of(kind: Junk, records: int, kept_per_s: float) -> float:
    """Seconds of processor time that a server takes from the first of these records to the end of
    the honest update behind them."""
    with tempfile.TemporaryDirectory(prefix="shoal-junk-") as folder:
        site = ServerFixture(Path(folder), rejected_kept_per_s=kept_per_s)
        site.send(*updates_of(site, ("attic", 1), ("attic", 2)))
        site.run()
        junk = [kind(site, number) for number in range(records)]
        site.publish(*[("clusters", value, ClusterName.headers()) for value in junk])
        site.send(*updates_of(site, ("attic", 3)))
        with site.server() as node:
            began = time.process_time()
            while node.step():
                pass
            return time.process_time() - began


def update_s(updates: int) -> float:
    """The same of one honest update."""
    with tempfile.TemporaryDirectory(prefix="shoal-junk-") as folder:
        site = ServerFixture(Path(folder))
        site.send(*updates_of(site, *(("attic", number + 1) for number in range(updates))))
        with site.server() as node:
            began = time.process_time()
            while node.step():
                pass
            return (time.process_time() - began) / updates


def helper_s(messages: int) -> float:
    """Seconds of processor time in which a helper reads messages of one round."""
    with tempfile.TemporaryDirectory(prefix="shoal-junk-") as name:
        folder = Path(name)
        secret = bytes(range(32))
        public = helper_public(secret)
        file = folder / "federation.toml"
        file.write_text(
            federation_text(
                "junk",
                features=[{"name": "x", "low": 0, "high": 1}],
                privacy={
                    "mode": "masked",
                    "unit": "client",
                    "epsilon": 1,
                    "window_readings": 400,
                    "batch_min": 3,
                    "batch_s": 10,
                    "window_s": 1000,
                    "helpers": [
                        {"name": "h0", "key": public.hex()},
                        {"name": "h1", "key": helper_public(bytes(32)).hex()},
                    ],
                },
                models=[{"name": "clusters", "algorithm": "density_tree"}],
                log={"address": "sqlite:federation.db"},
            ),
            encoding="utf-8",
        )
        config = load_config(file)
        contract = config.contract
        with closing(open_log(config.log)) as log:
            ensure_topics(log, contract, config.log)
            for number in range(messages):
                message = MaskedCounts(
                    contract.federation,
                    contract.digest,
                    "clusters",
                    f"made-up-{number}",
                    bytes(32),
                    1,
                    0,
                    1,
                    bytes(PLAN_BYTES),
                    bytes(NONCE_BYTES),
                    bytes(4 * HELPER_CELLS),
                )
                key = contract.update_key("clusters")
                log.publish(contract.updates_topic, message.encode(), key, message.headers())
            log.flush()
        make_helper_state(folder / "h0", public)
        with resumed(open_helper(config, secret, folder / "h0")) as node:
            began = time.process_time()
            while node.step():
                pass
            return time.process_time() - began


def measure(records: int, messages: int) -> dict[str, Any]:
    """All figures."""
    honest = update_s(200)
    servers = []
    for name, kind in KINDS.items():
        all_kept = delay_of(kind, records, 0.0)
        default = delay_of(kind, records, 10.0)
        servers.append({"junk": name, "all_kept_s": all_kept, "default_s": default})
    helper = [{"messages": number, "s": helper_s(number)} for number in (messages // 4, messages)]
    return {"records": records, "honest_update_s": honest, "servers": servers, "helper": helper}


def markdown(result: dict[str, Any]) -> str:
    """The page."""
    records = result["records"]
    honest = result["honest_update_s"]
    lines = []
    for server in result["servers"]:
        all_kept = server["all_kept_s"]
        default = server["default_s"]
        each = default / records
        lines.append(
            [
                server["junk"],
                f"{all_kept:.2f}",
                f"{default:.2f}",
                f"{default / all_kept:.2f}",
                f"{each / honest:.2f}",
            ]
        )
    head = [
        f"{records:,} records of junk",
        "s, a copy of each kept",
        "s, by default",
        "ratio",
        "one beside an honest update",
    ]
    helper = [
        [f"{row['messages']:,}", f"{row['s']:.1f}", f"{1e6 * row['s'] / row['messages']:.0f}"]
        for row in result["helper"]
    ]
    kept = ["messages for one round", "s", "µs each"]
    return (
        f"# Junk\n\nMade by `{result['made_by']}`; do not edit. Processor time from the first"
        " record of junk to the end of the honest update behind it, and of a helper of masked"
        " counts that is sent messages under made-up names.\n\n"
        f"{table(head, lines)}\n{table(kept, helper)}\n{one_line(result['machine'])}\n"
    )


@click.command(context_settings={"max_content_width": 100})
@quick_option("A hundredth of the records")
@out_option("junk")
def main(quick: bool, out: Path) -> None:
    """Measure how long junk delays what is honest."""
    records = 1000 if quick else 30_000
    messages = 2000 if quick else 200_000
    # Events are made as a service makes them, and read by none.
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        start_logging("server", as_json=True, stream=nowhere)
        figures = measure(records, messages)
    made_by = "python -m benchmarks junk" + " --quick" * quick
    result = {"made_by": made_by, **figures, "machine": facts(("shoal", "msgpack"))}
    write(out, "junk", result, markdown(result))
    click.echo(f"written to {out}/junk.json and {out}/junk.md")


if __name__ == "__main__":
    main()
