"""The demo: a real sensor stream dealt out to a few clients, clustered on this machine while one looks on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from onebox.federation import OneBox
from producers.bookmark import Bookmark
from producers.files.replay import Columns, Replay
from producers.files.split import split_of
from producers.pacing import Pacing
from producers.pump import Pump
from server_node.status import ServerStatus, StatusBoard
from server_node.wake import request_wake
from shoal.config.models import check_models
from shoal.config.settings import Config, load_config
from shoal.errors import SettingsError
from shoal.protocol.topics import readings_settings
from shoal.runtime.readings_log import open_readings
from shoal.transports import open_log

MARK = ".shoal-demo"
"""a folder with this file in it was made by the demo, so the next demo may empty it"""
ROWS = 20_560
"""readings in the stream that ships with shoal"""


@dataclass
class Demo:
    """A running demo: what feeds it, what learns, what people see."""

    config: Config
    pump: Pump
    box: OneBox
    board: StatusBoard
    clock: Callable[[], float] = time.monotonic
    looked_again: bool = False
    """whether models in rounds have been woken after the last reading was learnt"""

    def step(self) -> bool:
        """Feed what is due, let everybody learn, renew the picture. True when anything was done."""
        fed = self.pump.step()
        if not self.looked_again and self._all_is_learnt:
            # They may sleep on what there was to find in the midst of the stream.
            with closing(open_log(self.config.log)) as log:
                request_wake(self.config.contract, log, list(self._rounds()))
            self.looked_again = True
        learnt = self.box.step()
        self.board.set(self.box.server.status())
        return fed or learnt

    @property
    def finished(self) -> bool:
        """Whether all is learnt, and models in rounds have gone through their rounds on all of it."""
        return self._all_is_learnt and self.looked_again

    @property
    def _all_is_learnt(self) -> bool:
        """Whether every reading has been fed, learnt and, where it changed anything, said and merged, and no model in
        rounds is on its way."""
        learnt = self.pump.finished and all(node.up_to_date for node in self.box.clients.values())
        return learnt and self.box.server.up_to_date and self.box.server.idle

    def rows(self) -> list[dict[str, Any]]:
        """One line per client for the live table."""
        return [{"client": name, "nodes": node.nodes, **node.totals} for name, node in self.box.clients.items()]

    def summary(self, seconds: float) -> dict[str, Any]:
        """What came of it, in plain values."""
        model = next(iter(self.box.server.models().values()))
        snapshot = model.snapshot
        statement = self.board.status.privacy
        rows = self.rows()
        return {
            "seconds": round(seconds, 1),
            "readings": sum(row.get("learned", 0) for row in rows),
            "rejected": sum(row.get("rejected", 0) for row in rows),
            "clients": len(rows),
            "client_nodes": sum(row["nodes"] for row in rows),
            "updates": sum(row.get("updates", 0) for row in rows),
            "nodes": snapshot.nodes if snapshot else 0,
            "clusters": snapshot.clusters if snapshot else 0,
            "version": snapshot.version if snapshot else 0,
            "rounds": self._rounds(),
            "epsilon_per_reading": statement["epsilon_per_reading"],
            "epsilon_per_feature": statement["epsilon_per_feature"],
        }

    def _rounds(self) -> dict[str, dict[str, int]]:
        """How far the models in rounds have come, by name."""
        pictures = [model.status() for model in self.box.server.models().values()]
        return {
            shown.name: {"round": shown.rounds.round, "clusters": shown.snapshot.clusters if shown.snapshot else 0}
            for shown in pictures
            if shown.rounds is not None
        }


def prepare(folder: Path, epsilon: float | None, port: int) -> Path:
    """An empty folder with the demo's federation file in it, which three processes could run too.

    Raises `SettingsError` when the folder holds anything that the demo has not made.
    """
    if folder.exists():
        if not (folder / MARK).exists() and any(folder.iterdir()):
            raise SettingsError(f"{folder} holds something that is not the demo's; name another --folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    text = files("onebox").joinpath("demo.toml").read_text(encoding="utf-8")
    if epsilon is not None:
        text = text.replace("epsilon_per_reading = 400.0", f"epsilon_per_reading = {epsilon!r}")
    file = folder / "office.toml"
    file.write_text(text.replace("[server]\n", f"[server]\nport = {port}\n"), encoding="utf-8")
    return file


@contextmanager
def demo_of(file: Path, clients: int, seconds: float, picture: Callable[[Config], ServerStatus]) -> Iterator[Demo]:
    """The demo in the folder of its federation file, feeding the whole stream in about `seconds`."""
    config = load_config(file)
    check_models(config.contract)
    columns = Columns(tuple(feature.name for feature in config.contract.features), "date", None)
    with ExitStack() as stack:
        data = stack.enter_context(as_file(files("onebox").joinpath("occupancy.csv.gz")))
        source = Replay([data], columns, split_of("round-robin", clients, 0, None))
        names = [f"client-{number}" for number in range(1, clients + 1)]
        box = stack.enter_context(OneBox(config, names))
        pump = Pump(
            source,
            lambda client: open_readings(config, client),
            clock=time.monotonic,
            pacing=Pacing(rate=ROWS / seconds),
            bookmark=Bookmark(),
            kept=readings_settings(config.client),
        )
        stack.enter_context(closing(pump))
        yield Demo(config, pump, box, StatusBoard(picture(config)))
