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
        self._width, self._gaps = contract.width, contract.learns_gaps
        self.faults = FaultCounts(names)
        self.clipping = ClippingCounts(names, contract.bounds)

    def add(self, numbers: Sequence[int], values: RowsOfValues) -> None:
        """Count readings with these numbers in their source: values (n, d), or a list where some are no numbers."""
        if isinstance(values, np.ndarray) and values.dtype == np.float64 and values.shape[1:] == (self._width,):
            finite = np.isfinite(values)
            sound = finite.all(axis=1)
            if self._gaps:
                sound = finite.any(axis=1) & ~np.isinf(values).any(axis=1)
            self.clipping.add(values[sound])
            wrong = np.flatnonzero(~sound).tolist()
        else:
            faults = [fault_of(row, self._width, self._gaps) for row in values]
            wrong = [place for place, fault in enumerate(faults) if fault is not None]
            rows = [row for row, fault in zip(values, faults, strict=True) if fault is None]
            self.clipping.add(np.array(rows, dtype=np.float64).reshape(-1, self._width))
        for place in wrong:
            fault = fault_of(values[place], self._width, self._gaps)
            assert fault is not None
            self.faults.add(fault, numbers[place])
