"""Federations above and below this one: its regions, and the upstream federation that it is a region of."""
