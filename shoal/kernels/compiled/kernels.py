"""All compiled kernels, from Numba's cache or compiled now, and the digest of what they are made from.

The digest keeps a kernel of another version from being taken from Numba's cache.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

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
    """All files that the compiled kernels consist of: those of this folder, and those of `CONSTANTS`."""
    return [*sorted(Path(__file__).parent.glob("*.py")), *(Path(str(module.__file__)) for module in CONSTANTS)]


def digest_of_sources() -> str:
    """SHA-256 of `source_files`.

    Numba compares only the file that a kernel is in with what it has in its cache, not the files that this one imports.
    The digest is a variable in the closure of each kernel, which is a part of the cache's key.
    """
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in source_files())).hexdigest()


def compiled_kernels() -> CompiledKernels:
    """Raises what Numba raises where it cannot compile, and `LoopsNotFound`."""
    # First, as without them nothing has to be compiled, which can take a minute.
    loops, sources = numpy_loops(), digest_of_sources()
    return CompiledKernels(
        learn_ca_plus=ca_plus.kernel(sources),
        learn_caefc=caefc.kernel(sources),
        assign_rows=lloyd.kernel(sources),
        draw_words=noise.words_kernel(sources),
        release_laplace=noise.release_kernel(sources),
        core_distances=density_tree.cores_kernel(sources),
        mass_around=density_tree.around_kernel(sources),
        spanning_tree=density_tree.tree_kernel(sources),
        join_groups=density_tree.join_kernel(sources),
        locate=sketching.locate_kernel(sources),
        near_pairs=sketching.pairs_kernel(sources),
        unite=sketching.unite_kernel(sources),
        merge_points=sketching.merge_kernel(sources),
        all_exceed=sketching.exceed_kernel(sources),
        find_valleys=density_tree.valleys_kernel(sources),
        count_window=counting.window_kernel(sources),
        count_in_table=counting.table_kernel(sources),
        count_in_slots=counting.slots_kernel(sources),
        fuzzy_weights=fuzzy.kernel(sources),
        nearest_weights=landmarks.weights_kernel(sources),
        add_gram=landmarks.gram_kernel(sources),
        mixture_responsibilities=gaussian.kernel(sources),
        loops=loops,
    )
