"""Sinks of cluster events, one file each; what all of them are is in `base`."""
