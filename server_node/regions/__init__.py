"""The federations that are connected with this one: its regions, and the upstream federation that
it is a region of."""
