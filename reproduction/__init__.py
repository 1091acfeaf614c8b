"""The papers' experiments, run again: for a clone; the wheel does not have this package."""
