"""What the demo shows while it runs: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

LINE_EVERY_S = 5.0
RENEW_PER_S = 8.0


class Table(Protocol):
    """Shows how far the demo is."""

    def show(self, clients: list[dict[str, Any]], total: dict[str, Any], position: int, rows: int | None) -> None:
        """Called as often as one likes."""
        ...


class Lines:
    """A line every few seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._next_at = clock()

    def show(self, clients: list[dict[str, Any]], total: dict[str, Any], position: int, rows: int | None) -> None:
        """See `Table.show`."""
        if self._clock() < self._next_at:
            return
        self._next_at = self._clock() + LINE_EVERY_S
        self._stream.write(
            f"{total['readings']:>7,} readings learnt, {total['nodes']:>4} nodes, {total['clusters']:>3} clusters, "
            f"epsilon {total['epsilon_per_reading']:g} per reading\n"
        )
        self._stream.flush()


@contextmanager
def table_on(stream: TextIO) -> Iterator[Table]:
    """A live table where there is a terminal and rich is installed, lines elsewhere."""
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra
        from rich.live import Live  # noqa: PLC0415 - an extra; plain lines do without
    except ModuleNotFoundError:
        yield Lines(stream)
        return
    console = Console(file=stream)
    if not console.is_terminal:
        yield Lines(stream)
        return
    with Live(console=console, refresh_per_second=RENEW_PER_S, auto_refresh=False) as live:
        yield RichTable(live.update)


class RichTable:
    """One line per client and a sum, renewed in place."""

    def __init__(self, update: Callable[..., None], clock: Callable[[], float] = time.monotonic) -> None:
        self._update, self._clock = update, clock
        self._next_at = clock()

    def show(self, clients: list[dict[str, Any]], total: dict[str, Any], position: int, rows: int | None) -> None:
        """See `Table.show`."""
        if self._clock() < self._next_at:
            return
        self._next_at = self._clock() + 1 / RENEW_PER_S
        self._update(_table(clients, total, position, rows), refresh=True)


def _table(clients: list[dict[str, Any]], total: dict[str, Any], position: int, rows: int | None) -> Any:
    from rich.table import Table as Grid  # noqa: PLC0415 - an extra

    share = f" ({position / rows:.0%})" if rows else ""
    grid = Grid(title=f"{position:,} readings replayed{share}", title_justify="left")
    for heading in ("", "readings", "rejected", "nodes", "updates", "clusters", "epsilon per reading"):
        grid.add_column(heading, justify="left" if not heading else "right")
    for client in clients:
        counts = (f"{client.get(name, 0):,}" for name in ("learned", "rejected", "nodes", "updates"))
        grid.add_row(client["client"], *counts, "", f"{total['epsilon_per_reading']:g}")
    grid.add_section()
    counts = (f"{total[name]:,}" for name in ("readings", "rejected", "nodes", "updates"))
    grid.add_row("server", *counts, str(total["clusters"]), "")
    return grid
