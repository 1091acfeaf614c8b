"""The plan of a replay: all that a worker needs, the same for every engine."""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from shoal.config.resolved import ResolvedContract
from shoal.config.sections import ClientSettings
from shoal.config.settings import Config
from shoal.errors import InvalidState, SettingsError
from shoal.files import atomic_file
from shoal.onebox.replay.parquet import Columns, Piece, ReadingsFile

PART_BYTES: Final = 32 * 1024 * 1024
"""bytes of the readings of a part, about: a worker holds one part at a time, a few times over"""
PARTS_MAX: Final = 4096
DESCRIPTION: Final = "replay.json"
EXPANSION_MAX: Final = 200
"""default of how many times as large as the files their readings may be"""
READINGS_BYTES_LEAST: Final = 1024**3
"""bytes of readings that files of any size may have by default"""


@dataclass(frozen=True)
class ReplayPlan:
    """One replay. Engines send it to their workers, which see `folder` and the files under the same
    paths."""

    contract: ResolvedContract
    settings: ClientSettings
    update_bytes_max: int
    """largest record for updates"""
    columns: Columns
    files: tuple[ReadingsFile, ...]
    parts: int
    """number of parts that the clients are split into; each is learnt by one worker"""
    folder: Path
    """folder of the results"""
    key: bytes = field(repr=False)
    """32 secret bytes, from which the noise key of every client is derived"""

    @property
    def readings(self) -> int:
        """Number of readings, rejected ones included."""
        return sum(file.rows for file in self.files)

    @property
    def pieces(self) -> list[Piece]:
        """Successive row groups of the files, in order."""
        return [piece for number, file in enumerate(self.files) for piece in file.pieces(number)]

    @property
    def source(self) -> bytes:
        """16 bytes that stand for the identity of the readings logs: one history of readings for
        each key."""
        # The text keeps this apart from the keys of clients, which are made of the same secret.
        return hmac.digest(self.key, b"shoal replay source", "sha256")[:16]

    def client_key(self, client: str) -> bytes:
        """The noise key of one client."""
        return hmac.digest(self.key, b"shoal replay client\0" + client.encode(), "sha256")

    def describe(self) -> dict[str, Any]:
        """All that decides the results, as plain values; the key as 16 hexadecimal digits of a
        digest."""
        return {
            "contract": self.contract.digest,
            "publish_readings": self.settings.publish_readings,
            "publish_s": self.settings.publish_s,
            "window_rows": self.settings.window_rows,
            "window_s": self.settings.window_s,
            "drop_repeats": self.settings.drop_repeats,
            "update_bytes_max": self.update_bytes_max,
            "columns": self.columns.all,
            "files": [[str(file.path), file.rows, file.digest] for file in self.files],
            "parts": self.parts,
            "key": hashlib.sha256(b"shoal replay key" + self.key).hexdigest()[:16],
        }

    def claim_folder(self) -> None:
        """Make the folder this replay's, or find that it is. Raises `InvalidState` if it holds
        another replay."""
        self.folder.mkdir(parents=True, exist_ok=True)
        place = self.folder / DESCRIPTION
        own = self.describe()
        if not place.exists():
            with atomic_file(place) as temporary:
                temporary.write_text(json.dumps(own, indent=1) + "\n", encoding="utf-8")
        try:
            # Read also where it was just written: another replay may have claimed the folder in
            # between.
            found = json.loads(place.read_text(encoding="utf-8"))
        except ValueError:
            raise InvalidState(
                f"{place}: damaged; remove the folder {self.folder} to replay from the start"
            ) from None
        if not isinstance(found, dict):
            found = {}
        differing = [name for name in own if found.get(name) != own[name]]
        if differing:
            raise InvalidState(
                f"{self.folder} holds another replay: it differs in {', '.join(differing)}. Name "
                "another folder with --folder, or remove this one; the same readings with another "
                "key get other noise, which protects less"
            )


def make_plan(
    config: Config,
    columns: Columns,
    files: Sequence[Path],
    folder: Path,
    key: bytes,
    parts: int | None = None,
    bytes_max: int | None = None,
) -> ReplayPlan:
    """The plan of a replay; `parts` None: as many as the size of the files asks for.

    `bytes_max`: most bytes that the readings may have once they are unpacked; None: as many as the
    size of the files makes likely. Raises `SettingsError` for what cannot be replayed, and
    `InvalidData` for damaged files.
    """
    _check_replayable(config)
    found = tuple(ReadingsFile.open(Path(file).resolve(), columns.all) for file in files)
    # 8 bytes of each feature, and of client, time and sequence.
    taken = sum(file.rows for file in found) * 8 * (len(columns.features) + 3)
    _check_size(taken, found, folder, bytes_max)
    parts = parts or min(PARTS_MAX, max(1, -(-taken // PART_BYTES)))
    return ReplayPlan(
        contract=config.resolved,
        settings=config.client,
        update_bytes_max=config.log.update_bytes_max,
        columns=columns,
        files=found,
        parts=parts,
        # A worker may run in another current folder.
        folder=folder.resolve(),
        key=key,
    )


def _check_size(
    taken: int, files: Sequence[ReadingsFile], folder: Path, bytes_max: int | None
) -> None:
    """Raises `SettingsError` where the footers announce more bytes of readings than may be, or than
    the disk has."""
    packed = sum(file.path.stat().st_size for file in files)
    most = bytes_max
    if most is None:
        most = max(READINGS_BYTES_LEAST, EXPANSION_MAX * packed)
    if taken > most:
        raise SettingsError(
            f"the files have {packed} bytes and readings of about {taken}, above {most}: a small "
            "file can hold more than any disk. Give --bytes-max if they are what you expect"
        )
    place = folder.resolve()
    if (place / DESCRIPTION).exists():
        return  # a replay that goes on has written a part of it
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if taken > free:
        raise SettingsError(
            f"the readings take about {taken} bytes, and {free} are free in {folder}: make room, "
            "or name another folder with --folder"
        )


FEEDING: Final = "`shoal producer FILES --speed max`"
"""the command that brings readings to clients which a replay cannot stand for"""


def _check_replayable(config: Config) -> None:
    for model in config.resolved.models.values():
        if model.counts is not None:
            raise SettingsError(
                f"model {model.name} learns from counts, which clients make under plans that the "
                f"server publishes meanwhile; feed a federation of such clients with {FEEDING}"
            )
        if model.rounds is not None and not model.rounds.algorithm.additive:
            raise SettingsError(
                f"model {model.name}: the answers of clients to {model.algorithm.name} cannot be "
                "added up, so there is no tree of sums; feed a federation of clients with "
                f"{FEEDING}"
            )
        if model.rounds is not None and model.declared.source is not None:
            raise SettingsError(
                f"model {model.name} starts from clusters that another model has found on the "
                "server; give it a number of clusters and no source for the replay"
            )
    if config.client.epsilon_max:
        raise SettingsError(
            "[client] epsilon_max limits what a client's ledger allows, and a replay keeps no "
            f"ledgers; leave it out, or feed clients with {FEEDING}"
        )
