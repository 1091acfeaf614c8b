"""Counts what clients will reject or clip of the readings that a producer stores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.config.contract import Contract
from shoal.kernels.arrays import Floats
from shoal.protocol.reading_faults import ClippingCounts, FaultCounts, fault_of
from shoal.protocol.readings import RowsOfValues


class ReadingWatch:
    """Looks at every reading once that a producer has stored, as its client will."""

    def __init__(self, contract: Contract) -> None:
        names = [feature.name for feature in contract.features]
        self._width = contract.width
        self._gaps = contract.learns_gaps
        self.faults = FaultCounts(names)
        self.clipping = ClippingCounts(names, contract.bounds)

    def add(self, numbers: Sequence[int], values: RowsOfValues) -> None:
        """Count readings with these numbers in their source.

        `values` are (n, d), or a list where some are no numbers.
        """
        are_numbers = isinstance(values, np.ndarray) and values.dtype == np.float64
        if isinstance(values, np.ndarray) and are_numbers and values.shape[1:] == (self._width,):
            self._add_numbers(numbers, values)
        else:
            self._add_rows(numbers, values)

    def _add_numbers(self, numbers: Sequence[int], values: Floats) -> None:
        finite = np.isfinite(values)
        sound = finite.all(axis=1)
        if self._gaps:
            sound = finite.any(axis=1) & ~np.isinf(values).any(axis=1)
        self.clipping.add(values[sound])
        for place in np.flatnonzero(~sound).tolist():
            fault = fault_of(values[place], self._width, self._gaps)
            assert fault is not None
            self.faults.add(fault, numbers[place])

    def _add_rows(self, numbers: Sequence[int], values: RowsOfValues) -> None:
        sound = []
        for number, row in zip(numbers, values, strict=True):
            fault = fault_of(row, self._width, self._gaps)
            if fault is None:
                sound.append(row)
            else:
                self.faults.add(fault, number)
        self.clipping.add(np.array(sound, dtype=np.float64).reshape(-1, self._width))
