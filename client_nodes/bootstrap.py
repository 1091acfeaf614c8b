"""Opens what a client runs on: logs, noise key, checkpoint and ledger."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from shoal.client_nodes.budget import check_ledger_counts
from shoal.client_nodes.node import ClientNode, ClientResources
from shoal.client_nodes.releases import Releases
from shoal.client_nodes.snapshots import read_published
from shoal.config.base import check_client_name
from shoal.config.settings import Config
from shoal.errors import InvalidState, SettingsError
from shoal.privacy import load_or_create_key
from shoal.privacy.ledger import LEDGER, Ledger, LedgersFile, NoteRow, account
from shoal.protocol.messages import Snapshot
from shoal.protocol.signatures import read_client_key
from shoal.protocol.topics import ensure_local_topics, ensure_topics
from shoal.runtime.checkpoint import Checkpoint, CheckpointFile
from shoal.runtime.logs import check_separate, open_client_log, open_federation_log
from shoal.telemetry.slow_files import noting_slowness
from shoal.transports.base import Log, Record

if TYPE_CHECKING:
    from shoal.telemetry.metrics import ClientMetrics

CHECKPOINT: Final = "checkpoint.db"
"""file of the checkpoint in the client's folder"""
HOST_CHECKPOINTS: Final = "checkpoints.db"
"""file of the checkpoints of all clients of a host that takes its readings from one log, in the
folder of the clients"""
NOISE_KEY: Final = "noise.key"
"""file of the noise key there"""
RESTORED: Final = "restored.txt"
"""file there that `shoal restore` makes: the time of the backup. What was published since is not
known"""
INCOMPLETE: Final = (
    "{present} is present but {missing} is missing: restore it, or start under a new client name."
    " Without it the same readings would get noise and be learnt a second time"
)


class OfHost(NamedTuple):
    """What a client of a host shares with the others; the host closes it."""

    readings: Log
    """the log of its readings, which are in one file with those of all clients"""
    checkpoints: CheckpointFile
    log: Log
    """the federation's"""
    decode: Callable[[Record], Snapshot]
    """decodes a snapshot, once for all clients"""
    store_interval_s: float
    """most seconds of learning that a client repeats after a kill"""
    noise_key: Callable[[], bytes | None] = lambda: None
    """the client's noise key, where it is derived from the site's; None: a random one of its own"""
    note_charge: NoteRow | None = None
    """gets what its ledger is charged, where that moves with it"""
    ledgers: LedgersFile | None = None
    """the file with the ledgers of all clients; None where nothing is counted"""


@contextmanager
def open_client(
    config: Config,
    client: str,
    metrics: ClientMetrics | None = None,
    clock: Callable[[], float] = time.time,
    *,
    needs_contract: bool = False,
    of_host: OfHost | None = None,
) -> Iterator[ClientNode]:
    """Open a client: its folder, its logs, and the contract that it agrees on.

    `resumed` resumes it and closes all, but for what is `of_host`: where a host has the readings
    and checkpoints of all its clients in one file each. Raises `ContractDiffers`; with
    `needs_contract`
    `ContractMissing` where a new client finds no contract that the server has published;
    `InvalidState` when only one of checkpoint and noise key is there, or neither and the readings
    log says that it was released; and as the logs do.
    """
    folder = config.client.folder / check_client_name(client)
    contract = config.resolved
    if config.host.client and of_host is None:
        raise SettingsError(
            "[host] client says that the readings of all clients come in one log: run them with"
            " `shoal host`, or leave it out where each client has a log of its own"
        )
    check_not_restored(folder)
    with ExitStack() as stack:
        shared = None
        of_site = None
        if of_host is not None:
            shared = of_host.checkpoints
            of_site = of_host.readings
        checkpoint = stack.enter_context(open_checkpoint(config, client, shared))
        signing_key = read_client_key(config.client.signing_key_file, client)
        readings = stack.enter_context(closing(open_client_log(config, client, of_site)))
        if of_host is None:
            log = stack.enter_context(closing(open_federation_log(config)))
        else:
            log = of_host.log
        check_separate(readings, log)
        ensure_topics(log, config.contract, config.log, config.client.publish_labels)
        ensure_local_topics(readings, config.client)
        # Under the checkpoint's lock, and after all that a first start may have to wait for: a key
        # that is made here has marked nothing yet, which a later start would not know. So the
        # contract is compared before it is made.
        key_is_new = not (folder / NOISE_KEY).exists()
        owner = checkpoint_owner(config, client)
        ledgers = None if of_host is None else of_host.ledgers
        ledger_file, has_ledger = _ledger_of(config, client, ledgers)
        check_ledger_counts(ledger_file, contract.mode, has_ledger=has_ledger)
        releases = Releases(readings, owner) if contract.mode.formal else None
        published = read_published(log, config.contract)
        contract = published.agreed(contract, required=key_is_new and needs_contract)
        if key_is_new and releases is not None:
            releases.check_new(has_ledger=has_ledger)
        derived = None if of_host is None else of_host.noise_key()
        syncs = ledgers is None or not ledgers.is_copy
        noise_key = load_or_create_key(folder / NOISE_KEY, derived, syncs=syncs)
        ledger = None
        if contract.mode.formal:
            ledger = stack.enter_context(_open_ledger(config, client, noise_key, of_host))
        resources = ClientResources(
            readings=readings,
            checkpoint=checkpoint,
            noise_key=noise_key,
            signing_key=signing_key,
            noise_key_is_new=key_is_new,
            ledger=ledger,
            releases=releases,
            published=published,
        )
        yield ClientNode(
            contract,
            client,
            config.client,
            _shared(resources, of_host),
            log,
            metrics,
            clock,
            config.log.update_bytes_max,
        )


