"""All compiled kernels, from Numba's cache or compiled now, and the digest of what they are made
from.

The digest keeps a kernel of another version from being taken from Numba's cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from shoal.kernels import art_workspace, constants
from shoal.kernels.compiled import (
    CompiledKernels,
    ca_plus,
    caefc,
    counting,
    density_tree,
    fuzzy,
    gaussian,
    landmarks,
    lloyd,
    noise,
    sketching,
)
from shoal.kernels.compiled.numpy_loops import numpy_loops

CONSTANTS: Final = (art_workspace, constants)
"""the modules outside this folder from which compiled functions take constants"""


def source_files() -> list[Path]:
    """All files that the compiled kernels consist of: those of this folder, and those of
    `CONSTANTS`."""
    return [
        *sorted(Path(__file__).parent.glob("*.py")),
        *(Path(str(module.__file__)) for module in CONSTANTS),
    ]


def digest_of_sources() -> str:
    """SHA-256 of `source_files`.

    Numba compares only the file that a kernel is in with what it has in its cache, not the files
    that this one imports. The digest is a variable in the closure of each kernel, which is a part
    of the cache's key.
    """
    return hashlib.sha256(
        b"".join(hashlib.sha256(file.read_bytes()).digest() for file in source_files())
    ).hexdigest()


def compiled_kernels(check: Callable[[], None]) -> CompiledKernels:
    """All kernels, one after the other; `check` is called before each, and may raise to end this.

    Kernels that were compiled until then are in Numba's cache. Raises what Numba raises where it
    cannot compile, and `LoopsNotFound`.
    """
    # First, as without them nothing has to be compiled, which can take a minute.
    loops = numpy_loops()
    sources = digest_of_sources()
    makers = {
        "learn_ca_plus": ca_plus.kernel,
        "learn_caefc": caefc.kernel,
        "assign_rows": lloyd.kernel,
        "nearest_centres": lloyd.nearest_kernel,
        "draw_words": noise.words_kernel,
        "release_laplace": noise.release_kernel,
        "core_distances": density_tree.cores_kernel,
        "mass_around": density_tree.around_kernel,
        "masses_at_shares": density_tree.shares_kernel,
        "median_radius": density_tree.radius_kernel,
        "spanning_tree": density_tree.tree_kernel,
        "join_groups": density_tree.join_kernel,
        "locate": sketching.locate_kernel,
        "lay_out": sketching.lay_out_kernel,
        "nearest_in": sketching.nearest_kernel,
        "near_pairs": sketching.pairs_kernel,
        "unite": sketching.unite_kernel,
        "merge_points": sketching.merge_kernel,
        "all_exceed": sketching.exceed_kernel,
        "find_valleys": density_tree.valleys_kernel,
        "count_window": counting.window_kernel,
        "count_in_table": counting.table_kernel,
        "count_in_slots": counting.slots_kernel,
        "fuzzy_weights": fuzzy.kernel,
        "nearest_weights": landmarks.weights_kernel,
        "add_gram": landmarks.gram_kernel,
        "mixture_responsibilities": gaussian.kernel,
    }
    made: dict[str, Callable[..., Any]] = {}
    for name, make in makers.items():
        check()
        made[name] = make(sources)
    return CompiledKernels(**made, loops=loops)
