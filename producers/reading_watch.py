"""Counts of the readings that clients will reject or clip, for a producer's operator: names, numbers, places only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.config.contract import Contract
from shoal.protocol.reading_faults import ClippingCounts, FaultCounts, fault_of
from shoal.protocol.readings import RowsOfValues


class ReadingWatch:
    """Looks at every reading once that a producer has stored, as its client will."""

    def __init__(self, contract: Contract) -> None:
        names = [feature.name for feature in contract.features]
        self._width = contract.width
        self.faults = FaultCounts(names)
        self.clipping = ClippingCounts(names, contract.bounds)

    def add(self, numbers: Sequence[int], values: RowsOfValues) -> None:
        """Count readings with these numbers in their source: values (n, d), or a list where some are no numbers."""
        if isinstance(values, np.ndarray) and values.dtype == np.float64 and values.shape[1:] == (self._width,):
            finite = np.isfinite(values).all(axis=1)
            self.clipping.add(values[finite])
            wrong = np.flatnonzero(~finite).tolist()
        else:
            wrong = [place for place, row in enumerate(values) if fault_of(row, self._width) is not None]
            sound = [row for row in values if fault_of(row, self._width) is None]
            self.clipping.add(np.array(sound, dtype=np.float64).reshape(-1, self._width))
        for place in wrong:
            fault = fault_of(values[place], self._width)
            assert fault is not None
            self.faults.add(fault, numbers[place])
