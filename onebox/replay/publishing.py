"""Publishes what a replay has made to the log of the federation, for its server to absorb."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from functools import lru_cache

from client_nodes.publisher import make_signer
from onebox.replay.results import ReplayedRecord
from shoal.config.settings import Config
from shoal.protocol.messages import Update
from shoal.protocol.signatures import client_file, read_keys
from shoal.protocol.topics import ensure_topics
from shoal.runtime.checkpoint import OutboxRecord
from shoal.runtime.signed_snapshots import open_federation_log
from shoal.transports.base import Headers

FLUSH_EVERY = 1000


def publish(config: Config, records: Iterable[ReplayedRecord]) -> int:
    """Publish records in their order, signed as their clients would; returns how many.

    A server drops the updates that it has already, so publishing again after a kill changes nothing. Raises as the log
    does, and `SettingsError` when a client's signing key cannot be read.
    """
    signer = lru_cache(maxsize=None)(lambda client: _signer(config, client))
    count = 0
    with closing(open_federation_log(config)) as log:
        ensure_topics(log, config.contract, config.log)
        for record in records:
            message = OutboxRecord(config.contract.updates_topic, record.value, record.model.encode(), Update.headers())
            headers = message.headers + signer(record.client)(message)
            log.publish(message.topic, message.value, message.key, headers)
            count += 1
            if count % FLUSH_EVERY == 0:
                log.flush()
        log.flush()
    return count


def _signer(config: Config, client: str) -> Callable[[OutboxRecord], Headers]:
    template = config.client.signing_key_file
    return make_signer(None if template is None else read_keys(client_file(template, client))[0])
