"""The progress of the demo: a live table on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

LINE_EVERY_S = 5.0
REFRESHES_PER_S = 8.0


class Progress(Protocol):
    """Shows the progress of the demo."""

    def show(self, clients: list[dict[str, Any]], total: dict[str, Any], position: int, rows: int | None) -> None:
        """Show it, unless it was shown a moment ago; may be called after every step.

        `position` is the number of readings produced, of `rows` in the stream, None if that is unknown.
        """
        ...


class LineProgress:
    """Writes a line every `LINE_EVERY_S` seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._next_at = clock()

    def show(self, clients: list[dict[str, Any]], total: dict[str, Any], position: int, rows: int | None) -> None:
        """See `Progress.show`."""
        if self._clock() < self._next_at:
            return
        self._next_at = self._clock() + LINE_EVERY_S
        self._stream.write(
            f"{total['readings']:>7,} readings learnt, {total['nodes']:>4} nodes, {total['clusters']:>3} clusters, "
            f"epsilon {total['epsilon_total']:g} per reading\n"
        )
        self._stream.flush()


@contextmanager
def progress_on(stream: TextIO) -> Iterator[Progress]:
    """A live table where `stream` is a terminal and rich is installed, lines elsewhere."""
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra
        from rich.live import Live  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        yield LineProgress(stream)
        return
    console = Console(file=stream)
    if not console.is_terminal:
        yield LineProgress(stream)
        return
    with Live(console=console, refresh_per_second=REFRESHES_PER_S, auto_refresh=False) as live:
        yield TableProgress(live.update)


class TableProgress:
    """Refreshes a table with one row per client and one for the server."""

    def __init__(self, update: Callable[..., None], clock: Callable[[], float] = time.monotonic) -> None:
        self._update, self._clock = update, clock
        self._next_at = clock()

    def show(self, clients: list[dict[str, Any]], total: dict[str, Any], position: int, rows: int | None) -> None:
        """See `Progress.show`."""
        if self._clock() < self._next_at:
            return
        self._next_at = self._clock() + 1 / REFRESHES_PER_S
        self._update(_table(clients, total, position, rows), refresh=True)


def _table(clients: list[dict[str, Any]], total: dict[str, Any], position: int, rows: int | None) -> Any:
    from rich.table import Table  # noqa: PLC0415 - an extra

    share = f" ({position / rows:.0%})" if rows else ""
    table = Table(title=f"{position:,} readings replayed{share}", title_justify="left")
    for heading in ("", "readings", "rejected", "nodes", "updates", "clusters", "epsilon per reading"):
        table.add_column(heading, justify="left" if not heading else "right")
    for client in clients:
        counts = (f"{client.get(name, 0):,}" for name in ("learned", "rejected", "nodes", "updates"))
        table.add_row(client["client"], *counts, "", f"{total['epsilon_total']:g}")
    table.add_section()
    counts = (f"{total[name]:,}" for name in ("readings", "rejected", "nodes", "updates"))
    table.add_row("server", *counts, str(total["clusters"]), "")
    return table
