"""Lineage of clusters: which cluster of one snapshot is which of the next."""
