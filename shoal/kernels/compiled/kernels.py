"""All compiled kernels, from Numba's cache or compiled now."""

from __future__ import annotations

from shoal.kernels.compiled import (
    CompiledKernels,
    ca_plus,
    caefc,
    cells,
    density_tree,
    fuzzy,
    gaussian,
    landmarks,
    lloyd,
    noise,
    sketching,
    valleys,
    window,
)
from shoal.kernels.compiled.numpy_loops import numpy_loops
from shoal.kernels.compiled.sources import digest_of_sources


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
        find_valleys=valleys.kernel(sources),
        count_window=window.kernel(sources),
        count_in_table=cells.table_kernel(sources),
        count_in_slots=cells.slots_kernel(sources),
        fuzzy_weights=fuzzy.kernel(sources),
        nearest_weights=landmarks.weights_kernel(sources),
        add_gram=landmarks.gram_kernel(sources),
        mixture_responsibilities=gaussian.kernel(sources),
        loops=loops,
    )
