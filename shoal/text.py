"""Words of numbers, the same in all that people read."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural except for 1.

    >>> counted(1, "cluster"), counted(0, "cluster"), counted(1234, "reading")
    ('1 cluster', '0 clusters', '1,234 readings')
    """
    ending = "" if number == 1 else "s"
    return f"{number:,} {noun}{ending}"
