"""The tables of options in docs/reference/algorithms.md, made from the declarations of algorithms in rounds."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.algorithms.registry import rounds_algorithm
from shoal.algorithms.rounds.options import Option


def options_table(names: Sequence[str]) -> str:
    """Markdown: the options of the algorithms `names`, with a column for who has them if there are several.

    An option that several algorithms declare alike has one line. Raises `SettingsError` for an unknown name.
    """
    owners: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        for option, declared in rounds_algorithm(name).options.items():
            owners.setdefault(_cells(option, declared), []).append(f"`{name}`")
    lines = ["| option | default | values | meaning |", "|---|---|---|---|"]
    if len(names) > 1:
        lines = ["| option | of | default | values | meaning |", "|---|---|---|---|---|"]
    for (option, *cells), having in sorted(owners.items(), key=lambda entry: _place(names, entry[0][0])):
        whose = [", ".join(having)] if len(names) > 1 else []
        lines.append(f"| {' | '.join([option, *whose, *cells])} |")
    return "\n".join(lines)


def _cells(name: str, option: Option) -> tuple[str, ...]:
    default = f'"{option.default}"' if isinstance(option.default, str) else f"{option.default}"
    return f"`{name}`", f"`{default}`", option.expected, option.meaning


def _place(names: Sequence[str], option: str) -> int:
    """Where the first of the algorithms that have this option declares it: lines of one option stand together."""
    every = [f"`{one}`" for name in names for one in rounds_algorithm(name).options]
    return every.index(option)
