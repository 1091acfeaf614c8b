"""A federation in memory: clients by name and a server in one process, with no log between."""
