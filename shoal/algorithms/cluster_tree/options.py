"""The options of cluster_tree."""

from __future__ import annotations

from typing import Any

from shoal.algorithms.options import AlgorithmOptions, option


class ClusterTreeOptions(AlgorithmOptions):
    """Options of both halves.

    None depends on the stream: they are limits, significance levels and spans.
    """

    ALGORITHM = "cluster_tree"

    points_max: int = option(128, "weighted points that a client publishes at once", least=8)
    cells_max: int = option(
        1000,
        "weighted points that the server keeps, more of them where clusters are many "
        "(`growth_max`)",
        least=16,
    )
    rebuild_readings: int = option(
        500,
        "readings absorbed between two rebuilds of the tree; the first ones come after every "
        "quarter more, and others where readings gather where none were before: at most as many "
        "again",
        least=1,
    )
    cluster_mass_max: float = option(
        4000.0,
        "independent readings of a cluster that count: newer ones displace older ones of the same "
        "cluster, never those of another",
        least=100.0,
    )
    mass_max: float = option(
        4000.0,
        "independent readings of all clusters that count, each cluster having an equal part at "
        "most, or its share of the recent readings: with more readings ever finer structure "
        "becomes significant, and the number of clusters would grow with the age of the stream",
        least=100.0,
    )
    growth_max: float = option(
        4.0,
        "how many times `cells_max` and the two numbers of readings are kept at most, in "
        "proportion to the clusters, or places with gaps between them, where there are more than "
        "20: it takes as many more readings to tell them apart. Where it is too little for them, "
        "the model says so, up to about 100 clusters",
        least=1.0,
    )
    split_significance: float = option(
        4.5,
        "standard deviations by which both sides of a join must be denser than the join to be "
        "clusters of their own",
        above=0.0,
    )
    keep_significance: float = option(
        2.0, "the same, to remain two clusters once they are", above=0.0
    )
    confirm_readings: float = option(
        1000.0,
        "readings for which a split that is barely significant, or the loss of one, must last "
        "before it is shown; a split of twice the significance is shown at once",
        least=0.0,
    )
    noise: bool = option(
        False,
        "whether rows that belong to no cluster are labelled as such (-1), instead of as the "
        "nearest cluster",
    )

    def model_post_init(self, context: Any) -> None:
        """Raises `SettingsError` for significances that contradict each other."""
        self.require(
            "keep_significance",
            self.keep_significance <= self.split_significance,
            "<= split_significance",
        )
