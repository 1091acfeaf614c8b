"""A transport: a log in a folder, with a folder per topic and a file per record. One partition;
nothing is deleted."""

from __future__ import annotations

import os
import time
from pathlib import Path

from shoal.config.base import Settings, resolve_path
from shoal.errors import LogError
from shoal.protocol.codec import pack, unpack
from shoal.transports.base import Record, Transport


class FolderLog:
    """See `shoal.transports.base.Log`."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def ensure(self, topic, settings=None):
        (self.folder / topic).mkdir(parents=True, exist_ok=True)
        (self.folder / topic / "identity").touch()

    def identity(self, topic):
        return (self.folder / topic / "identity").stat().st_ino.to_bytes(16, "big")

    def publish(self, topic, value, key=None, headers=(), partition=None):
        new = self.folder / f".{os.getpid()}.{time.monotonic_ns()}"
        new.write_bytes(
            pack([int(time.time() * 1000), key, value, [list(header) for header in headers]])
        )
        while new.exists():
            try:
                os.link(new, self.folder / topic / f"{self.bounds(topic)[0][1]:012}")
                new.unlink()
            except FileExistsError:
                continue  # another process has taken this offset

    def flush(self, timeout_s=30.0):
        """Every record is stored when `publish` returns."""

    def read(self, topic, at, limit=500, timeout_s=0.0):
        until = time.monotonic() + timeout_s
        while (end := min(at[0] + limit, self.bounds(topic)[0][1])) <= at[
            0
        ] and time.monotonic() < until:
            time.sleep(0.01)
        records = []
        for offset in range(at[0], end):
            stamp, key, value, headers = unpack(
                (self.folder / topic / f"{offset:012}").read_bytes()
            )
            records.append(Record(topic, 0, offset, stamp, key, value, tuple(map(tuple, headers))))
        return records, {0: max(at[0], end)}

    def bounds(self, topic):
        try:
            return {0: (0, len(os.listdir(self.folder / topic)) - 1)}
        except FileNotFoundError:
            raise LogError(f"no topic {topic!r} in {self.folder}") from None

    def show_progress(self, reader, topic, at):
        """No tool looks at it."""

    def close(self):
        """Nothing is kept open."""


class FolderTransport(Transport):
    """Logs at addresses `folder:PATH`."""

    name = "folder"

    def open(self, location, settings: Settings):
        return FolderLog(location)

    def resolve(self, location, file):
        return str(resolve_path(Path(location), file))


FOLDER = FolderTransport()
