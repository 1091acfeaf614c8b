"""Labels all readings that a stopped client's log still has once more, by the newest snapshots."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing

from client_nodes.bootstrap import CHECKPOINT, NOISE_KEY, open_checkpoint
from client_nodes.labelling.labeller import Labeller
from client_nodes.own_updates import OwnUpdates, all_headers
from client_nodes.publisher import make_signer, read_signing_key
from client_nodes.snapshots import Snapshots
from client_nodes.state import check_state
from shoal.config.base import check_client_name
from shoal.config.settings import Config
from shoal.errors import CheckpointInUse, SettingsError
from shoal.privacy import load_or_create_key
from shoal.protocol.topics import READINGS, ensure_topics
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.outbox import Outbox
from shoal.runtime.readings_log import check_separate, open_client_log
from shoal.runtime.signed_snapshots import open_federation_log
from shoal.transports.base import Log, beginning


def relabel(config: Config, client: str) -> dict[str, int | None]:
    """model -> labels written; None for a model without a snapshot that knows a cluster.

    The labels are made in pieces, each saved as a client saves its own: what a kill leaves undone, the client does when
    it is started, or the next call. Raises `SettingsError` for a client that has never run, `CheckpointInUse` while it
    runs, and as a client does.
    """
    path = config.client.folder / check_client_name(client) / CHECKPOINT
    if not path.exists():
        raise SettingsError(f"{path} is missing: no client {client} has run here; check --name and [client] folder")
    with ExitStack() as stack:
        try:
            checkpoint = stack.enter_context(open_checkpoint(config, client))
        except CheckpointInUse:
            raise CheckpointInUse(
                f"{path}: in use by another process; stop client {client}, relabel, then start it again"
            ) from None
        readings = stack.enter_context(closing(open_client_log(config, client)))
        log = stack.enter_context(closing(open_federation_log(config)))
        check_separate(readings, log)
        ensure_topics(log, config.contract, config.log, config.client.publish_labels)
        return _relabel(config, client, checkpoint, readings, log)


def _relabel(config: Config, client: str, checkpoint: Checkpoint, readings: Log, log: Log) -> dict[str, int | None]:
    contract = config.contract
    state = checkpoint.load()
    if state is None:
        return {model.name: 0 for model in contract.models}
    check_state(state, contract, readings.identity(READINGS))
    labeller = Labeller(contract, client, config.client, Snapshots(contract, Validator(contract), log), readings)
    labeller.ensure_topics()
    if state["labels"] is not None:
        labeller.restore(state["labels"])
    labeller.follow()
    can = labeller.label_again(dict(state["positions"]), beginning(readings, READINGS))
    # The outbox may still have updates of the client: they are published as the client publishes them.
    key = load_or_create_key(config.client.folder / client / NOISE_KEY)
    signer = make_signer(read_signing_key(config.client, client))
    outbox = Outbox(checkpoint, log, all_headers(OwnUpdates(log, contract, client, key).headers, signer))
    labels = dict.fromkeys(can, 0)
    while labeller.has_work:
        done = labeller.label_backlog()
        readings.flush()
        for model, number in done.labels_of.items():
            labels[model] += number
        outbox.store({**state, "labels": labeller.state()}, done.records, time.time())
        if config.client.publish_labels:
            outbox.publish_pending()
    return {model: number if can[model] else None for model, number in labels.items()}
