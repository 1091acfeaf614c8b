"""Labels all readings of a client again, by the newest snapshots."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing

from shoal.client_nodes.bootstrap import CHECKPOINT, NOISE_KEY, open_checkpoint
from shoal.client_nodes.intake import positions_in
from shoal.client_nodes.labelling.labeller import Labeller
from shoal.client_nodes.labelling.waiting import sequences_of
from shoal.client_nodes.learner import saved_sequence_halves
from shoal.client_nodes.node import LABELS_PART, required_values
from shoal.client_nodes.own_updates import OwnUpdates
from shoal.client_nodes.publisher import all_headers, make_signer
from shoal.client_nodes.snapshots import Snapshots
from shoal.config.base import check_client_name
from shoal.config.settings import Config
from shoal.errors import (
    CheckpointInUse,
    SettingsError,
)
from shoal.privacy import load_or_create_key
from shoal.protocol.published_contract import contract_in
from shoal.protocol.signatures import read_client_key
from shoal.protocol.topics import (
    READINGS,
    ensure_topics,
)
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import Checkpoint, Outbox, check_required
from shoal.runtime.logs import check_separate, open_client_log, open_federation_log
from shoal.transports.base import Log, beginning


def relabel_readings(config: Config, client: str) -> dict[str, int | None]:
    """model -> labels written; None for a model without a snapshot that knows a cluster.

    The labels are made in pieces, each saved as a client saves its own: what a kill leaves undone,
    the client does when it is started, or the next call. Raises `SettingsError` for a client that
    has never run, `CheckpointInUse` while it runs, and as a client does.
    """
    path = config.client.folder / check_client_name(client) / CHECKPOINT
    if not path.exists():
        raise SettingsError(
            f"{path} is missing: no client {client} has run here; check --name and [client] folder"
        )
    with ExitStack() as stack:
        try:
            checkpoint = stack.enter_context(open_checkpoint(config, client))
        except CheckpointInUse:
            raise CheckpointInUse(
                f"{path}: in use by another process; stop client {client}, relabel, then start it"
                " again"
            ) from None
        readings = stack.enter_context(closing(open_client_log(config, client)))
        log = stack.enter_context(closing(open_federation_log(config)))
        check_separate(readings, log)
        ensure_topics(log, config.contract, config.log, config.client.publish_labels)
        return _relabel(config, client, checkpoint, readings, log)


def _relabel(
    config: Config, client: str, checkpoint: Checkpoint, readings: Log, log: Log
) -> dict[str, int | None]:
    contract = contract_in(log, config.resolved)
    state = checkpoint.load()
    if state is None:
        return dict.fromkeys(contract.models, 0)
    check_required(state, required_values(contract.digest, readings.identity(READINGS)))
    snapshots = Snapshots(config.contract, Validator(contract), log)
    key = load_or_create_key(config.client.folder / client / NOISE_KEY)
    halves = saved_sequence_halves(contract, state["learner"])
    sequences = sequences_of(contract, halves, key, client, readings.identity(READINGS))
    labeller = Labeller(contract, client, config.client, snapshots, readings, sequences)
    labeller.ensure_topics()
    if LABELS_PART in state:
        labeller.restore(state[LABELS_PART])
    labeller.follow()
    can = labeller.label_again(positions_in(state["intake"]), beginning(readings, READINGS))
    # The outbox may still have updates of the client: they are published as the client publishes
    # them.
    signer = make_signer(read_client_key(config.client.signing_key_file, client))
    outbox = Outbox(
        checkpoint, log, all_headers(OwnUpdates(log, contract, client, key).headers, signer)
    )
    labels = dict.fromkeys(can, 0)
    while labeller.has_work:
        done = labeller.label_backlog()
        # Before the state: a kill in between writes these labels once more, and leaves out none.
        readings.flush()
        for model, number in done.labels_of.items():
            labels[model] += number
        outbox.store({**state, LABELS_PART: labeller.state()}, done.records, time.time())
        if config.client.publish_labels:
            outbox.publish_pending()
    return {model: number if can[model] else None for model, number in labels.items()}
