"""The bookmark: the row at which a producer continues, so that it need not search the logs for it.

The logs themselves say what has been published; see `producers.publisher`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from producers.publisher import Mark
from shoal.errors import InvalidState
from shoal.runtime.checkpoint import Checkpoint


class Bookmark:
    """The position in one source, in a file that one producer at a time can open, or in memory only.

    All rows before `row` were stored, in the logs that `marks` describes, when the bookmark was saved. Later rows may
    be stored too: `producers.publisher` finds them. `run` counts how often the source was published on purpose.
    """

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self._checkpoint = checkpoint
        self.run = 0
        self.row = 0
        self.marks: dict[str, Mark] = {}
        if checkpoint is not None and (state := checkpoint.load()) is not None:
            self._restore(state)

    def save(self, row: int, marks: dict[str, Mark]) -> None:
        """Record that everything before `row` is stored. Raises `LogUnavailable` when the disk cannot be written."""
        self.row, self.marks = row, dict(marks)
        if self._checkpoint is not None:
            marked = {client: list(mark) for client, mark in self.marks.items()}
            self._checkpoint.save({"run": self.run, "row": self.row, "marks": marked})

    def start_again(self) -> None:
        """Start from the first row, and publish rows though an earlier run has published them."""
        self.run += 1
        self.save(0, {})

    def close(self) -> None:
        """Close the file."""
        if self._checkpoint is not None:
            self._checkpoint.close()

    def _restore(self, state: dict[str, Any]) -> None:
        try:
            self.run, self.row = int(state["run"]), int(state["row"])
            self.marks = {client: Mark(*mark) for client, mark in state["marks"].items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InvalidState(
                "the producer's bookmark is of another version; delete it: the position is found in the logs"
            ) from None


def open_bookmark(folder: Path, source: str) -> Bookmark:
    """The bookmark of the source with identity `source`, in the folder of the clients' folders.

    Raises `InvalidState` while another producer of the same source is running, or when the file is damaged.
    """
    # A client's name has no dot, so this is no client's folder.
    checkpoint = Checkpoint(folder / f"producer.{source}.db", f"the producer of source {source}")
    try:
        return Bookmark(checkpoint)
    except BaseException:
        checkpoint.close()
        raise
