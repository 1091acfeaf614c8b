"""Blocks of readings and the features that describe them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shoal.errors import InvalidState
from shoal.kernels.arrays import AnyArray, Bools, Floats, Singles

SCALES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""readings of a block; each divides the last"""
BLOCKS_MAX = 3_500
"""blocks of each scale that a client remembers; 1.9 MiB at 8 columns"""
READING_MAX = 64.0
"""standardized readings beyond this are clipped to it; a walk, which would seem to rest there,
seldom comes so far"""
FLOOR = 1e-3
"""added before logarithms: spreads of a thousandth of a column's are taken as none"""
FLOOR_OF_RAW = 1e-300
"""added before logarithms of readings whose spread is not known yet; `statistics.standardized` adds
`FLOOR` to those in units of it"""
RAW_MAX = 1e18
"""readings beyond this are clipped to it; within declared bounds there are none"""


def n_block_features(width: int, scale: int) -> int:
    """Number of features of a block of `scale` readings of `width` columns."""
    return width if scale == 1 else 4 * width


def block_features(blocks: Floats, floor: float = FLOOR) -> Floats:
    """(n, w, d) -> (n, 4 d): mean, log deviation, log roughness and slope of each column; for w = 1
    (n, d), the mean.

    Roughness is the root mean square of differences of successive readings, less the log deviation;
    slope is the mean of the second half less that of the first. NaN is a missing reading. A block
    is NaN altogether if a column lacks more than half of its readings, all of one half, or all
    pairs of successive readings. `floor` is added before logarithms.
    """
    w = blocks.shape[1]
    if w == 1:
        rows = blocks[:, 0].copy()
        # A row that lacks one value has no place among whole ones.
        rows[np.isnan(rows).any(axis=1)] = np.nan
        return rows
    if np.isnan(blocks).any():
        return _features_with_gaps(blocks, floor)
    mean = blocks.mean(axis=1)
    deviation = np.log(blocks.std(axis=1) + floor)
    rough = np.log(np.sqrt((np.diff(blocks, axis=1) ** 2).mean(axis=1)) + floor)
    slope = blocks[:, w // 2 :].mean(axis=1) - blocks[:, : w // 2].mean(axis=1)
    return np.concatenate([mean, deviation, rough - deviation, slope], axis=1)


def _features_with_gaps(blocks: Floats, floor: float) -> Floats:
    w = blocks.shape[1]
    present = ~np.isnan(blocks)
    filled = np.where(present, blocks, 0.0)
    both = present[:, 1:] & present[:, :-1]
    count = present.sum(axis=1)
    pairs = both.sum(axis=1)
    early = present[:, : w // 2].sum(axis=1)
    late = present[:, w // 2 :].sum(axis=1)
    # Half of the block, two successive readings, and one in each half: else a feature of it means
    # nothing.
    enough = ((2 * count >= w) & (pairs > 0) & (early > 0) & (late > 0)).all(axis=1)
    # The least divisor of 1 is for blocks that are made NaN below: it avoids a warning.
    mean = filled.sum(axis=1) / np.maximum(count, 1)
    squares = np.where(present, (filled - mean[:, None]) ** 2, 0.0).sum(axis=1)
    deviation = np.log(np.sqrt(squares / np.maximum(count, 1)) + floor)
    jumps = np.where(both, np.diff(filled, axis=1) ** 2, 0.0).sum(axis=1)
    rough = np.log(np.sqrt(jumps / np.maximum(pairs, 1)) + floor)
    slope = filled[:, w // 2 :].sum(axis=1) / np.maximum(late, 1) - filled[:, : w // 2].sum(
        axis=1
    ) / np.maximum(early, 1)
    out = np.concatenate([mean, deviation, rough - deviation, slope], axis=1)
    out[~enough] = np.nan
    return out


def window_features(rows: Floats, w: int) -> Floats:
    """rows (n, d), n >= w -> (n - w + 1, 4 d): features of the w rows from each row on, as
    `block_features` has them.

    By running sums, so they may differ from those of the same block in the last digits.
    """
    if w == 1:
        return block_features(rows[:, None])
    present = ~np.isnan(rows)
    filled = np.where(present, rows, 0.0)
    both = present[1:] & present[:-1]
    jumps = np.where(both, np.diff(filled, axis=0) ** 2, 0.0)
    count, total, squares = (_running(part, w) for part in (present, filled, filled**2))
    pairs = _running(both, w - 1)
    rough = _running(jumps, w - 1)
    half = w // 2
    half_count = _running(present, half)
    half_total = _running(filled, half)
    early = half_count[: len(count)]
    late = half_count[half : half + len(count)]
    enough = ((2 * count >= w) & (pairs > 0) & (early > 0) & (late > 0)).all(axis=1)
    mean = total / np.maximum(count, 1)
    # Squares less the square of the mean may come out below 0 by rounding.
    deviation = np.log(np.sqrt(np.maximum(squares / np.maximum(count, 1) - mean**2, 0.0)) + FLOOR)
    rough = np.log(np.sqrt(np.maximum(rough, 0.0) / np.maximum(pairs, 1)) + FLOOR)
    first = half_total[: len(count)]
    second = half_total[half : half + len(count)]
    slope = second / np.maximum(late, 1) - first / np.maximum(early, 1)
    out = np.concatenate([mean, deviation, rough - deviation, slope], axis=1)
    out[~enough] = np.nan
    return out


def _running(values: Floats | Bools, w: int) -> Floats:
    """(n, d) -> (n - w + 1, d) sums of w successive rows."""
    sums = np.zeros((len(values) + 1, values.shape[1]))
    np.cumsum(values, axis=0, out=sums[1:])
    return sums[w:] - sums[:-w]


class BlockMemory:
    """The latest blocks of a stream at every scale. Any batching of the same readings gives the
    same blocks."""

    def __init__(
        self,
        width: int,
        scales: tuple[int, ...] = SCALES,
        blocks_max: int = BLOCKS_MAX,
    ) -> None:
        """`blocks_max`: blocks of each scale that are remembered."""
        self.width = width
        self.scales = scales
        self.blocks_max = blocks_max
        self.n_readings = 0
        self.n_blocks = dict.fromkeys(scales, 0)
        """blocks ever cut, those forgotten included"""
        # In 32 bits: features of blocks are estimates, and a client keeps thousands of each scale.
        self._blocks: dict[int, Singles] = {
            w: np.empty((0, n_block_features(width, w)), dtype=np.float32) for w in scales
        }
        self._open = np.empty((0, width))
        """readings since the last end of a block of the largest scale"""
        self._cut = dict.fromkeys(scales, 0)
        """readings of `_open` that lie in blocks already cut"""

    def add(self, rows: Floats) -> None:
        """Rows (n, d), NaN where missing, in the order of time."""
        largest = self.scales[-1]
        self.n_readings += len(rows)
        # An outlier must not decide what the sums of a block are.
        self._open = np.concatenate([self._open, np.clip(rows, -RAW_MAX, RAW_MAX)])
        for w in self.scales:
            first = self._cut[w]
            n = (len(self._open) - self._cut[w]) // w
            if n:
                cut = self._open[first : first + n * w].reshape(n, w, self.width)
                new = block_features(cut, FLOOR_OF_RAW).astype(np.float32)
                self._blocks[w] = np.concatenate([self._blocks[w], new])[-self.blocks_max :]
                self.n_blocks[w] += n
                self._cut[w] += n * w
        # What every scale has cut may go: the largest one needs rows for longest.
        done = len(self._open) // largest * largest
        self._open = self._open[done:].copy()
        for w in self.scales:
            self._cut[w] -= done

    def blocks(self, w: int) -> Floats:
        """(n, features) the remembered blocks of scale w, as a copy."""
        return self._blocks[w].astype(np.float64)

    def state(self) -> dict[str, AnyArray]:
        """Everything that further blocks depend on, as copies: readings, those of no whole block
        yet, and blocks."""
        kept = {f"blocks_{w}": blocks.copy() for w, blocks in self._blocks.items()}
        return {"readings": np.array([self.n_readings]), "open": self._open.copy(), **kept}

    def restore(self, arrays: Mapping[str, AnyArray]) -> None:
        """Become the memory that `state` was of; the arrays have its names and types. Raises
        `InvalidState`."""
        readings = int(arrays["readings"][0])
        largest = self.scales[-1]
        if (
            len(arrays["readings"]) != 1
            or readings < 0
            or len(arrays["open"]) != readings % largest
        ):
            raise InvalidState(
                "saved state contradicts itself: its open readings are not those since the last "
                "block"
            )
        for w in self.scales:
            held = arrays[f"blocks_{w}"]
            form = (min(readings // w, self.blocks_max), n_block_features(self.width, w))
            if held.shape != form:
                raise InvalidState(
                    f"saved state contradicts itself: blocks of {w} readings have the shape "
                    f"{held.shape}"
                )
        self.n_readings = readings
        self._open = arrays["open"]
        self.n_blocks = {w: readings // w for w in self.scales}
        self._cut = {w: readings % largest // w * w for w in self.scales}
        self._blocks = {w: arrays[f"blocks_{w}"] for w in self.scales}
