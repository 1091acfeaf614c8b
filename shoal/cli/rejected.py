"""`shoal rejected`: look at the messages that were set aside, and put one back when its reason is gone."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import click

from shoal.config.settings import Config, load_config
from shoal.errors import InvalidData, LogError
from shoal.protocol.topics import ensure_topics
from shoal.transports import open_log
from shoal.transports.base import Log, Record, latest

BYTES_SHOWN = 64
ORIGINAL = "original."

F = TypeVar("F", bound=Callable[..., object])


def _in_federation(command: F) -> F:
    path = click.Path(path_type=Path, dir_okay=False)
    return click.option("--config", "file", type=path, required=True, help="The federation file.")(command)


@click.group()
def rejected() -> None:
    """Messages that failed a check at the server's border."""


@rejected.command("list")
@_in_federation
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each.")
def list_(file: Path, as_json: bool) -> None:
    """List what was set aside: where it stood, why, and its size."""
    with _opened(file) as (config, log):
        for origin, record in _all(config, log).items():
            said = {"origin": origin, "reason": _header(record, "reason"), "bytes": len(record.value or b"")}
            if as_json:
                click.echo(json.dumps(said | {"detail": _header(record, "detail")}))
            else:
                click.echo(f"{origin}  {said['reason']}  {said['bytes']} bytes  {_header(record, 'detail')}")


@rejected.command()
@_in_federation
@click.argument("origin")
@click.option("--raw", is_flag=True, help="Write the original bytes, and nothing else, to standard output.")
def show(file: Path, origin: str, raw: bool) -> None:
    """Show one message: ORIGIN is TOPIC/PARTITION/OFFSET, as listed."""
    with _opened(file) as (config, log):
        record = _one(config, log, origin)
    if raw:
        sys.stdout.buffer.write(record.value or b"")
        return
    for name, value in record.headers:
        click.echo(f"{name}: {_text(value)}")
    value = record.value or b""
    click.echo(f"value: {len(value)} bytes, {value[:BYTES_SHOWN].hex(' ')}{' ...' if len(value) > BYTES_SHOWN else ''}")


@rejected.command()
@_in_federation
@click.argument("origin")
def requeue(file: Path, origin: str) -> None:
    """Publish one message again, as it was, at the end of the topic it came from, and take it off the list.

    For a message that would pass today: the server was too old, or had another federation file. It is checked again.
    """
    with _opened(file) as (config, log):
        record = _one(config, log, origin)
        known = dict(record.headers)
        if "original_headers_cut" in known:
            raise InvalidData(f"{origin}: its headers were too large to be kept whole, so it cannot be sent as it was")
        topic, partition = _place(config, origin)
        headers = tuple((n.removeprefix(ORIGINAL), value) for n, value in record.headers if n.startswith(ORIGINAL))
        log.publish(topic, record.value, known.get("key") or None, headers, partition)
        # In this order: a failure between the two leaves it on the list, and a repeated update changes nothing.
        log.flush()
        log.publish(config.contract.rejected_topic, None, record.key)
        log.flush()
    click.echo(f"{origin}: published again")


@contextmanager
def _opened(file: Path) -> Iterator[tuple[Config, Log]]:
    config = load_config(file)
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        yield config, log


def _all(config: Config, log: Log) -> dict[str, Record]:
    """origin -> what stands there, oldest first."""
    found = latest(log, config.contract.rejected_topic)
    return {_text(key): found[key] for key in sorted(found, key=lambda key: found[key].offset)}


def _one(config: Config, log: Log, origin: str) -> Record:
    found = _all(config, log).get(origin)
    if found is None:
        raise LogError(f"{origin}: not among the rejected; `shoal rejected list` shows what is")
    return found


def _place(config: Config, origin: str) -> tuple[str, int]:
    """The topic and the partition it came from. Whoever may write to the list could name any: only updates go back."""
    topic = config.contract.updates_topic
    place = re.fullmatch(rf"{re.escape(topic)}/([0-9]{{1,9}})/[0-9]+", origin)
    if place is None:
        raise InvalidData(f"{origin}: no server has set this aside, as it does not come from {topic}; it is not sent")
    return topic, int(place[1])


def _header(record: Record, name: str) -> str:
    return _text(dict(record.headers).get(name, b""))


def _text(value: bytes) -> str:
    """As text that can do nothing to a terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in value.decode(errors="backslashreplace"))
