"""Counts what clients will reject or clip of the readings that a producer stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from shoal.config.contract import Contract
from shoal.kernels.arrays import Floats
from shoal.protocol.reading_faults import Clipped, ClippingCounts, FaultCounts, fault_of
from shoal.protocol.readings import RowsOfValues


class ReadingWatch:
    """Looks at every reading once that a producer has stored, as its client will."""

    def __init__(self, contract: Contract) -> None:
        names = [feature.name for feature in contract.features]
        self._width = contract.width
        self._gaps = contract.learns_gaps
        self.faults = FaultCounts(names)
        self.clipping = ClippingCounts(names, contract.bounds)

    def add(self, client: str, numbers: Sequence[int], values: RowsOfValues) -> None:
        """Count readings of a client with these numbers in their source, which ascend.

        `values` are (n, d), or a list where some are no numbers.
        """
        are_numbers = isinstance(values, np.ndarray) and values.dtype == np.float64
        if isinstance(values, np.ndarray) and are_numbers and values.shape[1:] == (self._width,):
            self._add_numbers(client, numbers, values)
        else:
            self._add_rows(client, numbers, values)

    def _add_numbers(self, client: str, numbers: Sequence[int], values: Floats) -> None:
        finite = np.isfinite(values)
        sound = finite.all(axis=1)
        if self._gaps:
            sound = finite.any(axis=1) & ~np.isinf(values).any(axis=1)
        faulty = np.flatnonzero(~sound).tolist()
        if not faulty:
            self.clipping.add(client, numbers, values)
            return
        kept = np.flatnonzero(sound).tolist()
        self.clipping.add(client, [numbers[place] for place in kept], values[sound])
        for place in faulty:
            fault = fault_of(values[place], self._width, self._gaps)
            assert fault is not None
            self.faults.add(fault, numbers[place])

    def _add_rows(self, client: str, numbers: Sequence[int], values: RowsOfValues) -> None:
        sound = []
        sound_numbers = []
        for number, row in zip(numbers, values, strict=True):
            fault = fault_of(row, self._width, self._gaps)
            if fault is None:
                sound.append(row)
                sound_numbers.append(number)
            else:
                self.faults.add(fault, number)
        rows = np.array(sound, dtype=np.float64).reshape(-1, self._width)
        self.clipping.add(client, sound_numbers, rows)

    def clipped(
        self, places: Callable[[Sequence[int]], Mapping[int, str]], texts: Mapping[str, str]
    ) -> list[Clipped]:
        """The features with many values beyond their bounds.

        `places`: numbers of readings -> place of each for people; `texts`: client -> what the
        source calls it.
        """
        numbers = self.clipping.first_numbers
        # Finding places takes a pass over the files.
        names = places(numbers) if numbers else {}
        return self.clipping.clipped(names, texts)
