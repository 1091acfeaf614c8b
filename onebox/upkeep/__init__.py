"""Upkeep of the files of processes: their upgrade, their backup, and what a backup restores."""