def _ledger_of(config: Config, client: str, ledgers: LedgersFile | None) -> tuple[Path, bool]:
    """The file with the ledger of a client, and whether it has one."""
    file = config.readings_folder / client / LEDGER
    if ledgers is None:
        return file, file.exists()
    # One of its own is taken over when the client is opened.
    has_ledger = ledgers.has_account(checkpoint_owner(config, client)) or file.exists()
    return ledgers.path, has_ledger


def _open_ledger(config: Config, client: str, noise_key: bytes, of_host: OfHost | None) -> Ledger:
    owner = checkpoint_owner(config, client)
    fingerprint = ledger_fingerprint(noise_key)
    file = config.readings_folder / client / LEDGER
    if of_host is None:
        return Ledger(file, owner, fingerprint, watch=noting_slowness)
    ledgers = of_host.ledgers
    assert ledgers is not None, "a host has a file of ledgers where something is counted"
    # Of a version before, by which each client of a host had a file of its own.
    ledgers.adopt(owner, file)
    return Ledger(
        ledgers.path,
        owner,
        fingerprint,
        shared=ledgers,
        watch=noting_slowness,
        note=of_host.note_charge,
    )


def _shared(resources: ClientResources, of_host: OfHost | None) -> ClientResources:
    """The resources of a client, with what it has as one of many in a process."""
    if of_host is None:
        return resources
    return resources._replace(
        decode=of_host.decode, store_interval_s=of_host.store_interval_s, is_one_of_many=True
    )


def check_not_restored(folder: Path) -> None:
    """Raises `InvalidState` for the folder of a client that comes from a backup."""
    mark = folder / RESTORED
    if mark.exists():
        # Also a mark that is damaged has to stop the client.
        moment = mark.read_text(encoding="utf-8", errors="replace").strip()
        raise InvalidState(
            f"{folder}: restored from a backup of {moment}; going on would publish again, with"
            " other noise, what was published since. Start a new client with `--after-restore"
            f" {folder.name}`; if nothing was published since, delete {mark}"
        )


def ledger_fingerprint(noise_key: bytes) -> str:
    """The fingerprint of a noise key that an account of the ledger names."""
    # The text keeps it apart from whatever else is made of the key, which it does not give away.
    return hashlib.sha256(b"ledger" + noise_key).hexdigest()[:16]


def checkpoint_owner(config: Config, client: str) -> str:
    """The owner that the checkpoint of a client names, and its account in the ledger."""
    return account(client, config.contract.federation)


def host_owner(config: Config) -> str:
    """The owner that the file with the checkpoints of all clients of a host names."""
    return f"host of {config.contract.federation}"


def open_checkpoint(
    config: Config, client: str, shared: CheckpointFile | None = None
) -> Checkpoint:
    """The checkpoint of a client, made if there is none.

    `shared`: the open file with those of all clients of a host. Raises `InvalidState` when it or
    the noise key is lost. Both are needed or both are new. The checkpoint is made first, so an
    empty one without a key is left by a kill or a start that failed, and a used one without a key
    is a loss.
    """
    folder = config.client.folder / client
    path = folder / CHECKPOINT
    key = folder / NOISE_KEY
    owner = checkpoint_owner(config, client)
    process = owner
    if config.host.client:
        path = config.client.folder / HOST_CHECKPOINTS
        process = host_owner(config)
    if key.exists() and not path.exists():
        raise InvalidState(INCOMPLETE.format(present=key, missing=path.name))
    checkpoint = Checkpoint(path, owner, shared, process=process, makes=not key.exists())
    try:
        if not key.exists() and checkpoint.load() is not None:
            raise InvalidState(INCOMPLETE.format(present=path, missing=key.name))
    # For an interrupt as well: the lock would keep out the next try in this process.
    except BaseException:
        checkpoint.close()
        raise
    return checkpoint
