"""The compiled form of the kernels (extra `fast`, Numba), with the bits of the NumPy form.

`kernels` loads Numba and compiles all kernels: `shoal.kernels.forms` imports it when a process has
computed enough to gain by it, and nothing else in shoal does. Functions named `kernel` return a
kernel that they compile, or take from Numba's cache; `sources` is what it was made from
(`digest_of_sources`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shoal.kernels.arrays import Ints


class CompiledKernels(NamedTuple):
    """The compiled kernels, and the addresses of NumPy's loops that they call."""

    learn_ca_plus: Callable[..., int]
    learn_caefc: Callable[..., int]
    assign_rows: Callable[..., float]
    nearest_centres: Callable[..., None]
    draw_words: Callable[..., None]
    release_laplace: Callable[..., None]
    core_distances: Callable[..., None]
    mass_around: Callable[..., None]
    masses_at_shares: Callable[..., None]
    median_radius: Callable[..., tuple[float, float]]
    spanning_tree: Callable[..., None]
    join_groups: Callable[..., tuple[int, int, int]]
    locate: Callable[..., float]
    lay_out: Callable[..., None]
    nearest_in: Callable[..., None]
    near_pairs: Callable[..., None]
    unite: Callable[..., None]
    merge_points: Callable[..., int]
    all_exceed: Callable[..., bool]
    find_valleys: Callable[..., None]
    count_window: Callable[..., None]
    count_in_table: Callable[..., None]
    count_in_slots: Callable[..., tuple[int, int]]
    fuzzy_weights: Callable[..., None]
    nearest_weights: Callable[..., None]
    add_gram: Callable[..., None]
    mixture_responsibilities: Callable[..., None]
    loops: Ints
